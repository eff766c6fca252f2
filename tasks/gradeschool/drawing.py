"""Words, number drawing and the template registry."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack",
    "Kate", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor",
    "Wendy", "Adam", "Bella", "Carl", "Dora", "Eric", "Fiona", "George", "Helen", "Ivan",
)  # fmt: skip
ITEMS = (
    "apples", "balls", "beads", "books", "buttons", "cards", "coins", "cookies",
    "cups", "eggs", "flowers", "hats", "keys", "kites", "lemons", "marbles",
    "oranges", "pears", "pencils", "pens", "shells", "stamps", "stickers", "toys",
)  # fmt: skip
PLACES = ("school", "park", "library", "market", "farm", "museum", "beach", "station")

#: percent -> the divisor that takes that share
PERCENTS = ((10, 10), (20, 5), (25, 4), (50, 2))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a template returns: a question, its solution lines and the answer."""

    question: str
    lines: tuple[str, ...]
    value: int


class Draw:
    """Seeded draws of words and numbers for one problem."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def num(self, low: int, high: int, step: int = 1) -> int:
        """A whole number from low to high (both included) in steps of `step`."""
        return self._rng.randrange(low, high + 1, step)

    def pick(self, *options: T) -> T:
        """One of the options."""
        return self._rng.choice(options)

    def name(self) -> str:
        return self._rng.choice(NAMES)

    def names(self, count: int) -> list[str]:
        """`count` different names."""
        return self._rng.sample(NAMES, count)

    def item(self) -> str:
        return self._rng.choice(ITEMS)

    def items(self, count: int) -> list[str]:
        """`count` different plural nouns."""
        return self._rng.sample(ITEMS, count)

    def place(self) -> str:
        return self._rng.choice(PLACES)


TemplateFunction = Callable[[Draw], Drawn]


@dataclass(frozen=True, slots=True)
class Template:
    """A named template and its share of the draws."""

    name: str
    function: TemplateFunction
    weight: float


TEMPLATES: dict[str, Template] = {}


def template(weight: float = 1.0) -> Callable[[TemplateFunction], TemplateFunction]:
    """Register a template function under its own name."""

    def register(function: TemplateFunction) -> TemplateFunction:
        name = function.__name__
        if name in TEMPLATES:
            raise ValueError(f"template {name} is registered twice")
        TEMPLATES[name] = Template(name, function, weight)
        return function

    return register


def fmt(number: int) -> str:
    """A number with its thousands comma."""
    return f"{number:,}"


def drawn(question: str, value: int, *lines: str) -> Drawn:
    """Shorthand for a template's return value."""
    return Drawn(question, lines, value)

"""Runs ways of doing the same thing in turn, and keeps what each did a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Way = Callable[[], int]  # does its work and returns the tokens it made


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median, smallest and largest of a ratio taken round by round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of each way, one value a round."""

    rounds: Mapping[str, Sequence[float]]

    def rate(self, name: str) -> Ratio:
        return _ratio(self.rounds[name])

    def ratio(self, top: str, below: str) -> Ratio:
        """How many times the tokens/s of `below` the way `top` makes. Both ran in every round, one after the other."""
        return _ratio([a / b for a, b in zip(self.rounds[top], self.rounds[below], strict=True)])


def run_in_turn(ways: Mapping[str, Way], rounds: int, clock: Callable[[], float] = time.process_time) -> Rates:
    """Each way once to warm up, then all of them, one after the other, in every round.

    The clock is the CPU time of the process, so that other programs on the machine disturb little: with one thread it
    is the wall time of a machine of one's own.
    """
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = clock()
            tokens = way()
            found[name].append(tokens / (clock() - start))
    return Rates(found)


def _ratio(values: Sequence[float]) -> Ratio:
    return Ratio(statistics.median(values), min(values), max(values))

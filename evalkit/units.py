"""Acceptance in four units that cannot be mixed: length, accepted per step, mean rate, conditional rate.

The same draft at K=7 is "4.04", "3.04", "0.434" and, where every position is alike, "0.80": public reports mix all
four (with or without the target's own token; mean or conditional). Here each is a type of its own. Arithmetic and
comparison between two types, or with a bare number, raise TypeError; conversions are spelt out and need K.

| type | range | means |
|---|---|---|
| AcceptedLength | 1 .. K+1 tokens a step | accepted drafts plus the target's own token |
| AcceptedPerStep | 0 .. K drafts a step | without that token |
| AcceptanceRate | 0 .. 1 | accepted over proposed, of K drafts each step; falls with K by construction |
| ConditionalRate | 0 .. 1 | chance of one draft to be kept when those before it were |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

SLACK = 1e-9  # rounding of a division may pass an end of the range by this


def _same(one: Quantity, other: object, what: str) -> float:
    """The other's value, where both are of one type (and, for rates of K drafts, of one K)."""
    if type(other) is not type(one):
        raise TypeError(f"cannot {what} {type(one).__name__} and {type(other).__name__}: convert one of them first")
    assert isinstance(other, Quantity)
    if isinstance(one, AcceptanceRate) and isinstance(other, AcceptanceRate) and one.k != other.k:
        raise TypeError(f"cannot {what} acceptance rates of K={one.k} and K={other.k}: the rate falls with K")
    return other.value


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A number with its unit. `value` is the bare number, for arrays and for printing."""

    value: float
    what: ClassVar[str] = ""

    def _bound(self, low: float, high: float, hint: str = "") -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise ValueError(f"{self.what} is {self.value!r}, not a number")
        if not low - SLACK <= self.value <= high + SLACK:
            raise ValueError(f"{self.what} is {self.value:g}, expected {low:g} to {high:g}{hint}")

    def __eq__(self, other: object) -> bool:
        return self.value == _same(self, other, "compare")

    def __lt__(self, other: Self) -> bool:
        return self.value < _same(self, other, "compare")

    def __le__(self, other: Self) -> bool:
        return self.value <= _same(self, other, "compare")

    def __gt__(self, other: Self) -> bool:
        return self.value > _same(self, other, "compare")

    def __ge__(self, other: Self) -> bool:
        return self.value >= _same(self, other, "compare")

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.value))

    def __sub__(self, other: Self) -> float:
        """The difference, in the unit's own measure: a bare number, since it is no quantity of this range."""
        return self.value - _same(self, other, "subtract")

    def __truediv__(self, other: Self) -> float:
        """The ratio of two of one type."""
        return self.value / _same(self, other, "divide")

    def _refuse(self, other: object) -> Any:
        raise TypeError(f"cannot add, subtract, multiply or divide {type(self).__name__} and {type(other).__name__}")

    __add__ = __radd__ = __rsub__ = __mul__ = __rmul__ = __rtruediv__ = _refuse


@dataclass(frozen=True, slots=True, eq=False)
class OfK(Quantity):
    """A Quantity that has a meaning only with K, the drafts proposed in a step."""

    k: int

    def _check_k(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ValueError(f"K is {self.k!r}, expected a whole number from 1")


@dataclass(frozen=True, slots=True, eq=False)
class AcceptedLength(OfK):
    """Tokens a verify step, the target's own counted: 1 .. K+1."""

    what: ClassVar[str] = "an accepted length"

    def __post_init__(self) -> None:
        self._check_k()
        self._bound(1, self.k + 1, "; a rate, or accepted drafts without the target's token, is no length")

    def per_step(self) -> AcceptedPerStep:
        return AcceptedPerStep(max(self.value - 1, 0.0), self.k)

    def rate(self) -> AcceptanceRate:
        return self.per_step().rate()

    def conditional(self) -> ConditionalRate:
        """The one conditional rate c with 1 + c + c^2 + ... + c^K = length; what a forced draw with it has."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _geometric(middle, self.k) < self.value else (low, middle)
        return ConditionalRate((low + high) / 2)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptedPerStep(OfK):
    """Accepted drafts a verify step, the target's own token not counted: 0 .. K."""

    what: ClassVar[str] = "accepted drafts a step"

    def __post_init__(self) -> None:
        self._check_k()
        self._bound(0, self.k)

    def length(self) -> AcceptedLength:
        return AcceptedLength(1 + self.value, self.k)

    def rate(self) -> AcceptanceRate:
        return AcceptanceRate(self.value / self.k, self.k)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceRate(OfK):
    """Accepted over proposed drafts, K proposed in each step: a fraction of 1."""

    what: ClassVar[str] = "an acceptance rate"

    def __post_init__(self) -> None:
        self._check_k()
        self._bound(0, 1, "; per cent are given as a fraction" if self.value > 1 else "")

    def per_step(self) -> AcceptedPerStep:
        return AcceptedPerStep(min(self.value, 1.0) * self.k, self.k)

    def length(self) -> AcceptedLength:
        return self.per_step().length()


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalRate(Quantity):
    """Chance of one draft to be accepted when all before it were: a fraction of 1."""

    what: ClassVar[str] = "a conditional acceptance rate"

    def __post_init__(self) -> None:
        self._bound(0, 1, "; per cent are given as a fraction" if self.value > 1 else "")

    def length(self, k: int) -> AcceptedLength:
        """Accepted length where every position has this rate: 1 + c + ... + c^K."""
        return AcceptedLength(_geometric(self.value, k), k)


def _geometric(rate: float, k: int) -> float:
    return math.fsum(rate**i for i in range(k + 1))


UNITS = {
    "accepted_length": "tokens a step, the target's own counted (InferenceX, vLLM, ATOM; SGLang accept length)",
    "accepted_per_step": "accepted drafts a step, the target's own token not counted",
    "acceptance_rate": "accepted over proposed drafts (ATOM, vLLM; newer SGLang)",
    "length_over_k_plus_1": "accepted length over K+1 (older SGLang: bonus token in the numerator)",
    "conditional_rate": "one chance for every position, given those before",
}


def imported(value: float, *, unit: str, k: int) -> AcceptedLength:
    """A number from elsewhere as accepted length. `unit` (one of UNITS) must be said: nothing is guessed.

    The conversions are those of the field's conventions (see UNITS). Raises ValueError for an unknown or
    absent unit and for a value outside the unit's range.
    """
    if unit == "accepted_length":
        return AcceptedLength(value, k)
    if unit == "accepted_per_step":
        return AcceptedPerStep(value, k).length()
    if unit == "acceptance_rate":
        return AcceptanceRate(value, k).length()
    if unit == "length_over_k_plus_1":
        return AcceptedLength(value * (k + 1), k)
    if unit == "conditional_rate":
        return ConditionalRate(value).length(k)
    raise ValueError(f"{value!r} has the unit {unit or 'none'!r}, expected one of {', '.join(UNITS)}")


def from_counters(*, accepted: int, drafts: int, steps: int, k: int) -> AcceptedLength:
    """Accepted length of engine counters (differences of two reads): 1 + accepted / steps.

    Raises ValueError unless 0 <= accepted <= drafts <= K * steps, so no rate above 1 gets in.
    """
    counts = (accepted, drafts, steps)
    if any(type(n) is not int for n in counts) or steps < 1 or not 0 <= accepted <= drafts <= k * steps:
        raise ValueError(
            f"expected 0 <= accepted <= drafts <= K * steps, found accepted={accepted} drafts={drafts} "
            f"steps={steps} K={k}"
        )
    return AcceptedLength(1 + accepted / steps, k)

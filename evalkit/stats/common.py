"""What every module of the package shares: intervals, tests against a bound, and input that is refused.

A ValueError says what was found. Nothing here or in the package returns NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

Numbers = Sequence[float] | np.ndarray


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTest:
    """Where a quantity lies against a bound, tested to both sides.

    p_above is the p-value of H0 "at or below the bound" (small: shown to be above it); p_below is that of
    H0 "at or above the bound" (small: shown to be below it).
    """

    statistic: float
    p_above: float
    p_below: float


def number(value: float, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:g}, not in [{low:g}, {high:g}]")
    return value


def whole(value: float, name: str, low: float = 0, high: float = math.inf) -> int:
    found = number(value, name, low, high)
    if found != int(found):
        raise ValueError(f"{name} is {found:g}, not a whole number")
    return int(found)


def array_of(values: Numbers, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, not a non-empty list of numbers")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    if (array < 0).any():
        raise ValueError(f"{name} holds a negative number")
    return array


def open_share(value: float, name: str) -> float:
    value = number(value, name)
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value:g}, not between 0 and 1")
    return value


def two_sided(level: float) -> float:
    return float(special.ndtri(0.5 + open_share(level, "level") / 2))


def crossing(f: Callable[[float], float], above: float, below: float) -> float:
    """Where f changes from > 0 (at `above`) to <= 0 (at `below`), by bisection of an interval below 2 to 1e-13."""
    for _ in range(44):
        middle = (above + below) / 2
        if f(middle) > 0:
            above = middle
        else:
            below = middle
    return (above + below) / 2


def score_test(distance: float, variance: float) -> BoundTest:
    if variance > 0:
        z = distance / math.sqrt(variance)
    else:  # only at a bound of -1, 0 or 1 that the data meet exactly, or miss for certain
        z = 0.0 if abs(distance) < 1e-12 else math.copysign(40.0, distance)
    return BoundTest(statistic=z, p_above=float(special.ndtr(-z)), p_below=float(special.ndtr(z)))


def correlated_t(covariance: np.ndarray, df: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of t values with the correlation of `covariance` [J, J], all variances positive: [draws, J]."""
    sd = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(sd, sd))
    drawn = rng.standard_normal((draws, len(sd))) @ (vectors * np.sqrt(values.clip(0))).T
    return drawn if math.isinf(df) else drawn / np.sqrt(rng.chisquare(df, (draws, 1)) / df)

"""One line of the audit: a rule, a setting, the rate found and the rate promised; and how much is simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Simulated runs: of rules on counts, on clusters, on resampled clusters, of sequential runs."""

    counts: int = 20_000
    clusters: int = 4_000
    resampled: int = 1_500
    sequential: int = 4_000
    draws: int = 999  # resamples within one bootstrap or permutation


QUICK = Sizes(counts=6_000, clusters=600, resampled=150, sequential=300, draws=199)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    rule: str
    setting: str
    what: str  # size | coverage
    rate: float
    runs: int
    low: float
    high: float

    @property
    def slack(self) -> float:
        """Three simulation standard errors at the nearer limit."""
        at = self.high if self.rate > self.high or self.low == 0 else self.low
        return 3 * math.sqrt(at * (1 - at) / self.runs)

    @property
    def ok(self) -> bool:
        return self.low - self.slack <= self.rate <= self.high + self.slack


def coverage(rule: str, setting: str, rate: float | np.floating, runs: int, low: float, high: float) -> Row:
    return Row(rule=rule, setting=setting, what="coverage", rate=float(rate), runs=runs, low=low, high=high)


def size(rule: str, setting: str, rate: float | np.floating, runs: int) -> Row:
    return Row(rule=rule, setting=setting, what="size", rate=float(rate), runs=runs, low=0.0, high=ALPHA)

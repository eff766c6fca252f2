"""Repeats of the same unit, and repeats of a whole run.

A unit answered several times is one cluster: its answers are averaged first, and only units count as independent.
Sources: one-way analysis of variance (Searle, Casella, McCulloch, Variance Components, 1992, 3.6); effective n
in an interval: Korn and Graubard, Surv. Methodol. 24 (1998) 193; Tango as in `paired`; two variances, one of them
measured: Cochran and Cox, Experimental Designs, 1957, 4.14, and Cochran, Biometrics 20 (1964) 191.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import (
    BoundTest,
    Interval,
    Numbers,
    array_of,
    crossing,
    number,
    open_share,
    score_test,
    two_sided,
    whole,
)  # fmt: skip
from evalkit.stats.paired import restricted_variance, tango_interval, tango_test
from evalkit.stats.proportion import exact_interval
from evalkit.stats.ratio import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedMean:
    """Mean over units of each unit's mean score. None: what one unit, one repeat or no spread cannot show.

    `within` and `between` are variances: of one answer around its unit's mean, and of units around the mean with the
    share of `within` taken out. `se` is None at the boundary (all scores 0, or all 1), where only the interval speaks.
    """

    mean: float
    se: float | None
    interval: Interval
    units: int
    answers: int
    within: float | None
    between: float | None
    design_effect: float | None  # variance of the mean over that of as many independent answers


def repeated_mean(scores: Numbers, unit: Numbers, level: float = 0.95) -> RepeatedMean:
    """Mean of scores in [0, 1] with the unit as cluster; `unit` names each score's unit by any number.

    The interval is Wilson's with as many independent units as give the same variance; with one answer each it is
    `wilson` itself, and at the boundary the exact one.
    """
    y = array_of(scores, "scores")
    ids = np.asarray(unit)
    if ids.shape != y.shape:
        raise ValueError(f"{y.size} scores for {ids.size} units")
    if (y > 1).any():
        raise ValueError(f"a score is {y.max():g}, above 1")
    _, which = np.unique(ids, return_inverse=True)
    n = np.bincount(which)
    means = np.bincount(which, weights=y) / n
    m, mean = n.size, float(means.mean())
    spread = float(means.var(ddof=1)) if m > 1 else None
    within = None
    if y.size > m:
        within = float(((y - means[which]) ** 2).sum()) / (y.size - m)
    between = None if spread is None or within is None else max(0.0, spread - within * float((1 / n).mean()))
    boundary = mean in (0.0, 1.0)
    se = None if spread is None or boundary else math.sqrt(spread / m)
    naive = y.var() / (y.size - 1) if y.size > 1 else 0.0
    effect = se**2 / float(naive) if se is not None and naive > 0 else None
    if boundary:
        interval = exact_interval(m if mean else 0, m, level)
    else:
        equal = m if not spread else mean * (1 - mean) * m / (m - 1) * m / spread
        interval = _wilson(mean, equal, level)
    return RepeatedMean(
        mean=mean, se=se, interval=interval, units=m, answers=int(y.size),
        within=within, between=between, design_effect=effect,
    )  # fmt: skip


def _wilson(p: float, n: float, level: float) -> Interval:
    z2 = two_sided(level) ** 2
    centre, scale = p + z2 / (2 * n), 1 + z2 / n
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    return Interval(max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def _differences(differences: Numbers) -> np.ndarray:
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or d.size == 0 or not (np.abs(d) <= 1).all():
        raise ValueError("differences are not a non-empty list of numbers in [-1, 1]")
    return d


def _repeat_variance(d: np.ndarray, bound: float) -> float:
    """n^2 times the variance of the mean under "the mean is bound": the spread seen, plus what Tango's restricted
    estimate adds for whole units that must have changed although few were seen to."""
    up, down, n = float(d.clip(0).sum()), float((-d).clip(0).sum()), d.size
    plain = up + down - (up - down) ** 2 / n
    return n * float(d.var()) + max(0.0, restricted_variance(up, down, n, bound) - plain)


def paired_repeats_test(differences: Numbers, bound: float, *, sd: float = 0.0, measured_by: int = 2) -> BoundTest:
    """Test of the mean of per-unit differences (each a difference of two averages over repeats, in [-1, 1])
    against `bound`. With one answer a side it is `tango_test`. `sd` is a run-to-run standard deviation of the mean
    beyond the flips of single answers, measured by so many runs, as in `paired_runs_test`."""
    d, bound = _differences(differences), number(bound, "bound", -1, 1)
    if number(sd, "sd", 0) > 0:
        return _two_error_test(float(d.mean()) - bound, _repeats_error(d, bound, sd, measured_by))
    if np.isin(d, (-1.0, 0.0, 1.0)).all():
        return tango_test(int((d == 1).sum()), int((d == -1).sum()), d.size, bound)
    return score_test(float(d.sum()) - d.size * bound, _repeat_variance(d, bound))


def paired_repeats_interval(
    differences: Numbers, level: float = 0.95, *, sd: float = 0.0, measured_by: int = 2
) -> Interval:
    """The bounds that `paired_repeats_test` does not refuse, to both sides, within [-1, 1]."""
    d, z = _differences(differences), two_sided(level)
    if number(sd, "sd", 0) > 0:
        plain = paired_repeats_interval(d, level)
        return _two_error_interval(float(d.mean()), plain, z, lambda bound: _repeats_error(d, bound, sd, measured_by))
    total, n, found = float(d.sum()), d.size, float(d.mean())
    low = -1.0 if found == -1 else crossing(lambda b: total - n * b - z * math.sqrt(_repeat_variance(d, b)), -1, found)
    high = 1.0 if found == 1 else crossing(lambda b: n * b - total - z * math.sqrt(_repeat_variance(d, b)), 1, found)
    return Interval(low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVariation:
    """Scores of the same units by the same setting, run after run. `sd` is that of one run's score around the mean
    of runs; its interval is by chi-square. `expected_sd` is what independent flips of single answers would give, and
    `excess_sd` what is left: a run-wide effect, which no number of units averages away."""

    runs: int
    mean: float
    sd: float
    sd_interval: Interval
    expected_sd: float | None = None
    excess_sd: float | None = None

    def estimate(self) -> Estimate:
        """Mean of runs as an estimate on these units."""
        return Estimate(value=self.mean, se=self.sd / math.sqrt(self.runs), df=self.runs - 1)


def run_variation(scores: Numbers, level: float = 0.95) -> RunVariation:
    """From at least two runs' scores alone."""
    x = array_of(scores, "scores")
    if x.size < 2:
        raise ValueError("one run shows no run-to-run variation")
    df, sd, tail = x.size - 1, float(x.std(ddof=1)), (1 - open_share(level, "level")) / 2
    limits = [sd * math.sqrt(df / float(special.chdtri(df, q))) for q in (tail, 1 - tail)]
    return RunVariation(runs=x.size, mean=float(x.mean()), sd=sd, sd_interval=Interval(*limits))


def run_variation_by_unit(scores: np.ndarray, level: float = 0.95) -> RunVariation:
    """From every unit's score in every run: scores [runs, units]."""
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or not np.isfinite(table).all():
        raise ValueError(f"scores have shape {table.shape} or hold NaN; expected [runs, units] with two runs or more")
    plain = run_variation(table.mean(axis=1), level)
    expected = math.sqrt(float(table.var(axis=0, ddof=1).mean()) / table.shape[1])
    excess = math.sqrt(max(0.0, plain.sd**2 - expected**2))
    return RunVariation(
        runs=plain.runs, mean=plain.mean, sd=plain.sd, sd_interval=plain.sd_interval,
        expected_sd=expected, excess_sd=excess,
    )  # fmt: skip


def with_run_variation(x: Estimate, sd: float, runs: int, measured_by: int) -> Estimate:
    """x with a run-to-run standard deviation added to its error: sd / sqrt(runs) for a mean over `runs` runs, the sd
    itself measured by `measured_by` runs. Degrees of freedom by Satterthwaite. For x whose error already holds the
    flips of single answers (a paired difference), give the excess sd only."""
    measured_by = whole(measured_by, "measured_by", 2)
    part = number(sd, "sd", 0) ** 2 / whole(runs, "runs", 1)
    total = x.se**2 + part
    below = (0.0 if math.isinf(x.df) else x.se**4 / x.df) + part**2 / (measured_by - 1)
    return Estimate(value=x.value, se=math.sqrt(total), df=total**2 / below if below > 0 else math.inf)


def paired_runs_test(up: int, down: int, n: int, bound: float, *, sd: float, measured_by: int) -> BoundTest:
    """`tango_test` with a run-to-run standard deviation `sd` of the difference, beyond the flips of single answers and
    measured by so many runs, added to its error. With sd 0 it is that test.

    The p-value is Cochran and Cox's: quantiles of the normal (for Tango's variance) and of t (for sd, measured_by - 1
    degrees of freedom) weighted by the variances. Satterthwaite's single t passes up to 8 % at alpha = 5 % where sd is
    large and measured by two runs, since an sd that came out small by chance looks as if it were known.
    """
    if number(sd, "sd", 0) == 0:
        return tango_test(up, down, n, bound)
    return _two_error_test((up - down) / n - bound, _runs_error(up, down, n, bound, sd, measured_by))


def paired_runs_interval(up: int, down: int, n: int, *, sd: float, measured_by: int, level: float = 0.95) -> Interval:
    """The bounds that `paired_runs_test` does not refuse, to both sides, within [-1, 1]."""
    plain, z, found = tango_interval(up, down, n, level), two_sided(level), (up - down) / n
    if number(sd, "sd", 0) == 0:
        return plain
    return _two_error_interval(found, plain, z, lambda bound: _runs_error(up, down, n, bound, sd, measured_by))


@dataclass(frozen=True, slots=True)
class _TwoErrors:
    """Two independent parts of a variance: one known, one measured with `df` degrees of freedom."""

    known: float
    measured: float
    df: int

    @property
    def se(self) -> float:
        return math.sqrt(self.known + self.measured)

    def quantile(self, u: float) -> float:
        """Of Cochran and Cox's weighted statistic, where the normal has the quantile u >= 0."""
        t = -float(special.stdtrit(self.df, special.ndtr(-u)))
        return (self.known * u + self.measured * t) / (self.known + self.measured)


def _two_error_test(gap: float, error: _TwoErrors) -> BoundTest:
    """Of a difference that lies `gap` above its bound."""
    t = gap / error.se
    u = math.copysign(crossing(lambda u: error.quantile(u) - abs(t), abs(t), 0.0), t)  # the normal with the same p
    return BoundTest(statistic=t, p_above=float(special.ndtr(-u)), p_below=float(special.ndtr(u)))


def _two_error_interval(found: float, plain: Interval, z: float, at: Callable[[float], _TwoErrors]) -> Interval:
    """The bounds that such a test does not refuse; `at` gives the error at a bound, `plain` the interval without the
    measured part."""

    def miss(bound: float, side: int) -> float:
        error = at(bound)
        return side * (found - bound) - error.quantile(z) * error.se

    low = crossing(lambda b: miss(b, 1), -1.0, plain.low) if miss(-1.0, 1) > 0 else -1.0
    high = crossing(lambda b: miss(b, -1), 1.0, plain.high) if miss(1.0, -1) > 0 else 1.0
    return Interval(low, high)


def _repeats_error(d: np.ndarray, bound: float, sd: float, measured_by: int) -> _TwoErrors:
    return _TwoErrors(_repeat_variance(d, bound) / d.size**2, sd**2, whole(measured_by, "measured_by", 2) - 1)


def _runs_error(up: int, down: int, n: int, bound: float, sd: float, measured_by: int) -> _TwoErrors:
    tango_test(up, down, n, bound)  # refuses what are no pairs
    known = restricted_variance(up, down, n, bound) / n**2
    return _TwoErrors(known, sd**2, whole(measured_by, "measured_by", 2) - 1)


def next_run_interval(variation: RunVariation, level: float = 0.95) -> Interval:
    """Where one more run on the same units falls with this chance, if nothing has changed."""
    t = float(special.stdtrit(variation.runs - 1, 0.5 + open_share(level, "level") / 2))
    half = t * variation.sd * math.sqrt(1 + 1 / variation.runs)
    return Interval(variation.mean - half, variation.mean + half)

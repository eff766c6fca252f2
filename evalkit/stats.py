"""Intervals and tests over counts and arrays: no files, no domain words.

Every function refuses what it cannot answer (NaN, empty, negative, mismatched input) with a ValueError
that says what was found; none of them returns NaN. All proportions and differences are fractions of 1.

Sources
- Wilson, J. Am. Stat. Assoc. 22 (1927) 209: score interval of a proportion.
- McNemar, Psychometrika 12 (1947) 153; mid-p: Fagerland, Lydersen, Laake, BMC Med. Res. Methodol. 13 (2013) 91.
- Tango, Stat. Med. 17 (1998) 891: score test and interval for a difference of paired proportions.
- Miettinen and Nurminen, Stat. Med. 4 (1985) 213: score test and interval for a difference of two proportions.
  statsmodels has it (test_proportions_2indep, confint_proportions_2indep) and is this module's twin in the
  tests; it is not called here because it divides by zero when both counts are 0 or n, and costs 1.4 s to import.
- Cochran, Sampling Techniques (1977) 6.3 and 9A: ratio estimator with clusters; Kish: design effect.
- Fieller, J. R. Stat. Soc. B 16 (1954) 175: test and interval of a ratio of two means.
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


def _number(value: float, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:g}, not in [{low:g}, {high:g}]")
    return value


def _count(value: float, name: str, low: float = 0, high: float = math.inf) -> int:
    number = _number(value, name, low, high)
    if number != int(number):
        raise ValueError(f"{name} is {number:g}, not a whole number")
    return int(number)


def _array(values: Numbers, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, not a non-empty list of numbers")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    if (array < 0).any():
        raise ValueError(f"{name} holds a negative number")
    return array


def _open_share(value: float, name: str) -> float:
    value = _number(value, name)
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value:g}, not between 0 and 1")
    return value


def _two_sided(level: float) -> float:
    return float(special.ndtri(0.5 + _open_share(level, "level") / 2))


def _crossing(f: Callable[[float], float], above: float, below: float) -> float:
    """Where f changes from > 0 (at `above`) to <= 0 (at `below`), by bisection of an interval below 2 to 1e-13."""
    for _ in range(44):
        middle = (above + below) / 2
        if f(middle) > 0:
            above = middle
        else:
            below = middle
    return (above + below) / 2


# --- one proportion


def proportion_se(count: int, n: int) -> float | None:
    """Standard error as lm-eval prints it: sqrt(p (1 - p) / (n - 1)). None for n = 1, where it has no value."""
    n = _count(n, "n", 1)
    count = _count(count, "count", 0, n)
    p = count / n
    return math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else None


def wilson(count: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval; within [0, 1] and never empty, also for count 0, count n and n = 1."""
    n = _count(n, "n", 1)
    count = _count(count, "count", 0, n)
    z2 = _two_sided(level) ** 2
    p = count / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return Interval(0.0 if count == 0 else centre - half, 1.0 if count == n else centre + half)


def recover_count(score: float, n: int, decimals: int = 4) -> int:
    """The one count of n that rounds to a published score. ValueError when none or several do."""
    score = _number(score, "score", 0, 1)
    n = _count(n, "n", 1)
    half = 0.5 * 10.0**-decimals * (1 + 1e-9)
    first, last = math.ceil((score - half) * n), math.floor((score + half) * n)
    first, last = max(first, 0), min(last, n)
    if first > last:
        raise ValueError(f"no count of {n} rounds to {score:.{decimals}f}")
    if first < last:
        raise ValueError(f"counts {first} to {last} of {n} all round to {score:.{decimals}f}")
    return first


# --- two proportions, paired: `up` pairs went from 0 to 1, `down` from 1 to 0, the others are equal


def _pairs(up: int, down: int, n: int) -> tuple[int, int, int]:
    n = _count(n, "pairs", 1)
    up, down = _count(up, "up", 0, n), _count(down, "down", 0, n)
    if up + down > n:
        raise ValueError(f"{up} + {down} discordant pairs are more than {n} pairs")
    return up, down, n


def mcnemar_exact(up: int, down: int) -> float:
    """Two-sided exact p-value of "as many up as down": binomial with 1/2 on the discordant pairs."""
    up, down = _count(up, "up"), _count(down, "down")
    total = up + down
    return 1.0 if total == 0 else min(1.0, 2 * float(special.bdtr(min(up, down), total, 0.5)))


def mcnemar_midp(up: int, down: int) -> float:
    """Mid-p form of `mcnemar_exact`: less conservative, size close to alpha."""
    up, down = _count(up, "up"), _count(down, "down")
    total = up + down
    if total == 0:
        return 1.0
    least = min(up, down)
    tail = float(special.bdtr(least, total, 0.5))
    below = float(special.bdtr(least - 1, total, 0.5)) if least else 0.0
    return min(1.0, tail + below)  # twice the tail, less the chance of the table itself


def _tango_variance(up: int, down: int, n: int, difference: float) -> float:
    """n times Tango's restricted variance: n (2 q + d (1 - d)), q the restricted share of `down`."""
    a = 2 * n
    b = -up - down + (2 * n - up + down) * difference
    c = -down * difference * (1 - difference)
    q = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    return max(n * (2 * q + difference * (1 - difference)), 0.0)


def discordant_at(up: int, down: int, n: int, bound: float) -> float:
    """Share of discordant pairs that is most likely when the difference is `bound`: what a test against the
    bound rests on. Above 0 for a bound other than 0, also when no discordant pair was seen."""
    up, down, n = _pairs(up, down, n)
    return _tango_variance(up, down, n, _number(bound, "bound", -1, 1)) / n


def tango_test(up: int, down: int, n: int, bound: float) -> BoundTest:
    """Tango's score test of the paired difference (up - down) / n against `bound`; non-inferiority by a
    margin is bound = -margin and p_above."""
    up, down, n = _pairs(up, down, n)
    bound = _number(bound, "bound", -1, 1)
    return _score_test(up - down - n * bound, _tango_variance(up, down, n, bound))


def tango_interval(up: int, down: int, n: int, level: float = 0.95) -> Interval:
    """Tango's score interval of the paired difference (up - down) / n."""
    up, down, n = _pairs(up, down, n)
    z = _two_sided(level)

    def distance(d: float) -> float:
        return up - down - n * d

    def spread(d: float) -> float:
        return z * math.sqrt(_tango_variance(up, down, n, d))

    found = (up - down) / n
    low = -1.0 if down == n else _crossing(lambda d: distance(d) - spread(d), -1.0, found)
    high = 1.0 if up == n else _crossing(lambda d: -distance(d) - spread(d), 1.0, found)
    return Interval(low, high)


# --- two proportions, unpaired


def _restricted_variance(count1: int, n1: int, count2: int, n2: int, difference: float, exact: bool) -> float:
    """Variance of p1 - p2 at the most likely p1, p2 with p1 - p2 = difference, times N / (N - 1).

    p2 is a root of Miettinen and Nurminen's cubic. statsmodels' linear coefficient has count2 where n2
    belongs (its issue 10269, open in 0.15.0); exact=False repeats that wherever it gives proportions.
    """
    d, total, count = difference, n1 + n2, count1 + count2
    square = ((n1 + 2 * n2) * d - total - count) / (3 * total)
    linear = (((n2 if exact else count2) * d - total - 2 * count2) * d + count) / (3 * total)
    v = square**3 - 1.5 * linear * square + count2 * d * (1 - d) / (2 * total)
    u = math.copysign(math.sqrt(max(square * square - linear, 0.0)), v)
    cosine = v / u**3 if u else 1.0
    p2 = 2 * u * math.cos((math.pi + math.acos(min(1.0, max(-1.0, cosine)))) / 3) - square
    if not exact and not (abs(cosine) <= 1 and max(0.0, -d) <= p2 <= min(1.0, 1 - d)):
        return _restricted_variance(count1, n1, count2, n2, d, exact=True)
    p2 = min(1.0, 1 - d, max(0.0, -d, p2))
    p1 = min(1.0, max(0.0, p2 + d))
    return (p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2) * total / (total - 1)


def two_proportion_test(count1: int, n1: int, count2: int, n2: int, bound: float, *, exact: bool = False) -> BoundTest:
    """Miettinen-Nurminen score test of p1 - p2 against `bound`; p_above is statsmodels'
    test_proportions_2indep(value=bound, method="score", compare="diff", alternative="larger").

    The published expected values are statsmodels', so its slip in the restricted estimate is the default;
    exact=True is the method as published. At 1319 questions and p near 0.96 p-values differ by under 2e-4.
    """
    n1, n2 = _count(n1, "n1", 1), _count(n2, "n2", 1)
    count1, count2 = _count(count1, "count1", 0, n1), _count(count2, "count2", 0, n2)
    bound = _number(bound, "bound", -1, 1)
    variance = _restricted_variance(count1, n1, count2, n2, bound, exact)
    return _score_test(count1 / n1 - count2 / n2 - bound, variance)


def two_proportion_interval(
    count1: int, n1: int, count2: int, n2: int, level: float = 0.95, *, exact: bool = False
) -> Interval:
    """Miettinen-Nurminen score interval of p1 - p2 (statsmodels' confint_proportions_2indep, "score");
    `exact` as in `two_proportion_test`."""
    n1, n2 = _count(n1, "n1", 1), _count(n2, "n2", 1)
    count1, count2 = _count(count1, "count1", 0, n1), _count(count2, "count2", 0, n2)
    z = _two_sided(level)
    found = count1 / n1 - count2 / n2

    def spread(d: float) -> float:
        return z * math.sqrt(_restricted_variance(count1, n1, count2, n2, d, exact))

    low = -1.0 if found == -1 else _crossing(lambda d: found - d - spread(d), -1.0, found)
    high = 1.0 if found == 1 else _crossing(lambda d: d - found - spread(d), 1.0, found)
    return Interval(low, high)


def _score_test(distance: float, variance: float) -> BoundTest:
    if variance > 0:
        z = distance / math.sqrt(variance)
    else:  # only at a bound of -1, 0 or 1 that the data meet exactly, or miss for certain
        z = 0.0 if abs(distance) < 1e-12 else math.copysign(40.0, distance)
    return BoundTest(statistic=z, p_above=float(special.ndtr(-z)), p_below=float(special.ndtr(z)))


# --- what a sample can show: one-sided, normal approximation


def _quantiles(alpha: float, power: float) -> float:
    return float(-special.ndtri(_open_share(alpha, "alpha")) + special.ndtri(_open_share(power, "power")))


def mde_paired(n: int, discordant: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest paired difference shown with `power`: (z_alpha + z_power) sqrt(discordant / n), where
    `discordant` is the share of pairs that differ."""
    n, discordant = _count(n, "n", 1), _number(discordant, "discordant share", 0, 1)
    return _quantiles(alpha, power) * math.sqrt(discordant / n)


def mde_unpaired(p: float, n1: int, n2: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest difference of two proportions near p shown with `power` from n1 and n2 units."""
    p, n1, n2 = _number(p, "p", 0, 1), _count(n1, "n1", 1), _count(n2, "n2", 1)
    return _quantiles(alpha, power) * math.sqrt(p * (1 - p) * (1 / n1 + 1 / n2))


def needed_pairs(discordant: float, distance: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Pairs to tell a difference `distance` away from the bound; None when it lies on the bound."""
    discordant, distance = _number(discordant, "discordant share", 0, 1), abs(_number(distance, "distance"))
    if distance == 0:
        return None
    return max(1, math.ceil(discordant * (_quantiles(alpha, power) / distance) ** 2))


def needed_n(p1: float, p2: float, n2: int, distance: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Units of the first sample to tell a difference `distance` away from the bound, the second sample
    fixed at n2; None when no number of them can."""
    p1, p2, n2 = _number(p1, "p1", 0, 1), _number(p2, "p2", 0, 1), _count(n2, "n2", 1)
    room = (abs(_number(distance, "distance")) / _quantiles(alpha, power)) ** 2 - p2 * (1 - p2) / n2
    return max(1, math.ceil(p1 * (1 - p1) / room)) if room > 0 else None


# --- ratio of sums with clusters, and ratios of two estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate:
    """sum(totals) / sum(sizes). se, interval and design effect are None for a single cluster; the design
    effect also when the units' squares are not given or the units do not vary."""

    ratio: float
    se: float | None
    interval: Interval | None
    design_effect: float | None
    clusters: int
    units: float


def clustered_ratio(
    totals: Numbers, sizes: Numbers, squares: Numbers | None = None, level: float = 0.95
) -> RatioEstimate:
    """Ratio estimator with clusters: se = sqrt(m / (m - 1) * sum (A_i - R V_i)^2) / sum V_i, interval by t
    with m - 1 degrees of freedom, m the clusters of non-zero size.

    `squares` holds each cluster's sum of squares over its units; with it the design effect is the
    clustered variance over that of as many independent units.
    """
    a, v = _array(totals, "totals"), _array(sizes, "sizes")
    q = None if squares is None else _array(squares, "squares")
    if a.shape != v.shape or (q is not None and q.shape != v.shape):
        raise ValueError(f"lengths differ: {a.size} totals, {v.size} sizes, {'no' if q is None else q.size} squares")
    if (a[v == 0] != 0).any():
        raise ValueError("a cluster without units has a total")
    level = _open_share(level, "level")
    units, m = float(v.sum()), int((v > 0).sum())
    if m == 0:
        raise ValueError("all clusters are empty")
    ratio = float(a.sum()) / units
    if m == 1:
        return RatioEstimate(ratio=ratio, se=None, interval=None, design_effect=None, clusters=1, units=units)
    residual = a - ratio * v
    se = math.sqrt(m / (m - 1) * float(residual @ residual)) / units
    half = float(special.stdtrit(m - 1, 0.5 + level / 2)) * se
    effect = None
    if q is not None and units > 1:
        naive = max(float(q.sum()) / units - ratio**2, 0.0) / (units - 1)
        effect = se**2 / naive if naive > 1e-18 else None
    interval = Interval(ratio - half, ratio + half)
    return RatioEstimate(ratio=ratio, se=se, interval=interval, design_effect=effect, clusters=m, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its standard error; `df` degrees of freedom of the latter (infinite: known or assumed)."""

    value: float
    se: float
    df: float = math.inf

    def __post_init__(self) -> None:
        _number(self.value, "value")
        _number(self.se, "standard error", 0)
        if not self.df > 0:
            raise ValueError(f"degrees of freedom are {self.df}")


def _welch(part1: float, df1: float, part2: float, df2: float) -> float:
    """Satterthwaite's degrees of freedom of a sum of two variances."""
    below = part1**2 / df1 + part2**2 / df2
    return (part1 + part2) ** 2 / below if below > 0 else math.inf


def _t_cdf(df: float, x: float) -> float:
    return float(special.ndtr(x) if math.isinf(df) else special.stdtr(df, x))


def ratio_test(x: Estimate, reference: Estimate, bound: float) -> BoundTest:
    """Is x / reference above or below `bound`? Both uncertain and independent; Fieller's statistic
    (x - bound * reference) / sqrt(se_x^2 + bound^2 se_reference^2), which needs no linearised ratio."""
    bound = _number(bound, "bound", 0)
    if reference.value <= 0:
        raise ValueError(f"reference is {reference.value:g}, not positive")
    distance = x.value - bound * reference.value
    part1, part2 = x.se**2, (bound * reference.se) ** 2
    if part1 + part2 == 0:
        return _score_test(distance, 0.0)
    t = distance / math.sqrt(part1 + part2)
    df = _welch(part1, x.df, part2, reference.df)
    return BoundTest(statistic=t, p_above=_t_cdf(df, -t), p_below=_t_cdf(df, t))


def ratio_interval(x: Estimate, reference: Estimate, level: float = 0.95) -> Interval | None:
    """Fieller's interval of x / reference; None when the reference is too uncertain for a bounded one."""
    if reference.value <= 0:
        raise ValueError(f"reference is {reference.value:g}, not positive")
    df = _welch(x.se**2, x.df, (x.value / reference.value * reference.se) ** 2, reference.df)
    tail = 0.5 + _open_share(level, "level") / 2
    t = float(special.ndtri(tail) if math.isinf(df) else special.stdtrit(df, tail))
    ratio = x.value / reference.value
    g = (t * reference.se / reference.value) ** 2
    if g >= 1:
        return None
    half = t / reference.value * math.sqrt(x.se**2 * (1 - g) + (ratio * reference.se) ** 2)
    return Interval((ratio - half) / (1 - g), (ratio + half) / (1 - g))


def wasserstein_1(counts1: Numbers, counts2: Numbers) -> float:
    """Wasserstein-1 distance of two histograms over 0, 1, 2, ..., in units of their values: the sum of the
    absolute differences of the two distribution functions. The shorter one is padded with zeros."""
    h1, h2 = _array(counts1, "first histogram"), _array(counts2, "second histogram")
    if h1.sum() == 0 or h2.sum() == 0:
        raise ValueError("a histogram without counts has no distribution")
    size = max(h1.size, h2.size)
    c1 = np.cumsum(np.pad(h1 / h1.sum(), (0, size - h1.size)))
    c2 = np.cumsum(np.pad(h2 / h2.sum(), (0, size - h2.size)))
    return float(np.abs(c1 - c2).sum())


def calibration_error(predicted: Numbers, happened: Numbers, bins: int = 10) -> float:
    """Expected calibration error: sum over equal-width bins of share * |mean predicted - rate|."""
    p, y = _array(predicted, "predictions"), _array(happened, "labels")
    bins = _count(bins, "bins", 1)
    if p.shape != y.shape:
        raise ValueError(f"{p.size} predictions for {y.size} labels")
    if (p > 1).any() or not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("a prediction above 1, or a label that is neither 0 nor 1")
    which = np.minimum((p * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(which, weights=p - y, minlength=bins)
    return float(np.abs(gaps).sum() / p.size)

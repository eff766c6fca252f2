"""A ratio of sums with clusters, and the ratio of two uncertain estimates.

Sources
- Cochran, Sampling Techniques (1977) 6.3 and 9A: ratio estimator with clusters; Kish: design effect.
- Fieller, J. R. Stat. Soc. B 16 (1954) 175: test and interval of a ratio of two means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from evalkit.stats.common import BoundTest, Interval, Numbers, array_of, number, open_share, score_test


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
    a, v = array_of(totals, "totals"), array_of(sizes, "sizes")
    q = None if squares is None else array_of(squares, "squares")
    if a.shape != v.shape or (q is not None and q.shape != v.shape):
        raise ValueError(f"lengths differ: {a.size} totals, {v.size} sizes, {'no' if q is None else q.size} squares")
    if (a[v == 0] != 0).any():
        raise ValueError("a cluster without units has a total")
    level = open_share(level, "level")
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
        number(self.value, "value")
        number(self.se, "standard error", 0)
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
    bound = number(bound, "bound", 0)
    if reference.value <= 0:
        raise ValueError(f"reference is {reference.value:g}, not positive")
    distance = x.value - bound * reference.value
    part1, part2 = x.se**2, (bound * reference.se) ** 2
    if part1 + part2 == 0:
        return score_test(distance, 0.0)
    t = distance / math.sqrt(part1 + part2)
    df = _welch(part1, x.df, part2, reference.df)
    return BoundTest(statistic=t, p_above=_t_cdf(df, -t), p_below=_t_cdf(df, t))


def ratio_interval(x: Estimate, reference: Estimate, level: float = 0.95) -> Interval | None:
    """Fieller's interval of x / reference; None when the reference is too uncertain for a bounded one."""
    if reference.value <= 0:
        raise ValueError(f"reference is {reference.value:g}, not positive")
    df = _welch(x.se**2, x.df, (x.value / reference.value * reference.se) ** 2, reference.df)
    tail = 0.5 + open_share(level, "level") / 2
    t = float(special.ndtri(tail) if math.isinf(df) else special.stdtrit(df, tail))
    ratio = x.value / reference.value
    g = (t * reference.se / reference.value) ** 2
    if g >= 1:
        return None
    half = t / reference.value * math.sqrt(x.se**2 * (1 - g) + (ratio * reference.se) ** 2)
    return Interval((ratio - half) / (1 - g), (ratio + half) / (1 - g))

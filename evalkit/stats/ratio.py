"""A ratio of sums with clusters, and the ratio of two uncertain estimates.

Sources
- Cochran, Sampling Techniques (1977) 6.3 and 9A: ratio estimator with clusters; Kish: design effect.
- Hall, J. R. Stat. Soc. B 54 (1992) 221: a studentised mean without its skewness, by a monotone cubic; the ratio's own
  part and the degrees of freedom by the fourth moment are derived in `_skew`. docs/audit.md compares the intervals.
- Fieller, J. R. Stat. Soc. B 16 (1954) 175: test and interval of a ratio of two means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import BoundTest, Interval, Numbers, array_of, crossing, number, open_share, score_test


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """How the studentised ratio t departs from Student's distribution: t + shift + bend t^2 + bend^2 t^3 / 3 follows
    it, with df degrees of freedom."""

    shift: float = 0.0
    bend: float = 0.0
    df: float = math.inf


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
    skew: Skew | None = None

    def estimate(self, offset: float = 0.0) -> Estimate | None:
        """The ratio (plus a constant) as an estimate whose tests and intervals allow for skewed clusters."""
        if self.se is None:
            return None
        skew = self.skew or Skew()
        df = min(self.clusters - 1, skew.df)
        return Estimate(value=offset + self.ratio, se=self.se, df=df, shift=skew.shift, bend=skew.bend)


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
    return RatioEstimate(
        ratio=ratio, se=se, interval=interval, design_effect=effect, clusters=m, units=units,
        skew=_skew(residual[v > 0], v[v > 0]),
    )  # fmt: skip


def _skew(residual: np.ndarray, sizes: np.ndarray) -> Skew:
    """Of the residuals e = A - R V. Against the true ratio R0 the mean of A - R0 V is plain, and Hall's cubic takes
    out its skewness g / sqrt(m); but the standard error is that of R, and the two differ in first order by the
    covariance of e and V, which bends t the other way. A variance from m values of kurtosis k is worth
    2 (m - 1) / (k - 1) degrees of freedom (m - 1 for the normal's 3)."""
    m = residual.size
    square = float(residual @ residual) / (m - 1)
    if square <= 1e-18 * float(sizes.mean()) ** 2:
        return Skew()
    z, w = residual / math.sqrt(square), sizes / sizes.mean()
    skewness = float((z**3).mean()) / math.sqrt(m)
    tie = float(z @ (w - 1)) / (m - 1) / math.sqrt(m)
    kurtosis = float((z**4).mean())
    df = 2 * (m - 1) / (kurtosis - 1) if kurtosis > 1 else math.inf
    return Skew(shift=skewness / 6, bend=skewness / 3 - tie, df=max(df, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its standard error; `df` degrees of freedom of the latter (infinite: known or assumed); `shift` and
    `bend` as in `Skew` (0: symmetric)."""

    value: float
    se: float
    df: float = math.inf
    shift: float = 0.0
    bend: float = 0.0

    def __post_init__(self) -> None:
        number(self.value, "value")
        number(self.se, "standard error", 0)
        if not self.df > 0:
            raise ValueError(f"degrees of freedom are {self.df}")
        number(self.shift, "shift")
        number(self.bend, "bend")

    def interval(self, level: float = 0.95) -> Interval:
        """Where the mean lies, by t quantiles, the longer side where the skewness puts it."""
        q = _t_quantile(self.df, 0.5 + open_share(level, "level") / 2)
        ends = [self.value - self.se * _unbent(side, self.shift, self.bend) for side in (q, -q)]
        return Interval(ends[0], ends[1])


def _welch(part1: float, df1: float, part2: float, df2: float) -> float:
    """Satterthwaite's degrees of freedom of a sum of two variances."""
    below = part1**2 / df1 + part2**2 / df2
    return (part1 + part2) ** 2 / below if below > 0 else math.inf


def _t_cdf(df: float, x: float) -> float:
    return float(special.ndtr(x) if math.isinf(df) else special.stdtr(df, x))


def _t_quantile(df: float, share: float) -> float:
    return float(special.ndtri(share) if math.isinf(df) else special.stdtrit(df, share))


def _bent(t: float, shift: float, bend: float) -> float:
    """Hall's cubic; it rises everywhere."""
    return t + shift + bend * t * t + bend * bend * t**3 / 3


def _unbent(q: float, shift: float, bend: float) -> float:
    """The t that `_bent` makes q of."""
    if abs(bend) < 1e-9:
        return q - shift
    return (math.cbrt(1 + 3 * bend * (q - shift)) - 1) / bend


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
    total = math.sqrt(part1 + part2)
    share1, share2 = (x.se / total) ** 3, (bound * reference.se / total) ** 3  # third moments add, with their sign
    shift = share1 * x.shift - share2 * reference.shift
    t = _bent(distance / total, shift, share1 * x.bend - share2 * reference.bend)
    df = _welch(part1, x.df, part2, reference.df)
    return BoundTest(statistic=t, p_above=_t_cdf(df, -t), p_below=_t_cdf(df, t))


def ratio_interval(x: Estimate, reference: Estimate, level: float = 0.95) -> Interval | None:
    """Fieller's interval of x / reference; None when the reference is too uncertain for a bounded one. With skewed
    estimates the bounds that `ratio_test` does not refuse, to both sides."""
    if reference.value <= 0:
        raise ValueError(f"reference is {reference.value:g}, not positive")
    df = _welch(x.se**2, x.df, (x.value / reference.value * reference.se) ** 2, reference.df)
    t = _t_quantile(df, 0.5 + open_share(level, "level") / 2)
    ratio = x.value / reference.value
    g = (t * reference.se / reference.value) ** 2
    if g >= 1:
        return None
    half = t / reference.value * math.sqrt(x.se**2 * (1 - g) + (ratio * reference.se) ** 2)
    low, high = (ratio - half) / (1 - g), (ratio + half) / (1 - g)
    if half == 0 or not (x.shift or x.bend or reference.shift or reference.bend):
        return Interval(low, high)
    tail, room = (1 - level) / 2, 2 * (high - low)
    middle = (low + high) / 2
    low = crossing(lambda b: tail - ratio_test(x, reference, b).p_above, max(low - room, 0.0), middle)
    high = crossing(lambda b: tail - ratio_test(x, reference, b).p_below, high + room, middle)
    return Interval(low, high)

"""Histograms over 0, 1, 2, ...: their distance, tests that respect clusters, and calibration of predicted shares.

Sources: Rao and Scott, Ann. Stat. 12 (1984) 46: chi-square tests under clustering, second-order correction with F;
permutation of whole clusters: Pitman, J. R. Stat. Soc. Suppl. 4 (1937) 119.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import Numbers, array_of, whole


def wasserstein_1(counts1: Numbers, counts2: Numbers) -> float:
    """Wasserstein-1 distance of two histograms over 0, 1, 2, ..., in units of their values: the sum of the
    absolute differences of the two distribution functions. The shorter one is padded with zeros."""
    h1, h2 = array_of(counts1, "first histogram"), array_of(counts2, "second histogram")
    if h1.sum() == 0 or h2.sum() == 0:
        raise ValueError("a histogram without counts has no distribution")
    size = max(h1.size, h2.size)
    c1 = np.cumsum(np.pad(h1 / h1.sum(), (0, size - h1.size)))
    c2 = np.cumsum(np.pad(h2 / h2.sum(), (0, size - h2.size)))
    return float(np.abs(c1 - c2).sum())


def calibration_error(predicted: Numbers, happened: Numbers, bins: int = 10) -> float:
    """Expected calibration error: sum over equal-width bins of share * |mean predicted - rate|."""
    p, y = array_of(predicted, "predictions"), array_of(happened, "labels")
    bins = whole(bins, "bins", 1)
    if p.shape != y.shape:
        raise ValueError(f"{p.size} predictions for {y.size} labels")
    if (p > 1).any() or not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("a prediction above 1, or a label that is neither 0 nor 1")
    which = np.minimum((p * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(which, weights=p - y, minlength=bins)
    return float(np.abs(gaps).sum() / p.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTest:
    """p of "both have the same distribution"; `distance` is Wasserstein-1 in units of the values, `shift` the
    difference of the means: the size of the effect, which a p-value is not."""

    p: float
    distance: float
    shift: float
    clusters: tuple[int, int]  # 0 for a fixed reference


def _counts(counts: np.ndarray, name: str) -> np.ndarray:
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or (table < 0).any() or not table.sum() > 0:
        raise ValueError(f"{name} is not a table [clusters, values] of counts with something in it")
    return table[table.any(axis=1)]


def _padded(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = max(first.shape[-1], second.shape[-1])

    def pad(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])

    return pad(first), pad(second)


def _mean(shares: np.ndarray) -> float:
    return float(shares @ np.arange(shares.size))


def histogram_permutation_test(
    counts1: np.ndarray, counts2: np.ndarray, rng: np.random.Generator, draws: int = 1999
) -> HistogramTest:
    """Two clustered histograms, counts [clusters, values]: whole clusters change sides, the statistic is the distance.

    Exact when clusters of both sides are alike in everything, their sizes included; where the sizes may differ use
    `histogram_test`. Its draws cost clusters x values each.
    """
    a, b = _padded(_counts(counts1, "first histogram"), _counts(counts2, "second histogram"))
    draws = whole(draws, "draws", 99)
    both, m1, m = np.concatenate([a, b]), len(a), len(a) + len(b)
    total = both.sum(axis=0)

    def distance(first: np.ndarray) -> np.ndarray:
        second = total - first
        gap = np.cumsum(first, axis=1) / first.sum(axis=1, keepdims=True)
        gap -= np.cumsum(second, axis=1) / second.sum(axis=1, keepdims=True)
        return np.abs(gap).sum(axis=1)

    found = float(distance(a.sum(axis=0, keepdims=True))[0])
    reached, block = 0, max(1, 1_000_000 // m)
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        side = np.argpartition(rng.random((rows, m)), m1 - 1, axis=1)[:, :m1]
        mask = np.zeros((rows, m))
        np.put_along_axis(mask, side, 1.0, axis=1)
        reached += int((distance(mask @ both) >= found - 1e-12).sum())
    shift = _mean(a.sum(axis=0) / a.sum()) - _mean(b.sum(axis=0) / b.sum())
    return HistogramTest(p=(1 + reached) / (1 + draws), distance=found, shift=shift, clusters=(m1, m - m1))


def _linearised(table: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the pooled histogram and their clustered covariance."""
    m, total = len(table), table.sum()
    if m < 2:
        raise ValueError(f"{name} has a single cluster, which shows no spread")
    shares = table.sum(axis=0) / total
    score = (table - table.sum(axis=1, keepdims=True) * shares) / total
    return shares, m / (m - 1) * (score.T @ score)


def _quadratic(gap: np.ndarray, covariance: np.ndarray, weight: np.ndarray, df: float) -> float:
    """p of gap = 0 by sum(gap^2 / weight), whose distribution is matched in two moments (Rao-Scott, with F)."""
    keep = weight > 0
    gap, weight = gap[keep], weight[keep]
    scaled = covariance[np.ix_(keep, keep)] / np.sqrt(np.outer(weight, weight))
    trace, square = float(np.trace(scaled)), float((scaled * scaled).sum())
    statistic = float((gap * gap / weight).sum())
    if trace <= 1e-300 or square <= 0:
        return 1.0 if statistic < 1e-18 else 0.0
    above = trace * trace / square
    return float(special.fdtrc(above, above * df, statistic / trace))


def histogram_test(counts1: np.ndarray, counts2: np.ndarray) -> HistogramTest:
    """Two clustered histograms, counts [clusters, values], by Rao-Scott; sizes and spread may differ."""
    a, b = _padded(_counts(counts1, "first histogram"), _counts(counts2, "second histogram"))
    (p, cov1), (q, cov2) = _linearised(a, "first histogram"), _linearised(b, "second histogram")
    chance = _quadratic(p - q, cov1 + cov2, (p + q) / 2, min(len(a), len(b)) - 1)
    return HistogramTest(p=chance, distance=wasserstein_1(p, q), shift=_mean(p - q), clusters=(len(a), len(b)))


def histogram_test_fixed(counts: np.ndarray, shares: Numbers) -> HistogramTest:
    """A clustered histogram, counts [clusters, values], against fixed shares that have no uncertainty of their own."""
    expected = array_of(shares, "shares")
    if abs(float(expected.sum()) - 1) > 1e-6:
        raise ValueError(f"the shares sum to {expected.sum():g}, not 1")
    a, q = _padded(_counts(counts, "histogram"), expected)
    p, covariance = _linearised(a, "histogram")
    chance = _quadratic(p - q, covariance, (p + q) / 2, len(a) - 1)
    return HistogramTest(p=chance, distance=wasserstein_1(p, q), shift=_mean(p - q), clusters=(len(a), 0))


def implied_sums(at: Numbers, means: Numbers) -> tuple[float, ...]:
    """A curve of 1 + S_1 + ... + S_K at several K gives the sums of S between them: (2.88, 3.46, 4.04) at (3, 5, 7)
    gives 1.88, 0.58, 0.58. S is a share that does not rise; a curve that contradicts this is refused, not repaired."""
    k, curve = array_of(at, "positions"), array_of(means, "curve")
    if k.shape != curve.shape or (np.diff(k, prepend=0) <= 0).any():
        raise ValueError(f"{curve.size} values at positions {k.tolist()}, which must rise from above 0")
    width, sums = np.diff(k, prepend=0), np.diff(curve, prepend=1)
    if (sums < 0).any():
        raise ValueError(f"the curve {curve.tolist()} is not monotone: no shares have it")
    if (sums > width + 1e-9).any() or (np.diff(sums / width) > 1e-9).any():
        raise ValueError(f"the curve {curve.tolist()} implies shares above 1 or rising: {(sums / width).tolist()}")
    return tuple(float(x) for x in sums)


def sums_test(totals: np.ndarray, sizes: Numbers, expected: Numbers) -> float:
    """p of "the ratios sum(totals[:, j]) / sum(sizes) are the expected ones", totals [clusters, J]; for what a curve
    implies when it is all there is."""
    a, v, target = np.asarray(totals, dtype=np.float64), array_of(sizes, "sizes"), array_of(expected, "expected")
    if a.shape != (v.size, target.size) or not np.isfinite(a).all():
        raise ValueError(f"totals {a.shape} are not [{v.size}, {target.size}], or hold NaN")
    m = int((v > 0).sum())
    if m < 2:
        raise ValueError("a single cluster shows no spread")
    ratio = a.sum(axis=0) / v.sum()
    score = (a - v[:, None] * ratio) / v.sum()
    covariance = m / (m - 1) * (score.T @ score)
    return _quadratic(ratio - target, covariance, np.maximum(target + ratio, 1e-12), m - 1)

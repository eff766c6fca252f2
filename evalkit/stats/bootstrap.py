"""Resampling whole clusters: n of n with replacement, from a generator that is handed in.

Sources: Efron, J. Am. Stat. Assoc. 82 (1987) 171: BCa; Efron and Tibshirani, An Introduction to the Bootstrap (1993)
12.5: bootstrap-t. `docs/audit.md` has the coverage of both beside the t interval of `clustered_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import special

from evalkit.stats.common import Interval, Numbers, array_of, open_share, whole

CELLS = 2_000_000  # of a block of resamples in memory at once


def resamples(m: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each of m units is drawn: blocks [draws of the block, m] of m draws with replacement each."""
    block = max(1, CELLS // m)
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        flat = rng.integers(m, size=(rows, m)) + m * np.arange(rows)[:, None]
        yield np.bincount(flat.ravel(), minlength=rows * m).reshape(rows, m).astype(np.float64)


def bootstrap_se(values: Numbers, rng: np.random.Generator, draws: int = 2000) -> float | None:
    """Standard error of the mean, the values resampled n of n; None for one value, which shows no spread."""
    x, draws = array_of(values, "values"), whole(draws, "draws", 2)
    if x.size == 1:
        return None
    means = np.concatenate([w @ x for w in resamples(x.size, draws, rng)]) / x.size
    return float(means.std(ddof=1))


def _clusters(totals: Numbers, sizes: Numbers, draws: int) -> tuple[np.ndarray, np.ndarray]:
    a, v = array_of(totals, "totals"), array_of(sizes, "sizes")
    if a.shape != v.shape:
        raise ValueError(f"{a.size} totals for {v.size} sizes")
    if (a[v == 0] != 0).any():
        raise ValueError("a cluster without units has a total")
    whole(draws, "draws", 100)
    return a[v > 0], v[v > 0]


def bca_ratio(
    totals: Numbers, sizes: Numbers, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> Interval | None:
    """BCa interval of sum(totals) / sum(sizes), clusters resampled; None below 3 clusters or without any spread."""
    a, v = _clusters(totals, sizes, draws)
    tail = (1 - open_share(level, "level")) / 2
    if a.size < 3:
        return None
    ratio = a.sum() / v.sum()
    pairs = np.stack([a, v], axis=1)
    sums = np.concatenate([w @ pairs for w in resamples(a.size, draws, rng)])
    found = np.sort(sums[:, 0] / sums[:, 1])
    left_out = (a.sum() - a) / (v.sum() - v)
    gap = left_out.mean() - left_out
    if found[0] == found[-1] or not gap.any():
        return None
    acceleration = (gap**3).sum() / (6 * (gap @ gap) ** 1.5)
    below = (np.mean(found < ratio) + np.mean(found <= ratio)) / 2
    bias = special.ndtri(min(max(below, 0.5 / draws), 1 - 0.5 / draws))
    ends = []
    for z in (special.ndtri(tail), special.ndtri(1 - tail)):
        shifted = bias + (bias + z) / max(1 - acceleration * (bias + z), 1e-9)
        ends.append(float(np.quantile(found, special.ndtr(shifted))))
    return Interval(ends[0], ends[1])


def bootstrap_t_ratio(
    totals: Numbers, sizes: Numbers, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> Interval | None:
    """Bootstrap-t interval of sum(totals) / sum(sizes): each resample is judged by its own clustered standard error,
    so that skewed clusters get the longer side they need. None below 3 clusters or without any spread."""
    a, v = _clusters(totals, sizes, draws)
    tail, m = (1 - open_share(level, "level")) / 2, a.size
    if m < 3:
        return None
    ratio = a.sum() / v.sum()
    residual = a - ratio * v
    se = math.sqrt(m / (m - 1) * float(residual @ residual)) / v.sum()
    if se <= 1e-12 * abs(ratio) or ratio == 0:
        return None
    moments = np.stack([a, v, a * a, a * v, v * v], axis=1)
    sa, sv, aa, av, vv = np.concatenate([w @ moments for w in resamples(m, draws, rng)]).T
    drawn = sa / sv
    error = np.sqrt(np.maximum(aa - 2 * drawn * av + drawn**2 * vv, 0) * m / (m - 1)) / sv
    usable = error > 1e-9 * se
    low, high = np.quantile((drawn[usable] - ratio) / error[usable], [tail, 1 - tail])
    return Interval(float(ratio - high * se), float(ratio - low * se))

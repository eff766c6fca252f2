"""Survival curves S_1 >= ... >= S_K of clustered histograms over 0..K: their covariance, and tests of a difference.

Sources: Cochran, Sampling Techniques (1977) 6.3: ratio estimator with clusters. Rao and Scott, Ann. Stat. 12 (1984) 46:
tests under clustering, first-order (design effect) and second-order (two moments, with F). Berger, Technometrics 24
(1982) 295: intersection-union tests. docs/audit.md has the realised error rates.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import Numbers, array_of, correlated_t, number, open_share

DRAWS = 10_000  # of the seeded simulation of a largest t: a p-value of 0.05 is then known to 0.002
MOST_SUBSETS = 14  # positions whose 2^n subsets are all looked at
SEED = 20240607


def survival_counts(counts: np.ndarray) -> np.ndarray:
    """Units with at least 0, 1, ..., K in each cluster: [clusters, K+1], from counts of the same shape."""
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError(f"counts {table.shape} are no table [clusters, values], or hold NaN or a negative count")
    return table[:, ::-1].cumsum(axis=1)[:, ::-1]


def survival_covariance(counts: np.ndarray) -> np.ndarray:
    """Cluster-robust covariance of S_1..S_K (ratio estimator, m/(m-1) correction): [K, K]. Needs 2 clusters."""
    above = survival_counts(counts)
    sizes, m = above[:, 0], int((above[:, 0] > 0).sum())
    if m < 2:
        raise ValueError(f"{m} clusters show no spread")
    residual = (above[:, 1:] - np.outer(sizes, above[:, 1:].sum(axis=0) / sizes.sum())) / sizes.sum()
    return m / (m - 1) * residual.T @ residual


def histogram_covariance(counts: Numbers, se: float) -> np.ndarray:
    """Covariance of S_1..S_K of a histogram whose clusters are not known, from the clustered standard error of its
    mean: the multinomial one times the design effect (first-order Rao-Scott correction): [K, K]."""
    table, se = array_of(counts, "histogram"), number(se, "standard error", 0)
    if table.size < 2 or table.sum() == 0:
        raise ValueError("a histogram without counts has no distribution")
    survival = survival_counts(table[None])[0, 1:] / table.sum()
    simple = (np.minimum.outer(survival, survival) - np.outer(survival, survival)) / table.sum()
    variance = float(simple.sum())
    return simple * (se**2 / variance) if variance > 0 else simple


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTest:
    """sum_j max(0, -d_j) against a margin: p_under shows it smaller (all subsets), p_over larger; `upper` is the
    1 - alpha bound. p_equal is that of d = 0."""

    lost: float
    upper: float
    p_under: float
    p_over: float
    p_equal: float


def lost_test(difference: Numbers, covariance: np.ndarray, margin: float, df: float, alpha: float) -> LostTest:
    """Tests how much of a distribution was lost, from the differences of survival `difference` (mean 0 when equal),
    whose covariance has `df` degrees of freedom.

    What is lost, sum_j max(0, -d_j), is the largest sum of -d over any subset of positions. It is shown to be under
    the margin when every subset's sum is, each at alpha (intersection-union: the size stays at most alpha), and to
    be over it when the largest of all subsets' t values passes the seeded simulation of that largest value (p_over
    is 1 without a simulation where nothing found lies over the margin).
    """
    d, c, alpha = _checked(difference, covariance, df, alpha)
    subsets = _subsets(d.size)
    sums = -subsets @ d
    se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", subsets, c, subsets), 0))
    live = se > 1e-12
    t = (sums[live] - margin) / se[live]
    cut = float(special.ndtri(1 - alpha) if math.isinf(df) else special.stdtrit(df, 1 - alpha))
    if (sums[~live] > margin).any():  # known without error
        p_under, p_over = 1.0, 0.0
    else:
        p_under = float(special.ndtr(t.max()) if math.isinf(df) else special.stdtr(df, t.max())) if t.size else 0.0
        p_over = _largest(t.max(), subsets[live] / se[live][:, None], c, df) if t.size and t.max() > 0 else 1.0
    return LostTest(
        lost=float(np.maximum(-d, 0).sum()), upper=max(0.0, float((sums + cut * se).max())), p_under=p_under,
        p_over=p_over, p_equal=equal_test(d, c, df),
    )  # fmt: skip


def equal_test(difference: Numbers, covariance: np.ndarray, df: float) -> float:
    """p of "all differences are 0", by the sum of squared t values, whose distribution is matched in two moments
    (Rao-Scott, with F): unlike Wald's it holds with few clusters and a covariance without an inverse."""
    d, c, _ = _checked(difference, covariance, df, 0.05)
    variance = np.diag(c)
    keep = variance > 1e-24
    if (np.abs(d[~keep]) > 1e-9).any():
        return 0.0  # known without error
    if not keep.any():
        return 1.0
    scaled = c[np.ix_(keep, keep)] / np.sqrt(np.outer(variance[keep], variance[keep]))
    trace, square = float(keep.sum()), float((scaled * scaled).sum())
    mean = float((d[keep] ** 2 / variance[keep]).sum()) / trace
    above = trace * trace / square
    if math.isinf(df):
        return float(special.chdtrc(above, above * mean))
    return float(special.fdtrc(above, above * df, mean))


def _checked(
    difference: Numbers, covariance: np.ndarray, df: float, alpha: float
) -> tuple[np.ndarray, np.ndarray, float]:
    d, c = np.asarray(difference, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    if d.ndim != 1 or d.size == 0 or c.shape != (d.size, d.size):
        raise ValueError(f"differences {d.shape} and covariance {c.shape} are not [K] and [K, K]")
    if not (np.isfinite(d).all() and np.isfinite(c).all()) or (np.diag(c) < 0).any():
        raise ValueError("a difference or covariance is NaN, or a variance is negative")
    if not df > 0:
        raise ValueError(f"degrees of freedom are {df}")
    return d, c, open_share(alpha, "alpha")


def _largest(found: float, weights: np.ndarray, covariance: np.ndarray, df: float) -> float:
    """Chance that the largest of the t values weights @ d reaches `found` when all their means are 0."""
    spread = np.sqrt(np.diag(covariance))
    keep = spread > 1e-12
    drawn = correlated_t(covariance[np.ix_(keep, keep)], df, DRAWS, np.random.default_rng(SEED))
    scaled = (weights[:, keep] * spread[keep]).T  # [positions, subsets]
    largest = np.full(len(drawn), -np.inf)
    for start in range(0, scaled.shape[1], 256):  # bounds the memory
        largest = np.maximum(largest, (drawn @ scaled[:, start : start + 256]).max(axis=1))
    return float((1 + (largest >= found).sum()) / (1 + len(largest)))


def _subsets(width: int) -> np.ndarray:
    """Every non-empty subset as a row of 0 and 1; for very many positions those of neighbours only."""
    if width <= MOST_SUBSETS:
        return np.array([row for row in itertools.product((0.0, 1.0), repeat=width) if any(row)])
    rows = []
    for low in range(width):
        for high in range(low + 1, width + 1):
            rows.append([float(low <= j < high) for j in range(width)])
    return np.array(rows)

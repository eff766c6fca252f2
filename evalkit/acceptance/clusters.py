"""Counts by document, and the statistics on them that evalkit.stats does not have yet.

`ratio_band` and `lost_test` are about arrays only and are to move to evalkit.stats once it has their like (a
simultaneous band, a distribution test of clustered histograms); nothing but this package calls them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.records import Sample
from evalkit.stats import Interval

DRAWS = 10_000  # of the seeded simulation of a largest t: a p-value of 0.05 is then known to 0.002
MOST_SUBSETS = 14  # positions whose 2^n subsets are all looked at


def cluster_counts(samples: Sequence[Sample], k: int) -> np.ndarray:
    """Steps with 0..K accepted drafts, by document that has any: [documents, K+1]. Failed samples are left out."""
    rows: dict[int, list[int]] = {}
    for sample in samples:
        if sample.error:
            continue
        for step in sample.steps:
            if step.k >= 1:
                rows.setdefault(sample.doc_id, [0] * (k + 1))[step.accepted] += 1
    return np.array(list(rows.values()), dtype=np.float64).reshape(-1, k + 1)


def survival_covariance(counts: np.ndarray) -> np.ndarray:
    """Cluster-robust covariance of S_1..S_K (ratio estimator, m/(m-1) correction): [K, K]. Needs 2 documents."""
    m, sizes = len(counts), counts.sum(axis=1)
    above = counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]  # [documents, K]: steps with at least j accepted
    survival = above.sum(axis=0) / sizes.sum()
    residual = (above - np.outer(sizes, survival)) / sizes.sum()
    return m / (m - 1) * residual.T @ residual


def histogram_covariance(counts: Sequence[int], se: float) -> np.ndarray:
    """Covariance of S_1..S_K of a histogram whose clusters are not known, from the clustered standard error of its
    mean: the multinomial one times the design effect (first-order Rao-Scott correction): [K, K]."""
    n = sum(counts)
    p = np.array(counts, dtype=np.float64) / n
    survival = p[::-1].cumsum()[::-1][1:]
    simple = (np.minimum.outer(survival, survival) - np.outer(survival, survival)) / n
    variance = float(simple.sum())
    return simple * (se**2 / variance) if variance > 0 else simple


def ratio_band(totals: np.ndarray, sizes: np.ndarray, level: float = 0.95) -> list[Interval | None]:
    """Simultaneous band of the shares sum(totals_j) / sum(sizes_j) over clusters, [clusters, J] each.

    Half-width is a critical value times the cluster-robust standard error; the value is the `level` quantile of the
    largest |t| over the positions, simulated (seeded) from their correlation with m - 1 degrees of freedom. A share
    of 0 or 1 has no such error: its open side is the bound of that many independent clusters, shared out over the
    positions (Bonferroni). None where nothing was counted, or for a single cluster.
    """
    m, width = totals.shape
    size = sizes.sum(axis=0)
    if m < 2:
        return [None] * width
    share = np.divide(totals.sum(axis=0), size, out=np.zeros(width), where=size > 0)
    residual = np.divide(totals - sizes * share, size, out=np.zeros_like(totals), where=size > 0)
    covariance = m / (m - 1) * residual.T @ residual
    se = np.sqrt(np.diag(covariance))
    live = se > 0
    critical = _largest_t(covariance[np.ix_(live, live)], m - 1, level) if live.any() else 0.0
    out: list[Interval | None] = []
    for j in range(width):
        if size[j] == 0:
            out.append(None)
        elif live[j]:
            half = critical * se[j]
            out.append(Interval(max(0.0, float(share[j] - half)), min(1.0, float(share[j] + half))))
        else:
            reached = int((sizes[:, j] > 0).sum())
            open_side = 1 - ((1 - level) / width) ** (1 / reached)
            out.append(Interval(0.0, open_side) if share[j] < 0.5 else Interval(1 - open_side, 1.0))
    return out


def _largest_t(covariance: np.ndarray, df: int, level: float) -> float:
    return float(np.quantile(np.abs(_draws(covariance, df)).max(axis=1), level))


def _draws(covariance: np.ndarray, df: float) -> np.ndarray:
    """Seeded draws of correlated t values: [DRAWS, J]."""
    rng = np.random.default_rng(20240607)
    scale = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = vectors * np.sqrt(np.clip(values, 0, None))
    drawn = rng.standard_normal((DRAWS, len(scale))) @ root.T
    if math.isinf(df):
        return drawn
    return drawn / np.sqrt(rng.chisquare(df, (DRAWS, 1)) / df)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTest:
    """sum_j max(0, -d_j) against a margin: p_under shows it smaller (all subsets), p_over larger; `upper` is the
    1 - alpha bound. p_equal is the Wald test of d = 0 (None with too few clusters)."""

    lost: float
    upper: float
    p_under: float
    p_over: float
    p_equal: float | None


def lost_test(difference: np.ndarray, covariance: np.ndarray, margin: float, df: float, alpha: float) -> LostTest:
    """Tests how much of a distribution was lost, from the differences of survival `difference` (mean 0 when equal).

    What is lost, sum_j max(0, -d_j), is the largest sum of -d over any subset of positions. It is shown to be under
    the margin when every subset's sum is, each at alpha (intersection-union: the size stays at most alpha), and to
    be over it when the largest of all subsets' t values passes the seeded simulation of that largest value (p_over
    is 1 without a simulation where nothing found lies over the margin).
    """
    width = len(difference)
    subsets = _subsets(width)
    sums = -subsets @ difference
    se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", subsets, covariance, subsets), 0))
    live = se > 1e-12
    t = (sums[live] - margin) / se[live]
    fixed = sums[~live] > margin if (~live).any() else np.array([False])
    cut = float(special.ndtri(1 - alpha) if math.isinf(df) else special.stdtrit(df, 1 - alpha))
    p_under = 1.0 if fixed.any() else float(_cdf(df, t.max())) if t.size else 0.0
    p_over = 0.0 if fixed.any() else 1.0
    if t.size and t.max() > 0 and not fixed.any():
        spread = np.sqrt(np.maximum(np.diag(covariance), 1e-24))
        drawn = _draws(covariance + np.diag(np.where(np.diag(covariance) > 0, 0, 1e-24)), df)
        weights = (subsets[live] * spread / se[live][:, None]).T  # [positions, subsets]
        largest = np.full(len(drawn), -np.inf)
        for start in range(0, weights.shape[1], 256):  # bounds the memory
            largest = np.maximum(largest, (drawn @ weights[:, start : start + 256]).max(axis=1))
        p_over = float((1 + (largest >= t.max()).sum()) / (1 + len(largest)))
    return LostTest(
        lost=float(np.maximum(-difference, 0).sum()),
        upper=max(0.0, float((sums + cut * se).max())),
        p_under=p_under,
        p_over=p_over,
        p_equal=_wald(difference, covariance, df),
    )


def _subsets(width: int) -> np.ndarray:
    """Every non-empty subset as a row of 0 and 1; for very many positions those of neighbours only."""
    if width <= MOST_SUBSETS:
        return np.array([row for row in itertools.product((0.0, 1.0), repeat=width) if any(row)])
    rows = []
    for low in range(width):
        for high in range(low + 1, width + 1):
            rows.append([float(low <= j < high) for j in range(width)])
    return np.array(rows)


def _cdf(df: float, x: float) -> float:
    return float(special.ndtr(x) if math.isinf(df) else special.stdtr(df, x))


def _wald(difference: np.ndarray, covariance: np.ndarray, df: float) -> float | None:
    rank = int(np.linalg.matrix_rank(covariance, hermitian=True))
    if rank == 0 or df <= rank:
        return None
    statistic = float(difference @ np.linalg.pinv(covariance, hermitian=True) @ difference)
    if math.isinf(df):
        return float(special.chdtrc(rank, statistic))
    return float(special.fdtrc(rank, df - rank + 1, statistic * (df - rank + 1) / (df * rank)))

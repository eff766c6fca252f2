"""Accepted drafts of a run against a golden's: where along the block, and how many tokens, were lost.

Wasserstein-1 of two histograms over 0..K is sum_j |S_j - G_j|, in tokens a step; what a gate judges is its lost part,
sum_j max(0, G_j - S_j), since a draft that got better must be able to pass. Both sides' steps are correlated within a
document: both covariances are clustered; a golden recorded without its own has the multinomial one times its design
effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evalkit import stats
from evalkit.acceptance.columns import cluster_counts
from evalkit.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionTest:
    """Differences are run minus golden, by group of positions; lengths are in tokens a step.

    `lost` is judged: p_under is small when it is shown to be under the margin, p_over when over it. `upper` is its
    one-sided bound. `decidable` is False when a run exactly like the golden could not be shown to be within the
    margin, because the golden itself is too uncertain.
    """

    groups: tuple[tuple[int, int], ...]  # (first, last) position
    here: tuple[float, ...]  # accepted drafts a step within the group
    golden: tuple[float, ...]
    wasserstein: float
    lost: float
    gained: float
    upper: float
    margin: float
    p_under: float
    p_over: float
    p_equal: float
    decidable: bool
    source: str  # histogram | implied


def distribution_test(
    samples: Sequence[Sample],
    k: int,
    *,
    margin: float,
    histogram: Sequence[int] | None = None,
    se: float | None = None,
    clusters: int | None = None,
    covariance: Sequence[Sequence[float]] | None = None,
    lengths: Mapping[int, float] | None = None,
    lengths_se: Mapping[int, float] | None = None,
    alpha: float = 0.05,
) -> DistributionTest | None:
    """The run's accepted drafts against a golden `histogram` (with the clustered `se` of its mean over `clusters`
    documents and, where it was stored, the clustered `covariance` of its survival [K][K]), or against the survival
    that a curve `lengths` implies between its K (with `lengths_se` each).

    None when there is nothing to compare: fewer than 2 documents, or a curve with a single K. `margin` is in tokens
    a step. Raises ValueError for a curve that implies no survival (see implied_groups).
    """
    return distribution_of_counts(
        cluster_counts(samples, k), k, margin=margin, histogram=histogram, se=se, clusters=clusters,
        covariance=covariance, lengths=lengths, lengths_se=lengths_se, alpha=alpha,
    )  # fmt: skip


def distribution_of_counts(
    counts: np.ndarray,
    k: int,
    *,
    margin: float,
    histogram: Sequence[int] | None = None,
    se: float | None = None,
    clusters: int | None = None,
    covariance: Sequence[Sequence[float]] | None = None,
    lengths: Mapping[int, float] | None = None,
    lengths_se: Mapping[int, float] | None = None,
    alpha: float = 0.05,
) -> DistributionTest | None:
    """`distribution_test` of steps already counted: [documents, K+1], steps with 0..K accepted drafts."""
    if len(counts) < 2:
        return None
    survival = stats.survival_counts(counts)[:, 1:].sum(axis=0) / counts.sum()
    own, df = stats.survival_covariance(counts), float(len(counts) - 1)
    if histogram is not None:
        if len(histogram) != k + 1 or se is None:
            raise ValueError(f"a golden histogram of {len(histogram)} values and standard error {se} at K={k}")
        shares = np.array(histogram, dtype=np.float64) / sum(histogram)
        golden = shares[::-1].cumsum()[::-1][1:]
        spread = stats.histogram_covariance(histogram, se) if covariance is None else np.array(covariance)
        groups, source = [(j, j) for j in range(1, k + 1)], "histogram"
        df = min(df, clusters - 1) if clusters else df
    else:
        known = {x: v for x, v in (lengths or {}).items() if x <= k}
        if len(known) < 2 or k not in known:
            return None
        groups, values = implied_groups(known)
        golden, spread = np.array(values), _implied_covariance(sorted(known), lengths_se or {})
        pick = np.array([[float(a <= j <= b) for j in range(1, k + 1)] for a, b in groups])
        survival, own, source = pick @ survival, pick @ own @ pick.T, "implied"
    difference = survival - golden
    found = stats.lost_test(difference, own + spread, margin, df, alpha)
    exact = stats.lost_test(np.zeros(len(difference)), spread, margin, math.inf, alpha)  # a run that is the golden
    return DistributionTest(
        groups=tuple(groups),
        here=tuple(float(x) for x in survival),
        golden=tuple(float(x) for x in golden),
        wasserstein=float(np.abs(difference).sum()),
        lost=found.lost,
        gained=float(np.maximum(difference, 0).sum()),
        upper=found.upper,
        margin=margin,
        p_under=found.p_under,
        p_over=found.p_over,
        p_equal=found.p_equal,
        decidable=exact.upper <= margin,
        source=source,
    )


def implied_groups(lengths: Mapping[int, float]) -> tuple[list[tuple[int, int]], list[float]]:
    """Survival that a curve implies: AL(K2) - AL(K1) is S summed over the positions K1+1..K2.

    Returns the groups of positions and their sums; nothing is interpolated between the K that exist. Raises
    ValueError, naming the place, when the curve falls or its steps grow: it is unusable then, never repaired.
    """
    ks = [0, *sorted(lengths)]
    value = {0: 1.0, **lengths}
    groups, sums = [], []
    for low, high in pairwise(ks):
        gain, width = value[high] - value[low], high - low
        if gain < -1e-9:
            raise ValueError(f"the curve falls from {value[low]:g} at K={low} to {value[high]:g} at K={high}")
        if gain > width + 1e-9:
            raise ValueError(
                f"the curve rises by {gain:.3f} from K={low} to K={high}, more than {width} drafts can give"
            )
        if sums and gain / width > sums[-1] / (groups[-1][1] - groups[-1][0] + 1) + 1e-9:
            raise ValueError(f"the curve rises faster from K={low} to K={high} than before it: no survival does")
        groups.append((low + 1, high))
        sums.append(gain)
    return groups, sums


def _implied_covariance(ks: Sequence[int], se: Mapping[int, float]) -> np.ndarray:
    """Covariance of the differences of independent lengths: neighbours share one."""
    steps = np.eye(len(ks)) - np.eye(len(ks), k=-1)  # AL(K1) - 1, AL(K2) - AL(K1), ...
    return steps @ np.diag([se.get(k, 0.0) ** 2 for k in ks]) @ steps.T

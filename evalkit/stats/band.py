"""A simultaneous band for several shares that share clusters, such as a curve over positions.

The chance that the whole curve lies in the band is `level`: the critical value is the quantile of the largest of the
studentised deviations (sup-t), drawn from their joint distribution with the clusters' own correlation.
Source: Montiel Olea and Plagborg-Moller, J. Appl. Econom. 34 (2019) 1. On the logit scale, so that it stays in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import Interval, correlated_t, open_share, whole
from evalkit.stats.proportion import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    shares: tuple[float, ...]
    intervals: tuple[Interval, ...]  # of all shares together
    pointwise: tuple[Interval, ...]  # of each alone
    critical: float  # what the standard error is multiplied by; the pointwise one is about 2
    clusters: int


def simultaneous_band(
    hits: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, level: float = 0.95, draws: int = 20_000
) -> Band | None:
    """Band of the shares sum(hits[:, k]) / sum(sizes[:, k]); hits [clusters, K], sizes the same or [clusters].

    Give sizes [clusters, K] for conditional shares, where each position has its own number of trials. A share of 0 or
    1 has no spread to go by: it gets Wilson's interval with a cluster that has trials there as one trial. None for a
    single cluster.
    """
    h = np.asarray(hits, dtype=np.float64)
    v = np.asarray(sizes, dtype=np.float64)
    v = np.repeat(v[:, None], h.shape[1], axis=1) if v.ndim == 1 and h.ndim == 2 else v
    if h.ndim != 2 or h.size == 0 or h.shape != v.shape:
        raise ValueError(f"hits {h.shape} and sizes {v.shape} are not [clusters, K]")
    if not (np.isfinite(v).all() and (h >= 0).all() and (h <= v).all()):
        raise ValueError("hits are not between 0 and the sizes, or there are NaN")
    if not (v.sum(axis=0) > 0).all():
        raise ValueError("a position has no trial")
    level, draws = open_share(level, "level"), whole(draws, "draws", 100)
    filled = v.any(axis=1)
    h, v = h[filled], v[filled]
    m, k = h.shape
    if m < 2:
        return None
    shares = h.sum(axis=0) / v.sum(axis=0)
    score = (h - shares * v) / v.sum(axis=0)
    covariance = m / (m - 1) * (score.T @ score)
    se = np.sqrt(np.diag(covariance))
    moving = (se > 1e-12) & (shares > 0) & (shares < 1)
    point = float(special.stdtrit(m - 1, 0.5 + level / 2))
    critical = _critical(covariance[np.ix_(moving, moving)], m, k - int(moving.sum()), level, draws, rng, point)
    reached = (v > 0).sum(axis=0)

    def interval(i: int, factor: float, alone: bool) -> Interval:
        s = float(shares[i])
        if not moving[i]:
            width = wilson(0, int(reached[i]), 1 - (1 - level) / (1 if alone else k)).high
            return Interval(max(0.0, s - width), min(1.0, s + width))
        centre, half = math.log(s / (1 - s)), factor * float(se[i]) / (s * (1 - s))
        return Interval(float(special.expit(centre - half)), float(special.expit(centre + half)))

    return Band(
        shares=tuple(float(s) for s in shares),
        intervals=tuple(interval(i, critical, False) for i in range(k)),
        pointwise=tuple(interval(i, point, True) for i in range(k)),
        critical=critical,
        clusters=m,
    )


def _critical(
    covariance: np.ndarray, m: int, flat: int, level: float, draws: int, rng: np.random.Generator, point: float
) -> float:
    """Quantile of the largest |t| of a multivariate t with m - 1 degrees of freedom; positions without spread take
    their equal part of the error."""
    k = covariance.shape[0]
    if k == 0:
        return point
    level = 1 - (1 - level) * k / (k + flat)
    drawn = correlated_t(covariance, m - 1, draws, rng)
    return max(point, float(np.quantile(np.abs(drawn).max(axis=1), level)))

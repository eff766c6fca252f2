"""The distance of two histograms over 0, 1, 2, ..., and the calibration of predicted shares."""

from __future__ import annotations

import numpy as np

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

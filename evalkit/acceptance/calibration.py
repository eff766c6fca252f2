"""The draft's confidence against what was accepted, by position."""

from __future__ import annotations

import numpy as np

from evalkit import stats
from evalkit.acceptance.columns import Steps
from evalkit.acceptance.model import Calibration


def calibrate(steps: Steps, k: int) -> tuple[Calibration, ...]:
    """Both kinds at every position that some step has a confidence for."""
    conditional, cumulative = [], []
    first, usable = steps.first, np.where(steps.verify, np.minimum(steps.judged, steps.told), 0)
    product = np.ones(len(steps.k))
    for j in range(1, k + 1):
        have = np.flatnonzero(usable >= j)
        if not len(have):
            break
        here = steps.confidence[first[have] + j - 1]
        product[have] *= here
        reached = steps.accepted[have] >= j - 1
        kept = (steps.accepted[have] >= j).astype(np.float64)
        if reached.any():
            conditional.append(_calibration("conditional", j, here[reached], kept[reached]))
        cumulative.append(_calibration("cumulative", j, product[have], kept))
    return (*conditional, *cumulative)


def _calibration(kind: str, j: int, predicted: np.ndarray, kept: np.ndarray) -> Calibration:
    return Calibration(
        kind=kind,
        position=j,
        steps=len(kept),
        mean_confidence=float(predicted.mean()),
        rate=float(kept.mean()),
        ece_10=stats.calibration_error(predicted, kept, bins=10),
        ece_20=stats.calibration_error(predicted, kept, bins=20),
    )

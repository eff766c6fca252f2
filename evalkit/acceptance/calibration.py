"""The draft's confidence against what was accepted, by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalkit import stats
from evalkit.acceptance.model import Calibration
from evalkit.records import StepRecord


def calibrate(steps: Sequence[StepRecord], k: int) -> tuple[Calibration, ...]:
    """Both kinds at every position that some step has a confidence for."""
    out = []
    for j in range(1, k + 1):
        have = [step for step in steps if judged(step) >= j and len(step.confidence) >= j]
        reached = [step for step in have if step.accepted >= j - 1]
        if reached:
            out.append(_calibration("conditional", j, [s.confidence[j - 1] for s in reached], reached))
        if have:
            out.append(_calibration("cumulative", j, [math.prod(s.confidence[:j]) for s in have], have))
    return tuple(sorted(out, key=lambda c: (c.kind != "conditional", c.position)))


def judged(step: StepRecord) -> int:
    """How many drafts of a step say something about the draft: all, or those up to a stop in their midst."""
    return step.accepted_trimmed if step.cut == "stop" else step.k


def _calibration(kind: str, j: int, predicted: Sequence[float], steps: Sequence[StepRecord]) -> Calibration:
    p, y = np.array(predicted), np.array([float(step.accepted >= j) for step in steps])
    return Calibration(
        kind=kind,
        position=j,
        steps=len(steps),
        mean_confidence=float(p.mean()),
        rate=float(y.mean()),
        ece_10=stats.calibration_error(p, y, bins=10),
        ece_20=stats.calibration_error(p, y, bins=20),
    )

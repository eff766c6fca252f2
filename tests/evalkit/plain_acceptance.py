"""Acceptance figures step by step: the slow twins of evalkit.acceptance and evalkit.report.curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalkit.records import Sample, StepRecord


def verify_steps(samples: Sequence[Sample]) -> list[tuple[int, int, StepRecord]]:
    """(place of the sample, answer token at which the step starts, step) of every verify step."""
    out = []
    for place, sample in enumerate(samples):
        at = 1
        for step in () if sample.error else sample.steps:
            if step.k >= 1:
                out.append((place, at, step))
            at += step.accepted_trimmed + 1
    return out


def cluster_counts(samples: Sequence[Sample], k: int) -> np.ndarray:
    rows: dict[int, list[int]] = {}
    for place, _, step in verify_steps(samples):
        rows.setdefault(samples[place].doc_id, [0] * (k + 1))[step.accepted] += 1
    return np.array(list(rows.values()), dtype=np.float64).reshape(-1, k + 1)


def judged(step: StepRecord) -> int:
    return step.accepted_trimmed if step.cut == "stop" else step.k


def judged_at(samples: Sequence[Sample], k: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, judged) by document and position."""
    rows: dict[int, list[list[int]]] = {}
    for place, _, step in verify_steps(samples):
        kept, tried = rows.setdefault(samples[place].doc_id, [[0] * k, [0] * k])
        for j in range(1, min(judged(step), step.accepted + 1) + 1):
            tried[j - 1] += 1
            kept[j - 1] += step.accepted >= j
    both = np.array(list(rows.values()), dtype=np.float64).reshape(-1, 2, k)
    return both[:, 0], both[:, 1]


def calibration(samples: Sequence[Sample], k: int) -> dict[tuple[str, int], tuple[list[float], list[bool]]]:
    """(predicted, kept) of each kind and position."""
    out: dict[tuple[str, int], tuple[list[float], list[bool]]] = {}
    steps = [step for _, _, step in verify_steps(samples)]
    for j in range(1, k + 1):
        have = [s for s in steps if judged(s) >= j and len(s.confidence) >= j]
        reached = [s for s in have if s.accepted >= j - 1]
        if have:
            out["cumulative", j] = [math.prod(s.confidence[:j]) for s in have], [s.accepted >= j for s in have]
        if reached:
            out["conditional", j] = [s.confidence[j - 1] for s in reached], [s.accepted >= j for s in reached]
    return out


def reached_drafts(samples: Sequence[Sample]) -> list[tuple[int, float, bool]]:
    """(place of the sample, confidence, kept) of each draft whose earlier drafts were all accepted."""
    return [
        (place, c, step.accepted >= j)
        for place, _, step in verify_steps(samples)
        for j, c in enumerate(step.confidence[: min(judged(step), step.accepted + 1)], start=1)
    ]

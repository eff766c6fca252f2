"""Figures over the answer and over the draft's confidence: what the plots show, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalkit import stats
from evalkit.acceptance.calibration import judged
from evalkit.records import Run, Sample

POSITION_EDGES = (1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
CONFIDENCE_BINS = 10
FEW_STEPS = 30  # a bin of fewer steps is not drawn: its interval would be wider than the plot
SAMPLE_SIZES = (50, 100, 200, 400, 800, 1319, 2638, 5276, 10552)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One bin: its ends (answer tokens, or confidence), what is in it, a value and its 95 % interval."""

    low: float
    high: float
    steps: int
    value: float
    interval: stats.Interval | None

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def by_position(samples: Sequence[Sample]) -> list[Point]:
    """Accepted length of the verify steps by the answer token at which they start; a sample is a cluster."""
    start, accepted, cluster = [], [], []
    for number, sample in enumerate(samples):
        at = 1  # the first token comes from prefill
        for step in sample.steps if not sample.error else ():
            if step.k >= 1:
                start.append(at)
                accepted.append(step.accepted)
                cluster.append(number)
            at += step.accepted_trimmed + 1
    if not start:
        return []
    where, kept, who = np.array(start), np.array(accepted, dtype=float), np.array(cluster)
    out = []
    for low, high in zip(POSITION_EDGES, (*POSITION_EDGES[1:], 1 << 40), strict=True):
        inside = (where >= low) & (where < high)
        if inside.sum() >= FEW_STEPS:
            _, index = np.unique(who[inside], return_inverse=True)
            found = stats.clustered_ratio(np.bincount(index, weights=kept[inside]), np.bincount(index))
            span = found.interval
            out.append(
                Point(low=low, high=min(high, int(where.max()) + 1), steps=int(inside.sum()), value=1 + found.ratio,
                      interval=span and stats.Interval(1 + span.low, 1 + span.high))
            )  # fmt: skip
    return out


def reliability(samples: Sequence[Sample]) -> list[Point]:
    """Share of drafts accepted by the confidence they had, among those whose earlier drafts were accepted."""
    predicted, kept, cluster = [], [], []
    for number, sample in enumerate(samples):
        for step in sample.steps if not sample.error else ():
            for j, c in enumerate(step.confidence[: min(judged(step), step.accepted + 1)], start=1):
                predicted.append(c)
                kept.append(step.accepted >= j)
                cluster.append(number)
    if not predicted:
        return []
    p, y, who = np.array(predicted), np.array(kept, dtype=float), np.array(cluster)
    bins = np.minimum((p * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    out = []
    for b in range(CONFIDENCE_BINS):
        inside = bins == b
        if inside.sum() >= FEW_STEPS:
            _, index = np.unique(who[inside], return_inverse=True)
            found = stats.clustered_ratio(np.bincount(index, weights=y[inside]), np.bincount(index))
            span = found.interval and stats.Interval(max(0.0, found.interval.low), min(1.0, found.interval.high))
            out.append(Point(low=float(p[inside].mean()), high=float(p[inside].mean()), steps=int(inside.sum()),
                             value=found.ratio, interval=span))  # fmt: skip
    return out


def mde(run: Run, discordant: float, alpha: float) -> list[tuple[int, float]]:
    """(pairs, the smallest loss shown with 80 % power) at this share of discordant pairs."""
    sizes = sorted({*SAMPLE_SIZES, len(run.samples)} - {0})
    return [(n, stats.mde_paired(n, discordant, alpha)) for n in sizes]

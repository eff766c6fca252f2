"""Figures over the answer and over the draft's confidence: what the plots show, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalkit import stats
from evalkit.acceptance.columns import Steps
from evalkit.records import Run

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


def by_position(steps: Steps) -> list[Point]:
    """Accepted length of the verify steps by the answer token at which they start; a sample is a cluster."""
    verify = steps.verify
    where, kept, who = steps.start[verify], steps.accepted[verify], steps.sample[verify]
    last = int(where.max(initial=0)) + 1
    part = np.searchsorted(POSITION_EDGES, where, side="right") - 1
    out = []
    for i, (low, high) in enumerate(zip(POSITION_EDGES, (*POSITION_EDGES[1:], last), strict=True)):
        found = _ratio(kept[part == i], who[part == i])
        if found is not None:
            n, ratio, span = found
            shifted = span and stats.Interval(1 + span.low, 1 + span.high)
            out.append(Point(low=low, high=min(high, last), steps=n, value=1 + ratio, interval=shifted))
    return out


def reliability(steps: Steps) -> list[Point]:
    """Share of drafts accepted by the confidence they had, among those whose earlier drafts were accepted."""
    usable = np.minimum(np.minimum(steps.judged, steps.told), steps.accepted + 1)
    usable = np.where(steps.verify, usable, 0)
    step = np.repeat(np.arange(len(usable)), usable)
    position = np.arange(len(step)) - np.repeat(np.cumsum(usable) - usable, usable)  # from 0
    p = steps.confidence[steps.first[step] + position]
    kept, who = steps.accepted[step] > position, steps.sample[step]
    bins = np.minimum((p * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    out = []
    for b in range(CONFIDENCE_BINS):
        found = _ratio(kept[bins == b], who[bins == b])
        if found is not None:
            n, ratio, span = found
            middle = float(p[bins == b].mean())
            within = span and stats.Interval(max(0.0, span.low), min(1.0, span.high))
            out.append(Point(low=middle, high=middle, steps=n, value=ratio, interval=within))
    return out


def _ratio(values: np.ndarray, who: np.ndarray) -> tuple[int, float, stats.Interval | None] | None:
    """(count, mean, interval) of the values with `who` as clusters; None of too few."""
    if len(values) < FEW_STEPS:
        return None
    many = np.bincount(who)
    sums = np.bincount(who, weights=values)
    found = stats.clustered_ratio(sums[many > 0], many[many > 0])
    return len(values), found.ratio, found.interval


def mde(run: Run, discordant: float, alpha: float) -> list[tuple[int, float]]:
    """(pairs, the smallest loss shown with 80 % power) at this share of discordant pairs."""
    sizes = sorted({*SAMPLE_SIZES, len(run.samples)} - {0})
    return [(n, stats.mde_paired(n, discordant, alpha)) for n in sizes]

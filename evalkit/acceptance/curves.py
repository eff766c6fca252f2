"""Acceptance by position: survival and conditional rate, each with a simultaneous band over all positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evalkit import stats
from evalkit.acceptance.columns import Steps, cluster_counts, steps_of
from evalkit.records import Sample
from evalkit.stats import Interval

if TYPE_CHECKING:
    from evalkit.acceptance.model import AcceptanceStats

SEED = 20240607  # of the band's simulation: the same run shows the same band
USEFUL = 0.05  # a position fewer steps reach adds less than a twentieth of a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One draft position 1..K. Shares are fractions of 1; the bands hold for all positions at once (95 %).

    `survival` is of all verify steps, blocks that a stop cut included. `conditional` is of the blocks `judged` here:
    all drafts before were accepted, and no stop had ended the answer (`Steps.judged_at`); None where there is no such
    block.
    Bands are None for a single document.
    """

    position: int
    steps: int  # steps that accepted at least this many drafts
    judged: int  # blocks that `conditional` is of
    survival: float
    survival_band: Interval | None
    conditional: float | None
    conditional_band: Interval | None


def positions(samples: Sequence[Sample], k: int, level: float = 0.95) -> tuple[Position, ...]:
    """Both curves of the samples that did not fail; empty without a verify step. A document is a cluster."""
    return positions_of(steps_of(samples, k), k, level)


def positions_of(steps: Steps, k: int, level: float = 0.95) -> tuple[Position, ...]:
    """`positions` of samples that were made into columns before."""
    counts = steps.counts(k)
    if not len(counts) or k < 1:
        return ()
    reached = stats.survival_counts(counts)  # [documents, K+1]: at least 0..K accepted
    above = reached[:, 1:]
    kept, judged = steps.judged_at(k)
    all_steps = np.repeat(reached[:, :1], k, axis=1)
    bands = _falling(_band(above, all_steps, level))
    conditional_bands = _band(kept, judged, level)
    out = []
    for j in range(k):
        total, base = above[:, j].sum(), judged[:, j].sum()
        out.append(
            Position(
                position=j + 1,
                steps=int(total),
                judged=int(base),
                survival=float(total / all_steps[:, j].sum()),
                survival_band=bands[j],
                conditional=float(kept[:, j].sum() / base) if base else None,
                conditional_band=conditional_bands[j],
            )
        )
    return tuple(out)


def counted_positions(found: AcceptanceStats) -> tuple[Position, ...]:
    """The same from a server's counts by position, which show no spread; empty where it has none."""
    before = (1.0, *found.survival)
    return tuple(
        Position(position=j, steps=round(s * found.steps), judged=round(before[j - 1] * found.steps), survival=s,
                 survival_band=None, conditional=c, conditional_band=None)
        for j, (s, c) in enumerate(zip(found.survival, found.conditional, strict=True), start=1)
    )  # fmt: skip


def survival_covariance(samples: Sequence[Sample], k: int) -> tuple[tuple[float, ...], ...] | None:
    """Covariance of S_1..S_K, clustered by document, to 6 digits: what a golden stores of its own uncertainty."""
    counts = cluster_counts(samples, k)
    if len(counts) < 2:
        return None
    return tuple(tuple(float(f"{x:.6g}") for x in row) for row in stats.survival_covariance(counts))


def _band(hits: np.ndarray, sizes: np.ndarray, level: float) -> list[Interval | None]:
    """One band a position; None where no step got that far, or for a single document."""
    tried = int((sizes.sum(axis=0) > 0).sum())  # the last positions are those that nothing reached
    band = stats.simultaneous_band(hits[:, :tried], sizes[:, :tried], np.random.default_rng(SEED), level)
    return [*(band.intervals if band else [None] * tried), *[None] * (hits.shape[1] - tried)]


def _falling(bands: list[Interval | None]) -> list[Interval | None]:
    """The band without what no survival curve can be: S_j is at most S_(j-1). Where all intervals hold the truth these
    do too, so the coverage is the same; a share of 0, which has a wide interval of its own, gains most."""
    known = [b for b in bands if b is not None]
    if len(known) < len(bands):
        return bands
    highs = np.minimum.accumulate([b.high for b in known])
    lows = np.maximum.accumulate([b.low for b in known[::-1]])[::-1]
    return [Interval(float(low), float(high)) for low, high in zip(lows, highs, strict=True)]


def useful_k(survival: Sequence[float]) -> int:
    """The last position (1..K) that more than 5 % of the steps reach; 0 when none does."""
    return max((j for j, share in enumerate(survival, start=1) if share > USEFUL), default=0)

"""Steps -> AcceptanceStats: the figures of a run, made of counts that were checked first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalkit import stats
from evalkit.acceptance.calibration import calibrate
from evalkit.acceptance.columns import Steps, steps_of
from evalkit.acceptance.curves import useful_k
from evalkit.acceptance.forced import constant_conditional, looks_forced
from evalkit.acceptance.identities import check_totals
from evalkit.acceptance.model import AcceptanceStats, nothing
from evalkit.records import Sample


def summarize(samples: Sequence[Sample], k: int | None = None) -> AcceptanceStats:
    """Acceptance over all steps of the samples that did not fail.

    `k` is the K that was asked for (default: the largest seen). Raises EvalkitError when a step contradicts
    itself or the K, so that no figure is ever made of counts that do not add up.
    """
    answered = [s for s in samples if not s.error]
    steps = steps_of(samples, k)
    verify = steps.verify
    n, without = int(verify.sum()), int((~verify).sum())
    top = k if k is not None else int(steps.k.max(initial=0))
    forced = any(s.forced for s in samples)
    if not n:
        return nothing(top, without, forced)

    by_document = steps.counts(top)
    histogram = by_document.sum(axis=0).astype(np.int64)
    trimmed, drafts = int(steps.trimmed[verify].sum()), int(steps.k.sum())
    total = int(histogram @ np.arange(top + 1))
    survival = histogram[::-1].cumsum()[::-1][1:] / n
    length = 1 + total / n
    check_totals(n=n, total=total, drafts=drafts, k=top, histogram=histogram, survival=survival, length=length)

    values = np.arange(top + 1)
    ratio = stats.clustered_ratio(by_document @ values, by_document.sum(axis=1), by_document @ values**2)
    per_request = _per_request(steps)
    stop, limit = (int((verify & cut).sum()) for cut in (steps.stop, steps.limit))
    emitted = sum(s.tokens - 1 for s in answered if s.tokens)
    return AcceptanceStats(
        k=top,
        requests=len(per_request),
        steps=n,
        drafts=drafts,
        accepted=total,
        accepted_trimmed=trimmed,
        accepted_length=length,
        accepted_length_trimmed=1 + trimmed / n,
        emitted_per_step=emitted / (n + without) if emitted else None,
        mean_of_requests=sum(per_request) / len(per_request),
        acceptance_rate=total / drafts,
        survival=tuple(float(x) for x in survival),
        conditional=_conditional(steps, top),
        histogram=tuple(int(x) for x in histogram),
        se=ratio.se,
        interval=None if ratio.interval is None else _shift(ratio.interval),
        clusters=ratio.clusters,
        design_effect=ratio.design_effect,
        steps_without_draft=without,
        cut_at_stop=stop,
        cut_at_limit=limit,
        past_stop=int((steps.k - steps.judged)[verify].sum()),
        cut_share=(stop + limit) / n,
        forced=forced,
        looks_forced=looks_forced(histogram),
        calibration=calibrate(steps, top),
        useful_k=useful_k([float(x) for x in survival]),
        constant_conditional=constant_conditional(histogram, ratio.design_effect),
        longest_answer=max((s.tokens for s in answered), default=0),
        uncertainty=ratio.estimate(offset=1.0),
    )


def _per_request(steps: Steps) -> list[float]:
    """Accepted length of each sample with a verify step."""
    sample, accepted = steps.sample[steps.verify], steps.accepted[steps.verify]
    many = np.bincount(sample)
    return (1 + np.bincount(sample, weights=accepted)[many > 0] / many[many > 0]).tolist()


def _shift(interval: stats.Interval) -> stats.Interval:
    return stats.Interval(1 + interval.low, 1 + interval.high)


def _conditional(steps: Steps, k: int) -> tuple[float | None, ...]:
    kept, judged = (part.sum(axis=0) for part in steps.judged_at(k))
    return tuple(float(up / n) if n else None for up, n in zip(kept, judged, strict=True))

"""Steps -> AcceptanceStats: one definition of every acceptance figure, with its uncertainty.

Definitions (as InferenceX, vLLM and ATOM count them):
- a *verify step* has k >= 1 drafts proposed; steps without a draft are counted apart and enter nothing;
- accepted length = 1 + sum(accepted) / steps, a ratio of sums over all steps, the target's own token counted;
- acceptance rate = sum(accepted) / sum(proposed); it falls as K grows, by construction;
- survival S_j = share of steps with at least j accepted drafts; accepted length = 1 + S_1 + ... + S_K;
- conditional rate at j = S_j / S_(j-1); histogram counts the steps with 0, 1, ..., K accepted drafts;
- *raw* is before any trimming at a stop or limit (the published definition), *trimmed* after it;
- the uncertainty treats a document, with all its steps, as one cluster (see stats.clustered_ratio).

Nothing here is NaN: what has no value is None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalkit import stats
from evalkit.errors import EvalkitError
from evalkit.records import Sample, StepRecord

FORCED_MIN_STEPS = 200  # fewer steps cannot show that acceptance was drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far the draft's confidence is from what happened, at one position (1..K).

    `conditional`: c_j, over steps whose first j - 1 drafts were accepted, against "draft j was accepted".
    `cumulative`: c_1 * ... * c_j, over all steps that propose j drafts, against "the first j were accepted".
    ece_10 and ece_20 are expected calibration errors with 10 and 20 equal bins, as fractions of 1.
    """

    kind: str  # conditional | cumulative
    position: int
    steps: int
    mean_confidence: float
    rate: float
    ece_10: float
    ece_20: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceStats:
    """Acceptance of one run. Lengths are in tokens a step, rates and shares are fractions of 1.

    For a run without verify steps (K=0, or a draft that never proposed) every figure is None and the
    tuples are empty; the counts are 0.
    """

    k: int  # the largest K asked for
    requests: int  # samples with at least one verify step
    steps: int  # verify steps
    drafts: int  # proposed
    accepted: int  # raw
    accepted_trimmed: int
    accepted_length: float | None
    accepted_length_trimmed: float | None  # 1 + drafts in the output / steps
    emitted_per_step: float | None  # output tokens after the first, over all steps; what speed depends on
    mean_of_requests: float | None  # plain mean of each request's accepted length: not the published figure
    acceptance_rate: float | None
    survival: tuple[float, ...]  # S_1 .. S_K
    conditional: tuple[float | None, ...]  # None after a position nothing survived to
    histogram: tuple[int, ...]  # steps with 0 .. K accepted drafts
    se: float | None  # of accepted_length, clustered by document
    interval: stats.Interval | None  # 95 %
    clusters: int
    design_effect: float | None
    steps_without_draft: int
    cut_at_stop: int  # steps
    cut_at_limit: int  # steps
    cut_share: float | None
    forced: bool  # a sample says that acceptance was drawn
    looks_forced: bool  # the histogram says so
    calibration: tuple[Calibration, ...]
    uncertainty: stats.Estimate | None = None  # of accepted_length, with what skewed documents do to its tests

    def estimate(self) -> stats.Estimate | None:
        """Accepted length with its clustered standard error; None when there is no such error."""
        if self.accepted_length is None or self.se is None:
            return None
        plain = stats.Estimate(value=self.accepted_length, se=self.se, df=self.clusters - 1)
        return self.uncertainty or plain


def summarize(samples: Sequence[Sample], k: int | None = None) -> AcceptanceStats:
    """Acceptance over all steps of the samples that did not fail.

    `k` is the K that was asked for (default: the largest seen). Raises EvalkitError when a step contradicts
    itself or the K, so that no figure is ever made of counts that do not add up.
    """
    answered = [s for s in samples if not s.error]
    for sample in answered:
        for step in sample.steps:
            _check(sample, step, k)
    verify = [[step for step in s.steps if step.k >= 1] for s in answered]
    flat = [step for steps in verify for step in steps]
    top = k if k is not None else max((step.k for step in flat), default=0)
    forced = any(s.forced for s in samples)
    without = sum(len(s.steps) for s in answered) - len(flat)
    if not flat:
        return _nothing(top, without, forced)

    accepted = np.array([step.accepted for step in flat])
    trimmed = sum(step.accepted_trimmed for step in flat)
    drafts = sum(step.k for step in flat)
    histogram = np.bincount(accepted, minlength=top + 1)
    n, total = len(flat), int(accepted.sum())
    survival = histogram[::-1].cumsum()[::-1][1:] / n
    length = 1 + total / n
    _identities(n=n, total=total, drafts=drafts, k=top, histogram=histogram, survival=survival, length=length)

    ratio = _clustered(answered, verify)
    per_request = [1 + sum(st.accepted for st in steps) / len(steps) for steps in verify if steps]
    stop, limit = (sum(step.cut == word for step in flat) for word in ("stop", "limit"))
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
        conditional=_conditional(survival),
        histogram=tuple(int(x) for x in histogram),
        se=ratio.se,
        interval=None if ratio.interval is None else _shift(ratio.interval),
        clusters=ratio.clusters,
        design_effect=ratio.design_effect,
        steps_without_draft=without,
        cut_at_stop=stop,
        cut_at_limit=limit,
        cut_share=(stop + limit) / n,
        forced=forced,
        looks_forced=looks_forced(histogram),
        calibration=_calibrate(flat, top),
        uncertainty=ratio.estimate(offset=1.0),
    )


def looks_forced(histogram: Sequence[int] | np.ndarray) -> bool:
    """True when only one value or two adjacent values ever occur over at least 200 steps, as when an engine
    draws acceptance to hit a mean (two-point histogram) or a fixed number.

    Not called forced: K=1, where two values are all there is; a draft that is never accepted; and 0-or-1 with
    fewer than 100 ones, which a very weak real draft can give. A draft that is the target itself, always
    accepted, is called forced: its run shows nothing about speculation either.
    """
    counts = [int(x) for x in histogram]
    if len(counts) <= 2 or sum(counts) < FORCED_MIN_STEPS:
        return False
    seen = [i for i, count in enumerate(counts) if count]
    if seen[-1] - seen[0] > 1 or seen == [0]:
        return False
    return not (seen[0] == 0 and counts[1] < FORCED_MIN_STEPS // 2)


def _check(sample: Sample, step: StepRecord, k: int | None) -> None:
    whole = all(type(x) is int for x in (step.k, step.accepted, step.accepted_trimmed))
    if not whole or not 0 <= step.accepted_trimmed <= step.accepted <= step.k:
        found = f"k={step.k} accepted={step.accepted} accepted_trimmed={step.accepted_trimmed}"
        raise EvalkitError(
            f"sample {sample.doc_id} has a step with {found}, expected 0 <= accepted_trimmed <= accepted <= k",
            "the engine that counted it is wrong: do not use this run",
        )
    if k is not None and step.k > k:
        raise EvalkitError(
            f"sample {sample.doc_id} has a step with {step.k} drafts in a run at K={k}",
            "the run was made with another K than it says: do not use it",
        )
    if step.cut not in ("", "stop", "limit"):
        raise EvalkitError(f"sample {sample.doc_id} has a step cut by {step.cut!r}", "expected stop or limit")
    if any(not 0 <= c <= 1 for c in step.confidence):  # a NaN is not between 0 and 1 either
        raise EvalkitError(
            f"sample {sample.doc_id} has a draft confidence outside 0..1: {list(step.confidence)}",
            "the draft's confidence head is broken: do not use this run",
        )


def _identities(
    *, n: int, total: int, drafts: int, k: int, histogram: np.ndarray, survival: np.ndarray, length: float
) -> None:
    if not 0 <= total <= drafts <= k * n:
        raise EvalkitError(f"expected 0 <= accepted <= drafts <= K * steps, found {total}, {drafts}, {k} * {n}")
    if int(histogram.sum()) != n or len(histogram) != k + 1:
        raise EvalkitError(f"the histogram {histogram.tolist()} does not sum to {n} steps at K={k}")
    if (np.diff(survival) > 0).any() or not math.isclose(length, 1 + float(survival.sum()), rel_tol=1e-12):
        raise EvalkitError(f"survival {survival.tolist()} does not belong to an accepted length of {length}")


def _clustered(answered: Sequence[Sample], verify: Sequence[Sequence[StepRecord]]) -> stats.RatioEstimate:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])  # document -> accepted, steps, squares
    for sample, steps in zip(answered, verify, strict=True):
        row = sums[sample.doc_id]
        row[0] += sum(step.accepted for step in steps)
        row[1] += len(steps)
        row[2] += sum(step.accepted**2 for step in steps)
    table = np.array(list(sums.values()), dtype=np.float64)  # [documents, 3]
    return stats.clustered_ratio(table[:, 0], table[:, 1], table[:, 2])


def _shift(interval: stats.Interval) -> stats.Interval:
    return stats.Interval(1 + interval.low, 1 + interval.high)


def _conditional(survival: np.ndarray) -> tuple[float | None, ...]:
    before = [1.0, *survival[:-1]]
    return tuple(float(s / b) if b > 0 else None for s, b in zip(survival, before, strict=True))


def _calibrate(steps: Sequence[StepRecord], k: int) -> tuple[Calibration, ...]:
    """Both kinds at every position that some step has a confidence for."""
    out = []
    for j in range(1, k + 1):
        have = [step for step in steps if step.k >= j and len(step.confidence) >= j]
        reached = [step for step in have if step.accepted >= j - 1]
        if reached:
            out.append(_calibration("conditional", j, [s.confidence[j - 1] for s in reached], reached))
        if have:
            out.append(_calibration("cumulative", j, [math.prod(s.confidence[:j]) for s in have], have))
    return tuple(sorted(out, key=lambda c: (c.kind != "conditional", c.position)))


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


def _nothing(k: int, without: int, forced: bool) -> AcceptanceStats:
    return AcceptanceStats(
        k=k,
        requests=0,
        steps=0,
        drafts=0,
        accepted=0,
        accepted_trimmed=0,
        accepted_length=None,
        accepted_length_trimmed=None,
        emitted_per_step=None,
        mean_of_requests=None,
        acceptance_rate=None,
        survival=(),
        conditional=(),
        histogram=(),
        se=None,
        interval=None,
        clusters=0,
        design_effect=None,
        steps_without_draft=without,
        cut_at_stop=0,
        cut_at_limit=0,
        cut_share=None,
        forced=forced,
        looks_forced=False,
        calibration=(),
    )

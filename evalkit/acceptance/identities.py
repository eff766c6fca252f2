"""What steps and counts must satisfy before a figure is made of them: a violation is an error, never a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalkit.errors import EvalkitError
from evalkit.records import Sample, StepRecord

CUTS = {"", "stop", "limit"}
MOST_DRAFTS = 1 << 20  # of a step: far above any engine's, and far below what an array can't hold


def columns_hold(counts: Sequence[Sequence[int]], cuts: Sequence[str], confidence: np.ndarray, k: int | None) -> bool:
    """Whether all steps are as `check_samples` wants them, which says what is wrong. `counts`: k, accepted, trimmed."""
    if any(set(map(type, column)) - {int} for column in counts) or confidence.dtype.kind not in "fib":
        return False
    if not all(issubclass(found, str) for found in set(map(type, cuts))) or not set(cuts) <= CUTS:
        return False
    lowest, most = min(map(min, counts)) if counts[0] else 0, max(counts[0], default=0)
    if lowest < 0 or most > (MOST_DRAFTS if k is None else min(k, MOST_DRAFTS)) or max(counts[1], default=0) > most:
        return False
    drafts, accepted, trimmed = (np.array(column, dtype=np.int64) for column in counts)
    return bool(((trimmed <= accepted) & (accepted <= drafts)).all() and ((confidence >= 0) & (confidence <= 1)).all())


def check_samples(samples: Sequence[Sample], k: int | None) -> None:
    """Refuses a step that contradicts itself or the K that was asked for."""
    for sample in samples:
        for step in sample.steps:
            _check(sample, step, k)


def _check(sample: Sample, step: StepRecord, k: int | None) -> None:
    whole = all(type(x) is int for x in (step.k, step.accepted, step.accepted_trimmed))
    if not whole or not 0 <= step.accepted_trimmed <= step.accepted <= step.k <= MOST_DRAFTS:
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
    if step.cut not in CUTS:
        raise EvalkitError(f"sample {sample.doc_id} has a step cut by {step.cut!r}", "expected stop or limit")
    # a NaN is not between 0 and 1 either
    if any(not isinstance(c, int | float) or not 0 <= c <= 1 for c in step.confidence):
        raise EvalkitError(
            f"sample {sample.doc_id} has a draft confidence outside 0..1: {list(step.confidence)}",
            "the draft's confidence head is broken: do not use this run",
        )


def check_totals(
    *, n: int, total: int, drafts: int, k: int, histogram: np.ndarray, survival: np.ndarray, length: float
) -> None:
    """0 <= A <= D <= K * S, the histogram sums to S, survival does not rise and sums to the length."""
    if not 0 <= total <= drafts <= k * n:
        raise EvalkitError(f"expected 0 <= accepted <= drafts <= K * steps, found {total}, {drafts}, {k} * {n}")
    if int(histogram.sum()) != n or len(histogram) != k + 1:
        raise EvalkitError(f"the histogram {histogram.tolist()} does not sum to {n} steps at K={k}")
    if (np.diff(survival) > 0).any() or not math.isclose(length, 1 + float(survival.sum()), rel_tol=1e-12):
        raise EvalkitError(f"survival {survival.tolist()} does not belong to an accepted length of {length}")

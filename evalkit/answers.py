"""Checks of the gate on what became of the answers: cut by a stop, empty, thought only, in another form, unanswered.

None of these is an accuracy loss, and each looks like one in the score. Pure; works on the canonical scores stored
with the samples, so a run stored before they existed has none of these checks, and the verdict notes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalkit.chances import per_cent
from evalkit.records import Bucket, Check, Outcome, Run, Sample
from evalkit.shares import drift, score_range
from evalkit.views import STRICT

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Shares of the answers, as fractions of 1, above which a run tells less than its score says."""

    max_stop_cut: float = 0.005
    max_empty: float = 0.002
    max_reasoning_only: float = 0.01
    max_degenerate: float = 0.01
    drift: float = 0.02  # between strict-match and the canonical score


def answer_checks(samples: Sequence[Sample], limits: AnswerLimits, notes: list[str]) -> list[Check]:
    """The checks on buckets. `samples` are the requests that came back."""
    known = [s for s in samples if s.canonical is not None]
    if len(known) < len(samples):
        notes.append(
            f"{len(samples) - len(known)} of {len(samples)} answers were stored without a canonical score: what became "
            "of them (cut by a stop, empty, thought only) is not checked"
        )
    if not known:
        return []
    return [_stop_cut(known, limits), _empty(known, limits), _thought(known, limits), _degenerate(known, limits)]


def _of(samples: Sequence[Sample], *buckets: Bucket) -> list[Sample]:
    return [s for s in samples if s.canonical is not None and s.canonical.bucket in buckets]


def _share(name: str, what: str, count: int, n: int, limit: float, above: Outcome, hint: str) -> Check:
    over = count > limit * n
    found = f"{count} of {n} {what}" + (f" ({per_cent(count / n)})" if count else "")
    expected = f"at most {100 * limit:g} %"
    message = f"{found}; expected {expected}" + (f": {hint}" if over else "")
    return Check(name=name, outcome=above if over else PASS, expected=expected, found=found, message=message,
                 numbers={"count": count, "n": n, "limit": limit})  # fmt: skip


def _stop_cut(samples: Sequence[Sample], limits: AnswerLimits) -> Check:
    cut = _of(samples, Bucket.STOP_CUT)
    strings = ", ".join(f"{stop!r} {n} times" for stop, n in Counter(s.stop_hit for s in cut).most_common(3))
    hint = f"the stop {strings} fired before an answer; the score says nothing about those"
    return _share("stop cut", "answers cut by a stop", len(cut), len(samples), limits.max_stop_cut, INCONCLUSIVE, hint)


def _empty(samples: Sequence[Sample], limits: AnswerLimits) -> Check:
    zero, blank = len(_of(samples, Bucket.ZERO_TOKENS)), len(_of(samples, Bucket.EMPTY))
    hint = f"{zero} without a single token, {blank} with tokens but no text"
    hint += "; look for NaN logits" if zero else "; look at the stop strings"
    return _share("empty answers", "answers empty", zero + blank, len(samples), limits.max_empty, FAIL, hint)


def _thought(samples: Sequence[Sample], limits: AnswerLimits) -> Check:
    cut = len(_of(samples, Bucket.TRUNCATED_IN_THINKING))
    count = cut + len(_of(samples, Bucket.REASONING_ONLY))
    hint = f"{cut} of them reached the token limit in their thinking: raise --max-tokens, or turn thinking off"
    what, limit = "answers are thinking only", limits.max_reasoning_only
    return _share("reasoning only", what, count, len(samples), limit, INCONCLUSIVE, hint)


def _degenerate(samples: Sequence[Sample], limits: AnswerLimits) -> Check:
    broken = _of(samples, Bucket.DEGENERATE)
    kinds = Counter(s.canonical.reason for s in broken if s.canonical)
    words = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    docs = ", ".join(str(s.doc_id) for s in broken[:5])
    hint = f"{words} (documents {docs}): look at the logits and at the quant mode"
    what, limit = "answers broke down", limits.max_degenerate
    return _share("degenerate answers", what, len(broken), len(samples), limit, FAIL, hint)


def format_check(samples: Sequence[Sample], limits: AnswerLimits, accuracy: Check) -> tuple[list[Check], Check]:
    """The check on format drift, and the accuracy check in its light.

    Where strict-match and the canonical score are far apart, strict-match measures the form of the answers. A loss
    by it is then no accuracy loss, and the accuracy check can say no more than "inconclusive"; a pass stays one,
    unless strict-match is the higher of the two.
    """
    found = drift([s for s in samples if s.canonical is not None])
    if found is None:
        return [], accuracy
    numbers: dict[str, Any] = {"strict": found.strict, "canonical": found.canonical, "reasons": dict(found.reasons)}
    shown = f"{STRICT} {found.strict:.4f}, canonical {found.canonical:.4f}"
    far = abs(found.size) > limits.drift
    flattered = found.size < -limits.drift  # strict-match takes for right what is no answer: its pass is none
    drifts = flattered or (far and accuracy.outcome is not PASS)
    expected = f"the two at most {100 * limits.drift:g} pt apart"
    message = f"{shown}: {'format drift, ' if far else ''}{found.words}"
    check = Check(name="format", outcome=INCONCLUSIVE if drifts else PASS, expected=expected, found=shown,
                  message=message, numbers=numbers)  # fmt: skip
    if drifts and accuracy.outcome is FAIL and "difference" in accuracy.numbers:
        words = f"{accuracy.message}; format drift, not shown to be an accuracy loss: {shown}"
        accuracy = replace(accuracy, outcome=INCONCLUSIVE, message=words)
    return [check], accuracy


def unanswered_check(run: Run, margin: float) -> list[Check]:
    """Where requests failed: the score if all of them were wrong and if all were right. None where none failed."""
    failed = sum(bool(s.error) for s in run.samples)
    if not failed or not run.samples:
        return []
    found = score_range(run.samples, STRICT, len(run.samples))
    words = f"{failed} of {len(run.samples)} unanswered: {STRICT} {found.worst:.4f} if all of them are wrong, "
    words += f"{found.best:.4f} if all are right"
    outcome = PASS if found.best - found.worst <= margin else INCONCLUSIVE
    return [Check(name="unanswered", outcome=outcome, expected=f"at most {100 * margin:g} pt left open", found=words,
                  message=words, numbers={"worst": found.worst, "best": found.best})]  # fmt: skip

"""Strict-match against published scores of the same target and task: unpaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalkit import stats
from evalkit.baseline import STRICT, ReferenceScore
from evalkit.gate.common import INCONCLUSIVE, checked, correct_of, decide, points, what_would_tell
from evalkit.gate.limits import GateSpec
from evalkit.records import Check, Run, Sample


def published_checks(
    run: Run, answered: Sequence[Sample], references: Sequence[ReferenceScore], spec: GateSpec, notes: list[str]
) -> list[Check]:
    """Strict-match against published scores of the same target and task: unpaired score test."""
    checks = []
    for ref in references:
        why = ref.not_comparable(run)
        if why and ref.gates:
            notes.append(f"published {ref} is not comparable: {why}")
        elif not why and not ref.gates:
            notes.append(f"published for orientation: {ref}")
        elif not why:
            found = _reference(answered, ref, spec)
            if run.stopped:
                words = (
                    f"{found.message}; the run was stopped early by its score, so a test of fixed size tells nothing"
                )
                found = replace(found, outcome=INCONCLUSIVE, message=words)
            checks.append(found)
            notes.append(f"protocol of {ref.name}: {ref.protocol}")
    return checks


def _reference(answered: Sequence[Sample], ref: ReferenceScore, spec: GateSpec) -> Check:
    n, correct, level = len(answered), correct_of(answered), 1 - 2 * spec.alpha
    p, q, margin = correct / n, ref.correct / ref.n, spec.score_margin
    test = stats.two_proportion_test(correct, n, ref.correct, ref.n, -margin)
    span = stats.two_proportion_interval(correct, n, ref.correct, ref.n, level)
    outcome = decide(test, spec.alpha)
    mde = stats.mde_unpaired((correct + ref.correct) / (n + ref.n), n, ref.n, spec.alpha)
    needed = stats.needed_n(p, q, ref.n, p - q + margin, spec.alpha)
    found = f"{STRICT} {p:.4f} ({correct}/{n})"
    message = (
        f"{found} against published {ref}, unpaired: {points(p - q)}, {100 * level:g} % {points(span.low)} .. "
        f"{points(span.high)}, p {test.p_above:.2g} for a loss under {100 * margin:g} pt"
    )
    return checked(
        f"reference {ref.name}", outcome, f"{STRICT} at most {100 * margin:g} pt below {ref}", found,
        message + what_would_tell(outcome, mde, needed, "questions"),
        score=p, reference=q, difference=p - q, interval=[span.low, span.high], level=level, paired=0, n=n,
        reference_n=ref.n, p=test.p_above, p_worse=test.p_below, margin=margin, mde=mde, needed=needed,
    )  # fmt: skip

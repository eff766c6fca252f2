"""Strict-match against published scores of the same target and task: unpaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalkit import stats
from evalkit.baseline import STRICT, ReferenceScore
from evalkit.chances import loss_words
from evalkit.formats import points, points_interval
from evalkit.gate.common import INCONCLUSIVE, checked, correct_of, decide, what_would_tell
from evalkit.gate.limits import GateSpec
from evalkit.records import Check, Run, Sample

TOO_GOOD = 3.0  # standard errors above a published score: a warning


def published_checks(
    run: Run, answered: Sequence[Sample], references: Sequence[ReferenceScore], spec: GateSpec, notes: list[str]
) -> list[Check]:
    """Strict-match against published scores of the same target and task. A score that the specification asks for and
    that is of another protocol compares nothing; one that nobody asked for is a note."""
    if spec.against:
        return _asked_for(run, answered, references, spec, notes)
    checks = []
    for ref in references:
        why = ref.not_comparable(run)
        if why and ref.gates:
            notes.append(f"published {ref} is not comparable: {why}")
        elif not why and not ref.gates:
            notes.append(f"published for orientation: {ref}")
        elif not why:
            checks.append(_of_run(run, answered, ref, spec.score_margin, spec.alpha, notes))
    return checks


def _asked_for(
    run: Run, answered: Sequence[Sample], references: Sequence[ReferenceScore], spec: GateSpec, notes: list[str]
) -> list[Check]:
    checks = []
    by_name = {ref.name: ref for ref in references}
    for asked in spec.against:
        margin = spec.score_margin if asked.margin is None else asked.margin
        ref = by_name.get(asked.name)
        if ref is None or (why := ref.not_comparable(run)):
            found = "no such published score" if ref is None else f"published {ref} is refused: {why}"
            expected = f"{STRICT} at most {100 * margin:g} pt below {asked.name}"
            checks.append(checked(f"reference {asked.name}", INCONCLUSIVE, expected, found, compared=0))
        else:
            checks.append(_of_run(run, answered, ref, margin, spec.alpha, notes))
    return checks


def _of_run(
    run: Run, answered: Sequence[Sample], ref: ReferenceScore, margin: float, alpha: float, notes: list[str]
) -> Check:
    found = compare_counts(correct_of(answered), len(answered), ref, margin, alpha)
    if run.stopped:
        words = f"{found.message}; the run was stopped early by its score, so a test of fixed size tells nothing"
        found = replace(found, outcome=INCONCLUSIVE, message=words)
    notes.append(f"protocol of {ref.name}: {ref.protocol}")
    return found


def compare_counts(
    correct: int, n: int, ref: ReferenceScore, margin: float, alpha: float, name: str = "", exact: bool = True
) -> Check:
    """A score against a published one, on different samples: Miettinen and Nurminen's score test and interval.

    exact: see stats.two_proportion_test; False gives the digits of statsmodels, with which figures were published.
    """
    level = 1 - 2 * alpha
    p, q = correct / n, ref.correct / ref.n
    test = stats.two_proportion_test(correct, n, ref.correct, ref.n, -margin, exact=exact)
    span = stats.two_proportion_interval(correct, n, ref.correct, ref.n, level, exact=exact)
    wide = stats.two_proportion_interval(correct, n, ref.correct, ref.n, 0.95, exact=exact)
    outcome = decide(test, alpha)
    mde = stats.mde_unpaired((correct + ref.correct) / (n + ref.n), n, ref.n, alpha)
    needed = stats.needed_n(p, q, ref.n, p - q + margin, alpha)
    found = f"{STRICT} {p:.4f} ({correct}/{n})"
    message = (
        f"{found} against published {ref}, unpaired: {points(p - q)}, {100 * level:g} % "
        f"{points_interval(span.low, span.high)}, 95 % {points_interval(wide.low, wide.high)}, "
        f"{loss_words(outcome, test.p_above, test.p_below, f'{100 * margin:g} pt')}"
    )
    if stats.two_proportion_test(correct, n, ref.correct, ref.n, 0.0, exact=exact).statistic > TOO_GOOD:
        message += (
            f"; warning: {points(p - q)} is over {TOO_GOOD:g} standard errors above it: too good to be believed unread"
        )
    return checked(
        name or f"reference {ref.name}", outcome, f"{STRICT} at most {100 * margin:g} pt below {ref}", found,
        message + what_would_tell(outcome, mde, needed, "questions"),
        score=p, reference=q, difference=p - q, interval=[span.low, span.high], level=level, paired=0, n=n,
        interval_95=[wide.low, wide.high], reference_n=ref.n, p=test.p_above, p_worse=test.p_below, margin=margin,
        mde=mde, needed=needed, compared=n,
    )  # fmt: skip

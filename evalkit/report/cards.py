"""What a reviewer asks, and the answers: the page's headline, and one card a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evalkit.records import Check, Outcome, Verdict
from evalkit.report import text
from evalkit.report.subject import Subject

NOT_JUDGED = "not judged"
ANSWERS, DRAFT, EVIDENCE = "Does it answer as well?", "Does the draft still pay?", "Can the evidence be trusted?"
_ABOUT_ANSWERS = ("accuracy", "reference", "unanswered", "protocol", "format", "scores", "lossless")
_ABOUT_DRAFT = ("accepted", "draft", "acceptance", "confidence")
_WORD = {Outcome.PASS: "Yes", Outcome.FAIL: "No", Outcome.INCONCLUSIVE: "Can't tell yet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One question with its answer; `outcome` is pass, fail, inconclusive or not judged."""

    question: str
    outcome: str
    figure: str  # the number that answers
    words: str  # with what it was compared
    reasons: tuple[str, ...]  # what is not a pass, in the gate's words
    passed: str  # how many checks pass


def outcome(verdicts: Sequence[Verdict | None]) -> str:
    """Of all runs together: fail if any fails, else inconclusive or not judged if any is, else pass."""
    found = [NOT_JUDGED if v is None else v.outcome.value for v in verdicts]
    return next((o for o in ("fail", "inconclusive", NOT_JUDGED, "pass") if o in found), NOT_JUDGED)


def headline(found: Sequence[Subject]) -> str:
    """Yes or no, and why, in a sentence or two."""
    if len(found) == 1:
        return _single(found[0].verdict)
    counted = Counter(NOT_JUDGED if s.verdict is None else s.verdict.outcome.value for s in found)
    parts = [f"{counted[name]} {word}" for name, word in
             (("pass", "pass"), ("fail", "fail"), ("inconclusive", "can't be told yet"), (NOT_JUDGED, "not judged"))
             if counted[name]]  # fmt: skip
    adjusted = any(c.name == "sweep" for s in found if s.verdict for c in s.verdict.checks)
    holm = " A pass is one after Holm's correction over all of them." if adjusted else ""
    return f"Of {len(found)} runs, {', '.join(parts)}.{holm}"


def mixed(found: Sequence[Subject]) -> str:
    """Said first where real and forced acceptance are on one page (C61); "" where they are not."""
    forced = [s.label for s in found if s.run.forced]
    if not forced or len(forced) == len([s for s in found if s.k]):
        return ""
    one = len(forced) == 1
    return (
        f"This page mixes real and forced acceptance: {', '.join(forced)} {'was' if one else 'were'} forced, so "
        f"{'its' if one else 'their'} accepted length was drawn and not measured. Never read the two side by side."
    )


def _single(verdict: Verdict | None) -> str:
    if verdict is None:
        return "No gate was run on this run: its numbers are shown, nothing is concluded."
    if not verdict.checks:
        return "Nothing was compared."
    rest = [c for c in verdict.checks if c.outcome is not Outcome.PASS]
    if verdict.outcome is Outcome.PASS:
        n = len(verdict.checks)
        return f"Yes: {'the only check passes' if n == 1 else f'all {n} checks pass'}. It may go to a performance run."
    names = [c.name for c in rest if c.outcome is verdict.outcome]
    other = [c.name for c in rest if c.outcome is not verdict.outcome]
    says = {"fail": "fails" if len(names) == 1 else "fail"}.get(
        verdict.outcome.value, "is inconclusive" if len(names) == 1 else "are inconclusive"
    )
    more = f"; {_and(other)} can't be told" if other else ""
    passed = len(verdict.checks) - len(rest)
    return f"{_WORD[verdict.outcome]}: {_and(names)} {says}{more}; {passed} of {len(verdict.checks)} checks pass."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "no single check"


def question_of(check: Check) -> str:
    """The question that a check belongs to."""
    if check.name.startswith(_ABOUT_ANSWERS):
        return ANSWERS
    return DRAFT if any(word in check.name for word in _ABOUT_DRAFT) else EVIDENCE


def cards(s: Subject) -> tuple[Card, ...]:
    """The three questions, answered for one run."""
    parts = {ANSWERS: _answers(s), DRAFT: _draft(s), EVIDENCE: _evidence(s)}
    out = []
    for question, (figure, words) in parts.items():
        own = [c for c in s.verdict.checks if question_of(c) == question] if s.verdict else []
        bad = [c for c in own if c.outcome is not Outcome.PASS]
        worst = next(
            (o for o in (Outcome.FAIL, Outcome.INCONCLUSIVE) if any(c.outcome is o for c in own)), Outcome.PASS
        )
        passed = f"{len(own) - len(bad)} of {len(own)} checks pass" if own else "no check"
        reasons = tuple(f"{c.name}: {_reason(c)}" for c in sorted(bad, key=lambda c: c.outcome is not Outcome.FAIL)[:3])
        out.append(Card(question=question, outcome=worst.value if own else NOT_JUDGED, figure=figure, words=words,
                        reasons=reasons, passed=passed))  # fmt: skip
    return tuple(out)


def _reason(check: Check) -> str:
    """The part of a check's message that says why: after its last semicolon, which names what would settle it."""
    if check.outcome is Outcome.INCONCLUSIVE and "needed" in check.numbers and "; " in check.message:
        return check.message.rsplit("; ", 1)[1]
    return check.found if len(check.message) > 160 else check.message


def _answers(s: Subject) -> tuple[str, str]:
    correct, n = s.scored
    if not n:
        return "no score", "No answer of this run has a score."
    x = s.check("accuracy")
    own = f"{correct / n:.4f} ({correct}/{n})"
    if "difference" in x and "interval" in x:
        low, high = x["interval"]
        level = 100 * float(x["level"])
        words = (
            f"strict-match {own} against {float(x['baseline']):.4f}, paired; {level:g} % {_pt(low)} .. {_pt(high)} pt"
        )
        return f"{_pt(x['difference'])} pt", f"{words}; margin \u2212{100 * float(x['margin']):g} pt"
    span = text.wilson(correct, n)
    return f"{correct / n:.4f}", f"strict-match {own}, 95 % {span}; {_uncompared(s)}"


def _uncompared(s: Subject) -> str:
    if s.not_comparable:
        return f"not comparable with the baseline (baseline / this run: {s.not_comparable})"
    return "compared with no baseline"


def _pt(value: float) -> str:
    return f"{100 * float(value):+.1f}".replace("-", "\u2212")


def _draft(s: Subject) -> tuple[str, str]:
    found = s.acceptance
    if s.k == 0:
        return "K=0", "Plain decoding: nothing was drafted."
    if found.accepted_length is None:
        return "no value", f"No verify step was counted in this run of K={s.k}."
    spread = text.spread(found.se, 3)
    own = f"{found.accepted_length:.3f}{spread} tokens a step"
    x = s.check("accepted length")
    if x.get("ratio") is None:
        return (
            f"{found.accepted_length:.2f}",
            f"{own}; {s.view.missing[0] if s.golden_differs else 'compared with no golden'}",
        )
    words = f"{own} against golden {float(x['golden']):.3f}"
    if x.get("interval"):
        low, high = x["interval"]
        words += f"; {100 * float(x['level']):g} % {100 * low:.1f} .. {100 * high:.1f} %"
    return f"{100 * float(x['ratio']):.1f} %", f"{words}; margin {100 * (1 - float(x['margin'])):g} %"


def _evidence(s: Subject) -> tuple[str, str]:
    run = s.run
    failed = sum(bool(x.error) for x in run.samples)
    cut = sum(not x.error and x.finish_reason == "length" for x in run.samples)
    whole = "the whole task" if len(run.samples) == run.task_size else f"of the task's {text.count(run.task_size)}"
    return (f"{text.count(len(run.samples))} samples",
            f"{whole}; {text.count(failed)} requests failed, {text.count(cut)} answers truncated")  # fmt: skip

"""What a reviewer asks, and the answers: the page's headline, and one card a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evalkit.gate.accuracy import is_own_baseline
from evalkit.records import Check, Outcome, Verdict
from evalkit.report import checks, text
from evalkit.report.subject import Subject

NOT_JUDGED = "not judged"
ANSWERS, DRAFT, EVIDENCE = "Does it answer as well?", "Does the draft still pay?", "Can the evidence be trusted?"
QUESTION_OF = {  # of every check; a name with a space at its end is of all checks that begin so
    "accuracy": ANSWERS, "reference ": ANSWERS, "floor": ANSWERS, "lossless": ANSWERS, "layout": ANSWERS,
    "protocol": ANSWERS,
    "format": ANSWERS, "scores": ANSWERS, "unanswered": ANSWERS, "empty answers": ANSWERS, "reasoning only": ANSWERS,
    "degenerate answers": ANSWERS,
    "draft": DRAFT, "acceptance": DRAFT, "accepted length": DRAFT, "accepted drafts distribution": DRAFT,
    "accept rate by position": DRAFT,
    "real acceptance": EVIDENCE, "acceptance source": EVIDENCE, "step counts": EVIDENCE,
    "completeness": EVIDENCE, "requests": EVIDENCE, "truncation": EVIDENCE, "stop cut": EVIDENCE, "score": EVIDENCE,
    "baseline floor": EVIDENCE, "age": EVIDENCE, "path ": EVIDENCE, "sweep": EVIDENCE, "served setting": EVIDENCE,
    "stored reading": EVIDENCE,
}  # fmt: skip
COMPARES = ("accuracy", "reference ", "floor", "lossless")  # without one of these nothing says how well it answers
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
        return _single(found[0])
    counted = Counter(NOT_JUDGED if s.verdict is None else s.verdict.outcome.value for s in found)
    parts = [f"{counted[name]} {word}" for name, word in
             (("pass", "pass"), ("fail", "fail"), ("inconclusive", "can't be told yet"), (NOT_JUDGED, "not judged"))
             if counted[name]]  # fmt: skip
    allowed = [c.numbers for s in found if s.verdict for c in s.verdict.checks if c.name == "sweep"]
    how = " A pass is one after Holm's correction over all of them." if allowed else ""
    if any("place" in x for x in allowed):
        how = " A pass is one in a fixed order, in which all runs before it pass too."
    odd = [s.label for s in found if s.remarks]
    more = f" To be explained before a performance run: {', '.join(odd)}." if odd else ""
    return f"Of {len(found)} runs, {', '.join(parts)}.{how}{more}"


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


def _single(s: Subject) -> str:
    verdict = s.verdict
    if verdict is None:
        return "No gate was run on this run: its numbers are shown, nothing is concluded."
    if not verdict.checks:
        return "Nothing was compared."
    rest = [c for c in verdict.checks if c.outcome is not Outcome.PASS]
    if verdict.outcome is Outcome.PASS:
        n, good = len(verdict.checks), len(verdict.checks) - len(rest)
        if rest:
            return f"The verdict says pass, and {good} of its {n} checks do: it contradicts itself."
        passed = f"Yes: {'the only check passes' if n == 1 else f'all {n} checks pass'}."
        if s.k == 0:
            return f"{passed} It is plain decoding: a standard for others, and no draft that speeds anything up."
        if s.remarks:
            return f"{passed} Before it goes to a performance run, read this: {'; '.join(s.remarks)}."
        return f"{passed} It may go to a performance run."
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
    """The question that a check belongs to; one of a verdict from elsewhere, that no gate here makes, to the last."""
    prefix = f"{check.name.split(' ')[0]} "
    return QUESTION_OF.get(check.name, QUESTION_OF.get(prefix, EVIDENCE))


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
        told = bool(own) and (bad or question != ANSWERS or any(c.name.startswith(COMPARES) for c in own))
        out.append(Card(question=question, outcome=worst.value if told else NOT_JUDGED, figure=figure, words=words,
                        reasons=reasons, passed=passed))  # fmt: skip
    return tuple(out)


def _reason(check: Check) -> str:
    """Why a check is no pass: its message, or, where that is long and a figure was judged, the figure with its
    interval and margin, and what would settle it."""
    span = checks.interval(check)
    if len(check.message) <= 160 or span == checks.NONE:
        return check.message
    x = check.numbers
    parts = [check.found]
    if x.get("difference") is not None:
        parts.append(text.points(x["difference"]))
    elif x.get("ratio") is not None:
        parts.append(f"{text.percent(x['ratio'])} of golden")
    parts.append(f"interval {span}")
    if checks.margin(check) != checks.NONE:
        parts.append(f"margin {checks.margin(check)}")
    words = ", ".join(parts)
    settles = check.message.rsplit("; ", 1)[-1]
    return f"{words}; {settles}" if "settle" in settles else words


def _answers(s: Subject) -> tuple[str, str]:
    correct, n = s.scored
    if not n:
        return "no score", "No answer of this run has a score."
    x = s.check("accuracy")
    own = f"{correct / n:.4f} ({correct}/{n})"
    if "difference" in x and "interval" in x:
        low, high = x["interval"]
        level = 100 * float(x["level"])
        span = text.points_interval(low, high)
        words = f"strict-match {own} against {float(x['baseline']):.4f}, paired; {level:g} % {span}"
        return text.points(x["difference"]), f"{words}; margin -{100 * float(x['margin']):g} pt"
    span = text.wilson(correct, n)
    return f"{correct / n:.4f}", f"strict-match {own}, 95 % {span}; {_uncompared(s)}"


def _uncompared(s: Subject) -> str:
    """Why no difference to a baseline is shown."""
    if s.not_comparable:
        return f"not comparable with the baseline (baseline / this run: {s.not_comparable})"
    if is_own_baseline(s.run, s.baseline):
        return "this run is the baseline: compared with nothing"
    x = s.check("accuracy")
    if x.get("differ"):
        return f"not comparable with the baseline it was judged by ({x['differ']})"
    if "paired" in x and "n" in x:
        return f"{text.count(int(x['paired']))} of {text.count(int(x['n']))} answers found in the baseline"
    if s.baseline is None:
        return "compared with no baseline"
    named = s.baseline.source or s.baseline.run_id
    pairs = s.pairs
    if pairs is None:
        return f"no answer of it is in baseline {named}"
    before = f"{pairs.baseline_correct / pairs.n:.4f} ({pairs.baseline_correct}/{pairs.n})"
    return f"baseline {named} has {before} on the same questions; the difference was not judged"


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
        return f"{found.accepted_length:.2f}", f"{own}; {_no_golden(s)}"
    words = f"{own} against golden {float(x['golden']):.3f}"
    if x.get("interval"):
        low, high = x["interval"]
        words += f"; {100 * float(x['level']):g} % {text.percent_interval(low, high)}"
    return text.percent(x["ratio"]), f"{words}; margin {100 * float(x['margin']):g} %"


def _no_golden(s: Subject) -> str:
    """Why no share of a golden is shown."""
    if s.run.forced:
        return "drawn, not verified: compared with nothing"
    if s.golden_differs:
        return s.view.missing[0]
    if s.view.value is not None:
        return f"golden {s.view.value.accepted_length:.3f} ({s.view.value.source}); the difference was not judged"
    if s.check("accepted length").get("golden") is not None:
        return f"golden {float(s.check('accepted length')['golden']):.3f}; the difference was not judged"
    return s.view.missing[0] if s.golden is not None and s.view.missing else "compared with no golden"


def _evidence(s: Subject) -> tuple[str, str]:
    run = s.run
    failed = sum(bool(x.error) for x in run.samples)
    cut = sum(not x.error and x.finish_reason == "length" for x in run.samples)
    whole = "the whole task" if len(run.samples) == run.task_size else f"of the task's {text.count(run.task_size)}"
    return (f"{text.count(len(run.samples))} samples",
            f"{whole}; {text.count(failed)} requests failed, {text.count(cut)} answers truncated")  # fmt: skip

"""judge(run, baseline, golden, references, spec) -> Verdict: pure, no file access, no clock.

Each check has three outcomes. `pass` and `fail` are both shown by a one-sided test at alpha, in opposite
directions; what neither shows is `inconclusive`, with the amount of data that would tell. The verdict
passes only if every check passes, so its chance to pass a run that lies on one margin is at most alpha,
however many checks there are (intersection-union). Hard conditions (a lost sample, a NaN, a forced run,
a draft that does nothing) need no test: they fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalkit import stats
from evalkit.acceptance import AcceptanceStats, distribution_test, forced_signs, of_run
from evalkit.answers import AnswerLimits, answer_checks, format_check, unanswered_check
from evalkit.baseline import BASELINE_MARKS, FLEXIBLE, HASH_CHARS, STRICT, Baseline, ReferenceScore, mark, score_bit
from evalkit.baseline import baseline_command as baseline_fix
from evalkit.errors import EvalkitError
from evalkit.golden import NEVER_WORKED, NOTED_MARKS, Curve, GoldenValue, differing_marks, lookup, record_command
from evalkit.records import Check, Outcome, Run, Sample, Stopping, Verdict
from evalkit.servercheck import failed_words, server_notes, source_check
from evalkit.stopping import Followed, check_stop, follow, in_order, rule_of

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSpec:
    """The losses that are accepted, fixed before the run. Shares are fractions of 1."""

    accuracy_margin: float = 0.01  # strict-match, paired with the baseline
    score_margin: float = 0.02  # strict-match, against a published score
    length_margin: float = 0.05  # accepted length, relative to golden
    distribution_margin: float = 0.05  # tokens a step lost at any positions, relative to golden's accepted length
    alpha: float = 0.05  # one-sided, of each check
    max_failed: float = 0.0  # share of requests
    max_truncated: float = 0.01  # share of answers
    min_samples: int = 100  # fewer can never pass
    assumed_golden_se: float = 0.025  # relative, for a golden that publishes none: 0.1 tokens of 4.04 at K=7
    suspicious_ratio: float = 1.10  # accepted length over golden above which the reader is warned
    answers: AnswerLimits = field(default_factory=AnswerLimits)

    def __post_init__(self) -> None:
        for name in ("accuracy_margin", "score_margin", "length_margin", "distribution_margin", "alpha",
                     "assumed_golden_se"):  # fmt: skip
            if not 0 < getattr(self, name) < 0.5:  # NaN is in no range
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction above 0 and below 0.5")
        for name in ("max_failed", "max_truncated"):
            if not 0 <= getattr(self, name) < 1:
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction from 0 to below 1")
        if self.min_samples < 1 or not self.suspicious_ratio > 1:
            raise EvalkitError(f"gate: min_samples is {self.min_samples}, suspicious_ratio {self.suspicious_ratio}")


def judge(
    run: Run,
    *,
    baseline: Baseline | None,
    golden: Curve | None,
    references: Sequence[ReferenceScore] = (),
    spec: GateSpec | None = None,
) -> Verdict:
    """The verdict on one run. `golden` is the curve to look K up in; a missing standard is never a pass."""
    spec = spec or GateSpec()
    k = run.cell.get("k")
    if type(k) is not int or k < 0:
        raise EvalkitError(f"run {run.id} says K={k}, expected a whole number", "run it again with this evalkit")
    notes: list[str] = server_notes(run)
    answered = [s for s in run.samples if not s.error]
    checks = [_completeness(run, baseline, spec, notes), _requests(run, spec), _truncated(answered, spec)]
    unscored: list[str] = []
    checks += answer_checks(answered, spec.answers, unscored)
    broken = _broken_scores(answered)
    checks.append(broken or _protocol(answered))
    if not broken:
        form, accuracy = format_check(answered, spec.answers, _accuracy(run, answered, baseline, spec))
        checks += [*form, accuracy, *unanswered_check(run, spec.accuracy_margin)]
        checks += _references(run, answered, references, spec, notes)
    checks += _acceptance(run, k, golden, spec, notes)
    outcome = combine([c.outcome for c in checks])
    return Verdict(outcome=outcome, checks=tuple(checks), run_id=run.id, notes=(*notes, *unscored))


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """Fail if any fails, else inconclusive if any is, else pass; nothing checked is a fail."""
    if not outcomes or FAIL in outcomes:
        return FAIL
    return INCONCLUSIVE if INCONCLUSIVE in outcomes else PASS


def _check(name: str, outcome: Outcome, expected: str, found: str, message: str = "", /, **numbers: Any) -> Check:
    message = message or f"{found}; expected {expected}"
    return Check(name=name, outcome=outcome, expected=expected, found=found, message=message, numbers=numbers)


def _decide(test: stats.BoundTest, alpha: float) -> Outcome:
    if test.p_above <= alpha:
        return PASS
    return FAIL if test.p_below <= alpha else INCONCLUSIVE


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f} pt"


# --- is there a whole run


def _completeness(run: Run, baseline: Baseline | None, spec: GateSpec, notes: list[str]) -> Check:
    found = len(run.samples)
    ids, docs = len({s.doc_id for s in run.samples}), len({s.doc_hash for s in run.samples})
    numbers = {"expected": run.expected, "found": found, "task_size": run.task_size}

    def check(outcome: Outcome, words: str) -> Check:
        expected = f"all {run.task_size} samples of the task, each once"
        return _check("completeness", outcome, expected, f"{found} samples", f"{found} samples: {words}", **numbers)

    if found == 0:
        return check(FAIL, "nothing to compare")
    early = run.stopped and run.complete and found < run.expected
    if not early and (not run.complete or found != run.expected):
        return check(FAIL, f"the run was to have {run.expected}; run it again, it continues where it stopped")
    if ids != found or docs != found:
        return check(FAIL, f"only {min(ids, docs)} different documents; a duplicated sample is counted twice")
    if run.expected > run.task_size:
        return check(FAIL, f"the task has only {run.task_size}; the run is of another task than it says")
    if run.expected < run.task_size:
        notes.append(f"a subset of {found} of {run.task_size} samples can refuse a configuration, never certify it")
        return check(INCONCLUSIVE, f"a subset of the task's {run.task_size} can never pass; run without a limit")
    if early:
        outcome, words = check_stop(run, baseline)
        short = outcome is PASS and "success" in run.stopped and found < spec.min_samples
        if not short:
            return check(outcome, words)
    if found < spec.min_samples:
        return check(INCONCLUSIVE, f"at least {spec.min_samples} are needed for a verdict")
    return check(PASS, "the whole task, each sample once")


def _share_check(name: str, what: str, count: int, n: int, limit: float) -> Check:
    share = count / n if n else None
    outcome = PASS if share is not None and share <= limit else FAIL
    found = f"{count} of {n} {what}" + (f" ({100 * share:.2g} %)" if share else "")
    return _check(name, outcome, f"at most {100 * limit:g} %", found, count=count, n=n, limit=limit)


def _requests(run: Run, spec: GateSpec) -> Check:
    failed = sum(bool(s.error) for s in run.samples)
    return _share_check("requests", f"requests failed{failed_words(run)}", failed, len(run.samples), spec.max_failed)


def _truncated(answered: Sequence[Sample], spec: GateSpec) -> Check:
    cut = sum(s.finish_reason == "length" for s in answered)
    return _share_check("truncation", "answers cut by the token limit", cut, len(answered), spec.max_truncated)


# --- are the scores scores


def _broken_scores(answered: Sequence[Sample]) -> Check | None:
    broken = []
    for sample in answered:
        try:
            score_bit(sample, STRICT)
            if FLEXIBLE in sample.scores:
                score_bit(sample, FLEXIBLE)
        except EvalkitError as e:
            broken.append(e.what)
    if answered and not broken:
        return None
    message = f"{len(broken)} of {len(answered)} scores are no scores: {broken[0]}" if broken else "no score at all"
    expected = "a score of 0 or 1 for every answer"
    return _check("scores", FAIL, expected, message, f"{message}; nothing is compared", broken=len(broken))


def _protocol(answered: Sequence[Sample]) -> Check:
    n, strict = len(answered), _correct(answered)
    flexible = sum(int(s.scores.get(FLEXIBLE, 0)) for s in answered)
    found = f"{STRICT} {strict / n:.4f}, {FLEXIBLE} {flexible / n:.4f}"
    if strict == 0 and flexible / n > 0.3:
        words = f"{found}: the answers are there, not in the form asked for (prompt, stop strings or template)"
        return _check("protocol", FAIL, "answers in the form asked for", found, words)
    return _check("protocol", PASS, "answers in the form asked for", found, strict=strict, flexible=flexible, n=n)


def _correct(answered: Sequence[Sample]) -> int:
    return sum(score_bit(s, STRICT) for s in answered)


# --- accuracy


def _accuracy(run: Run, answered: Sequence[Sample], baseline: Baseline | None, spec: GateSpec) -> Check:
    """Strict-match against the baseline, paired by document and prompt: Tango's one-sided test."""
    n, correct = len(answered), _correct(answered)
    margin = spec.accuracy_margin
    expected = f"{STRICT} at most {100 * margin:g} pt below the baseline"
    numbers: dict[str, Any] = {"score": correct / n, "correct": correct, "n": n, "se": stats.proportion_se(correct, n)}
    found = f"{STRICT} {correct / n:.4f} ({correct}/{n})"

    def check(outcome: Outcome, words: str) -> Check:
        return _check("accuracy", outcome, expected, found, f"{found} {words}", **numbers)

    if baseline is None:
        return check(INCONCLUSIVE, f"and no baseline to compare it with; fix: {_own_baseline(run)}")
    differ = [m for m in BASELINE_MARKS if baseline.fingerprint.get(m) != mark(run, m)]
    if differ:
        words = ", ".join(f"{m} {baseline.fingerprint.get(m)} / {mark(run, m)}" for m in differ)
        return check(FAIL, f"has nothing comparable in baseline {baseline.source} ({words}); fix: {_own_baseline(run)}")
    rows = [(s, baseline.rows.get(s.doc_hash[:HASH_CHARS])) for s in answered]
    unknown = sum(row is None for _, row in rows)
    same = [(s, row) for s, row in rows if row and row.prompt_hash == s.prompt_hash[:HASH_CHARS]]
    pairs = [(score_bit(s, STRICT), row.strict) for s, row in same]
    paired = len(pairs)
    numbers |= {"paired": paired, "baseline_n": baseline.n, "baseline": baseline.score}
    if paired < n:
        other = n - paired - unknown
        why = f"{unknown} of other questions, {other} with another prompt"
        kind = "nothing comparable" if paired == 0 else f"only {paired} of {n} samples comparable"
        return check(FAIL, f"has {kind} in baseline {baseline.source} ({why}): same task, shots and template needed")

    before = sum(r for _, r in pairs)
    if run.stopping is not None:
        scores = [(score_bit(s, STRICT), baseline.rows[s.doc_hash[:HASH_CHARS]].strict)
                  for s in in_order(run.stopping, answered)]  # fmt: skip
        numbers |= {"baseline": before / n, "baseline_correct": before}
        return _sequential(run, run.stopping, scores, baseline, spec, check, numbers)
    up, down = sum(y > r for y, r in pairs), sum(y < r for y, r in pairs)
    level = 1 - 2 * spec.alpha
    test, span, varies = _paired(up, down, n, baseline, spec, numbers)
    share, difference = stats.discordant_at(up, down, n, -margin), (up - down) / n
    mde = stats.mde_paired(n, share, spec.alpha)
    needed = stats.needed_pairs(share, difference + margin, spec.alpha)
    numbers |= {
        "baseline": before / n, "baseline_correct": before, "difference": difference, "interval": [span.low, span.high],
        "level": level, "won": up, "lost": down, "p": test.p_above, "p_worse": test.p_below, "margin": margin,
        "mcnemar_exact": stats.mcnemar_exact(up, down), "mde": mde, "needed": needed,
    }  # fmt: skip
    outcome = _decide(test, spec.alpha)
    words = (
        f"against baseline {before / n:.4f} ({before}/{n}), {n} paired, {down} lost and {up} won: "
        f"{_points(difference)}, {100 * level:g} % {_points(span.low)} .. {_points(span.high)}, "
        f"p {test.p_above:.2g} for a loss under {100 * margin:g} pt{varies}"
    )
    return check(outcome, words + _what_would_tell(outcome, mde, needed, "questions (or repeats of them)"))


def _paired(
    up: int, down: int, n: int, baseline: Baseline, spec: GateSpec, numbers: dict[str, Any]
) -> tuple[stats.BoundTest, stats.Interval, str]:
    """Tango's test and interval, with the baseline's run-to-run variation in their error, and words on the latter.

    Tango's error holds the flips of single answers, so only the excess over them is added: twice its variance, once
    for each side, the run being taken to vary as its baseline does. Without any excess it is Tango's test itself.
    """
    found, level = baseline.variation, 1 - 2 * spec.alpha
    if found is None:
        return stats.tango_test(up, down, n, -spec.accuracy_margin), stats.tango_interval(up, down, n, level), ""
    numbers |= {"run_sd": found.sd, "run_excess_sd": found.excess_sd, "run_sd_runs": len(found.runs)}
    error = {"sd": math.sqrt(2) * found.excess_sd, "measured_by": len(found.runs)}
    test = stats.paired_runs_test(up, down, n, -spec.accuracy_margin, **error)
    span = stats.paired_runs_interval(up, down, n, level=level, **error)
    return test, span, f"; {found}{', added to the error of both sides' if found.excess_sd else ''}"


def _sequential(
    run: Run, told: Stopping, pairs: Sequence[tuple[int, int]], baseline: Baseline, spec: GateSpec,
    check: Callable[[Outcome, str], Check], numbers: dict[str, Any],
) -> Check:  # fmt: skip
    """A run under --stop-early is judged by its sequential rule alone: Tango's test at a stop of one's own choosing
    would pass more than alpha, and at the planned end part of alpha is already spent."""
    found = follow(rule_of(told, margin=spec.accuracy_margin, alpha=spec.alpha), pairs)
    n, total, span = found.seen, len(pairs), found.interval
    ends = {stats.Stop.SUCCESS: PASS, stats.Stop.FAILURE: FAIL}
    outcome = ends.get(found.stop, INCONCLUSIVE)
    difference = (found.up - found.down) / n if n else 0.0
    numbers |= {
        "difference": difference, "interval": [span.low, span.high], "level": found.level, "won": found.up,
        "lost": found.down, "p": found.p, "p_worse": found.p_worse, "margin": spec.accuracy_margin,
        "sequential": found.stop.value, "seen": n, "planned": told.planned,
    }  # fmt: skip
    words = (
        f"against baseline {numbers['baseline']:.4f}, by the sequential rule: {found.stop.value} after {n} of "
        f"{told.planned} pairs, {found.down} lost and {found.up} won: {_points(difference)}, "
        f"{100 * found.level:.3g} % {_points(span.low)} .. {_points(span.high)}{_sequential_p(found, spec)}"
    )
    if n < total:
        words += f"; the other {total - n} are not judged"
    if outcome is PASS and baseline.variation and baseline.variation.excess_sd:
        return check(INCONCLUSIVE, f"{words}; {baseline.variation}, which the rule can't allow for")
    if outcome is INCONCLUSIVE:
        words += "; run the whole task without --stop-early to settle it"
    return check(outcome, words)


def _sequential_p(found: Followed, spec: GateSpec) -> str:
    if found.stop is stats.Stop.FAILURE:
        return f", p {found.p_worse:.2g} for a loss over {100 * spec.accuracy_margin:g} pt"
    return f", p {found.p:.2g} for a loss under {100 * spec.accuracy_margin:g} pt"


def _short(value: Any) -> str:
    """A hash by its first characters, anything else whole."""
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


def _own_baseline(run: Run) -> str:
    """How to get a baseline that fits: by the command where its options say all, else from a run like this one."""
    cell = run.cell
    plain = not cell.get("data") and not cell.get("temperature") and not cell.get("limit") and not mark(run, "shots")
    if plain and cell.get("task") == "gradeschool":
        return baseline_fix(run)
    return f"make a K=0 float32 run with the same options, then evalkit gate {run.id} --baseline THAT_RUN"


def _own_golden(run: Run) -> str:
    return (
        "make a float32 run with the same options of a draft you trust, evalkit golden record THAT_RUN --output FILE, "
        f"then evalkit gate {run.id} --golden FILE"
    )


def _what_would_tell(outcome: Outcome, mde: float, needed: int | None, unit: str) -> str:
    if outcome is not INCONCLUSIVE:
        return ""
    can = f"; {100 * mde:.1f} pt is what so many can show (80 % power)"
    return f"{can}, {needed or 'no number of'} {unit} would settle this one"


def _references(
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
    n, correct, level = len(answered), _correct(answered), 1 - 2 * spec.alpha
    p, q, margin = correct / n, ref.correct / ref.n, spec.score_margin
    test = stats.two_proportion_test(correct, n, ref.correct, ref.n, -margin)
    span = stats.two_proportion_interval(correct, n, ref.correct, ref.n, level)
    outcome = _decide(test, spec.alpha)
    mde = stats.mde_unpaired((correct + ref.correct) / (n + ref.n), n, ref.n, spec.alpha)
    needed = stats.needed_n(p, q, ref.n, p - q + margin, spec.alpha)
    found = f"{STRICT} {p:.4f} ({correct}/{n})"
    message = (
        f"{found} against published {ref}, unpaired: {_points(p - q)}, {100 * level:g} % {_points(span.low)} .. "
        f"{_points(span.high)}, p {test.p_above:.2g} for a loss under {100 * margin:g} pt"
    )
    return _check(
        f"reference {ref.name}", outcome, f"{STRICT} at most {100 * margin:g} pt below {ref}", found,
        message + _what_would_tell(outcome, mde, needed, "questions"),
        score=p, reference=q, difference=p - q, interval=[span.low, span.high], level=level, paired=0, n=n,
        reference_n=ref.n, p=test.p_above, p_worse=test.p_below, margin=margin, mde=mde, needed=needed,
    )  # fmt: skip


# --- acceptance


def _acceptance(run: Run, k: int, golden: Curve | None, spec: GateSpec, notes: list[str]) -> list[Check]:
    try:
        found = of_run(run)
    except EvalkitError as e:
        return [_check("acceptance", FAIL, "step counts that add up", "step counts that do not", str(e))]
    real = _real(run, found, golden, notes)
    if k == 0:
        notes.append("K=0 is plain decoding: there is no acceptance to judge")
        return [real] if real.outcome is FAIL else []
    told = source_check(run, found)
    if told and told[0].outcome is FAIL:
        return [real, *told]
    checks = [real, *told, _draft(found)]
    if found.accepted_length is not None and (found.accepted or not found.steps):
        checks.append(_length(run, k, found, golden, spec, notes))
        if "ratio" in checks[-1].numbers and golden is not None:  # it was comparable
            checks += _distribution(run, golden, lookup(golden, k, mark(run, "mode")), spec, notes)
        _length_notes(found, notes)
    return checks


def _real(run: Run, found: AcceptanceStats, golden: Curve | None, notes: list[str]) -> Check:
    expected = "acceptance verified by the target"
    if found.forced:
        words = "the engine says that acceptance was forced, not verified"
        return _check("real acceptance", FAIL, expected, "forced", words)
    known = [v for by_k in golden.values.values() for v in by_k.values()] if golden else []
    signs = forced_signs(
        found.histogram, accepted_length=found.accepted_length, design_effect=found.design_effect,
        golden_lengths=[v.accepted_length for v in known if v.run_id != run.id],
    )  # fmt: skip
    words = "; ".join(signs)
    if found.looks_forced or len(signs) > 1:
        return _check("real acceptance", FAIL, expected, words, f"{words}: it looks forced")
    if signs:
        notes.append(f"{words}: a forced run would show this too")
    return _check("real acceptance", PASS, expected, "no sign that it was forced" if not signs else "no proof of it")


def _draft(found: AcceptanceStats) -> Check:
    expected = f"drafts proposed and accepted at K={found.k}"
    numbers = {"steps": found.steps, "drafts": found.drafts, "accepted": found.accepted}
    if found.accepted == 0 and (found.steps or found.accepted_length is None):
        words = f"{found.drafts} drafts in {found.steps} verify steps, none accepted"
        hint = f"{words}: the draft contributes nothing (wrong method, checkpoint or template)"
        return _check("draft", FAIL, expected, words, hint, **numbers)
    words = f"{found.accepted} of {found.drafts} drafts accepted in {found.steps} verify steps"
    if found.interval is not None and found.interval.high < NEVER_WORKED:
        hint = f"{words}, an accepted length under {NEVER_WORKED}: the draft contributes nothing"
        return _check("draft", FAIL, expected, words, f"{hint} (wrong method, checkpoint or template)", **numbers)
    return _check("draft", PASS, expected, words, **numbers)


def _length(run: Run, k: int, found: AcceptanceStats, golden: Curve | None, spec: GateSpec, notes: list[str]) -> Check:
    """Accepted length over golden against 1 - margin, both uncertain: Fieller's test."""
    margin, length = spec.length_margin, found.accepted_length
    assert length is not None
    fix = record_command(str(run.cell.get("target")), k, str(run.cell.get("draft")))
    expected = f"accepted length at most {100 * margin:g} % below golden"
    words = f"accepted length {length:.3f}"
    numbers: dict[str, Any] = {"accepted_length": length, "se": found.se}
    numbers |= {"samples": found.clusters, "steps": found.steps}

    def check(outcome: Outcome, more: str) -> Check:
        return _check("accepted length", outcome, expected, words, f"{words} {more}", **numbers)

    if golden is None:
        return check(INCONCLUSIVE, f"and no golden value to compare it with at K={k}; fix: {fix}")
    try:
        value = lookup(golden, k, mark(run, "mode"))
    except EvalkitError as e:
        return check(INCONCLUSIVE, f"and no golden value to compare it with: {e}")
    numbers |= {"golden": value.accepted_length, "golden_se": value.se}
    differ = differing_marks(value, run)
    if differ and value.fingerprint:
        why = ", ".join(f"{m} {_short(value.fingerprint.get(m))} / {_short(mark(run, m))}" for m in differ)
        return check(INCONCLUSIVE, f"is not comparable with golden/{value.source} ({why}); fix: {_own_golden(run)}")
    here = mark(run, "temperature")
    if not value.fingerprint and None not in (value.temperature, here) and value.temperature != here:
        why = f"temperature {value.temperature:g} / {here:g}"
        return check(INCONCLUSIVE, f"is not comparable with golden/{value.source} ({why}); fix: {_own_golden(run)}")
    for m in NOTED_MARKS:
        if value.fingerprint and value.fingerprint.get(m) != mark(run, m):
            notes.append(
                f"golden/{value.source} was recorded at {m} {value.fingerprint.get(m)}, this run {mark(run, m)}"
            )
    estimate = found.estimate()
    if estimate is None:
        if found.unit == "samples":
            return check(INCONCLUSIVE, "of a single document, which shows no spread; run more documents")
        return check(INCONCLUSIVE, f"from {found.source}, which show no spread: run longer, or at lower concurrency")

    reference, assumed = _golden_estimate(value, spec, notes)
    level, bound = 1 - 2 * spec.alpha, 1 - margin
    ratio = length / reference.value
    test, span = stats.ratio_test(estimate, reference, bound), stats.ratio_interval(estimate, reference, level)
    outcome = _decide(test, spec.alpha)
    numbers |= {
        "ratio": ratio, "interval": [span.low, span.high] if span else None, "level": level, "p": test.p_above,
        "p_worse": test.p_below, "margin": margin, "golden_se": reference.se, "golden_se_assumed": assumed,
        "design_effect": found.design_effect,
    }  # fmt: skip
    if ratio > spec.suspicious_ratio:
        notes.append(f"accepted length is {100 * (ratio - 1):.0f} % above golden: too good to be believed unread")
    limits = f"{span.low:.3f} .. {span.high:.3f}" if span else "unbounded"
    more = (
        f"against golden {reference.value:.3f} (se {reference.se:.3f}{', assumed' if assumed else ''}), "
        f"{found.clusters} {found.unit} and {found.steps} steps: ratio {ratio:.3f}, {100 * level:g} % {limits}, "
        f"p {test.p_above:.2g} for a loss under {100 * margin:g} %"
    )
    if outcome is INCONCLUSIVE:
        numbers["needed"] = needed = _needed_samples(estimate, reference, found.clusters, bound, spec.alpha)
        more += (
            f"; about {needed} {found.unit} would settle it" if needed else "; the golden value itself is too uncertain"
        )
    return check(outcome, more)


def _golden_estimate(value: GoldenValue, spec: GateSpec, notes: list[str]) -> tuple[stats.Estimate, bool]:
    if value.mode == "thinking_unknown":
        notes.append(f"golden/{value.source} does not say in which thinking mode it was collected")
    if value.se is not None and value.clusters is not None:
        return stats.Estimate(value=value.accepted_length, se=value.se, df=value.clusters - 1), False
    notes.append(
        f"golden/{value.source} is a curve only: its workload is not checked and a standard error of "
        f"{100 * spec.assumed_golden_se:g} % is assumed for it"
    )
    return stats.Estimate(value=value.accepted_length, se=spec.assumed_golden_se * value.accepted_length), True


def _needed_samples(x: stats.Estimate, reference: stats.Estimate, m: int, bound: float, alpha: float) -> int | None:
    """Samples at which the run's own uncertainty would let this distance from the bound be shown."""
    distance = abs(x.value - bound * reference.value)
    detectable_at_1 = stats.mde_paired(1, 1.0, alpha)  # in standard errors, 80 % power
    room = (distance / detectable_at_1) ** 2 - (bound * reference.se) ** 2
    return math.ceil(m * x.se**2 / room) if room > 0 else None


def _length_notes(found: AcceptanceStats, notes: list[str]) -> None:
    def tell(other: float | None, words: Callable[[float], str]) -> None:
        if other is not None and found.accepted_length and abs(other / found.accepted_length - 1) > 0.02:
            notes.append(words(other))

    tell(found.mean_of_requests, lambda x: f"the plain mean over requests is {x:.3f}: not the published definition")
    tell(found.accepted_length_trimmed, lambda x: f"counted after trimming at stops and limits it is {x:.3f}")
    if found.steps_without_draft and found.emitted_per_step:
        steps = f"{found.steps_without_draft} steps had no draft"
        notes.append(f"{steps}: {found.emitted_per_step:.3f} tokens a forward pass, which is what speed depends on")
    notes.append(
        f"acceptance was measured on answers of up to {found.longest_answer} tokens, and says nothing of longer"
    )


def _distribution(run: Run, golden: Curve, value: GoldenValue, spec: GateSpec, notes: list[str]) -> list[Check]:
    """Accepted drafts by position against golden: tokens a step lost at any positions, against a margin in tokens.

    Against a golden histogram it always is a check. A curve without one implies only sums of survival, with an
    assumed spread: where that spread alone hides a loss of the margin, the comparison is a note.
    """
    margin, expected = spec.distribution_margin * value.accepted_length, "positions that accept as golden's do"
    lengths = golden.lengths(value.mode)
    assumed = {k: spec.assumed_golden_se * length for k, length in lengths.items()}
    if value.histogram is None and len([k for k in lengths if k <= value.k]) < 2:
        notes.append(f"golden/{value.source} has neither a histogram nor another K: positions are not compared")
        return []
    try:
        test = distribution_test(
            run.samples, value.k, margin=margin, histogram=value.histogram, se=value.se, clusters=value.clusters,
            lengths=lengths, lengths_se=assumed, alpha=spec.alpha, covariance=value.covariance,
        )  # fmt: skip
    except ValueError as e:
        notes.append(f"golden/{value.source} is unusable for positions: {e}")
        return []
    if test is None:
        return []
    outcome = PASS if test.p_under <= spec.alpha else FAIL if test.p_over <= spec.alpha else INCONCLUSIVE
    found = f"{test.lost:.3f} tokens a step lost"
    against = "histogram" if test.source == "histogram" else "survival implied by its curve"
    sure, p = f"{100 * (1 - spec.alpha):g} %", min(test.p_under, test.p_over)
    equal = "" if test.p_equal is None else f", p {test.p_equal:.2g} for no difference at all"
    message = (
        f"{found} and {test.gained:.3f} gained against golden's {against} (Wasserstein-1 {test.wasserstein:.3f} "
        f"tokens), at most {test.upper:.3f} lost at {sure}; margin {margin:.3f} tokens, p {p:.2g}{equal}"
    )
    if outcome is INCONCLUSIVE and not test.decidable:
        notes.append(f"accepted drafts distribution: {message}; golden is too uncertain to judge by")
        return []
    if outcome is INCONCLUSIVE:
        message += "; more documents would settle it"
    return [_check(
        "accepted drafts distribution", outcome, f"{expected}, at most {margin:.3f} tokens a step lost", found, message,
        groups=[list(g) for g in test.groups], here=list(test.here), golden=list(test.golden), lost=test.lost,
        gained=test.gained, wasserstein=test.wasserstein, upper=test.upper, margin=margin, p=test.p_under,
        p_worse=test.p_over, p_equal=test.p_equal, source=test.source,
    )]  # fmt: skip


# --- one line


def verdict_line(verdict: Verdict) -> str:
    """The verdict in one line: outcome, score against baseline, accepted length against golden, what broke."""
    by_name = {c.name: c for c in verdict.checks}
    parts = [p for p in (_score_part(by_name.get("accuracy")), _length_part(by_name.get("accepted length"))) if p]
    line = f"{verdict.outcome.value.upper():<12}  {', '.join(parts) or 'nothing compared'}"
    telling = [c.name for c in verdict.checks if c.outcome is verdict.outcome and c.outcome is not PASS]
    return f"{line}; {verdict.outcome.value} by {', '.join(telling)}" if telling else line


def _score_part(check: Check | None) -> str:
    if check is None:
        return ""
    x = check.numbers
    if "difference" not in x:
        return f"{check.found} vs no comparable baseline"
    low, high = x["interval"]
    span = f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{check.found} vs baseline {x['baseline']:.4f}: {_points(x['difference'])} {span}"


def _length_part(check: Check | None) -> str:
    if check is None:
        return ""
    x = check.numbers
    if "ratio" not in x:
        return f"AL {x['accepted_length']:.2f} vs no comparable golden"
    limits = "[{:.3f}, {:.3f}]".format(*x["interval"]) if x["interval"] else "[unbounded]"
    return f"AL {x['accepted_length']:.2f} vs golden {x['golden']:.2f}: ratio {x['ratio']:.3f} {limits}"

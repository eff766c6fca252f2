"""Strict-match against the baseline, paired by document and prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalkit import stats
from evalkit.baseline import BASELINE_MARKS, HASH_CHARS, STRICT, Baseline, Row, by_name, score_bit
from evalkit.baseline import baseline_command as baseline_fix
from evalkit.chances import loss_words, p_value
from evalkit.fingerprint import ACCURACY, EXTRA, Difference, accuracy_fingerprint, in_words
from evalkit.formats import points, points_interval
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked, correct_of, decide, what_would_tell
from evalkit.gate.limits import GateSpec
from evalkit.records import Check, Outcome, Run, Sample, Stopping
from evalkit.stopping import Followed, follow, in_order, rule_of

SHOWN = 5  # documents that a message names
TOO_GOOD = 0.0027  # two-sided, three standard errors: a gain past it is a warning


WEIGHTS = ("target_sha", "tokenizer_sha")


def is_own_baseline(run: Run, baseline: Baseline | None) -> bool:
    """Whether the baseline was recorded of this very run: a comparison with itself would always pass."""
    return baseline is not None and baseline.run_id == run.id


def baseline_differences(baseline: Baseline, run: Run | Mapping[str, Any]) -> tuple[Difference, ...]:
    """The facts in which a run differs from a baseline that it must share: all that the baseline's file records."""
    there = baseline.fingerprint
    here = accuracy_fingerprint(run)
    names = [n for n in ACCURACY if n in BASELINE_MARKS or there.get(n) is not None]
    names += [EXTRA] if EXTRA in here.fields or EXTRA in there else []
    return tuple(Difference(name=d.name, here=d.there, there=d.here) for d in here.differences(there, names))


def accuracy_check(run: Run, answered: Sequence[Sample], baseline: Baseline | None, spec: GateSpec) -> Check:
    """Strict-match against the baseline, paired by document and prompt: Tango's one-sided test."""
    n, correct = len(answered), correct_of(answered)
    margin = spec.accuracy_margin
    expected = f"{STRICT} at most {100 * margin:g} pt below the baseline"
    numbers: dict[str, Any] = {"score": correct / n, "correct": correct, "n": n, "se": stats.proportion_se(correct, n)}
    found = f"{STRICT} {correct / n:.4f} ({correct}/{n})"

    def check(outcome: Outcome, words: str) -> Check:
        return checked("accuracy", outcome, expected, found, f"{found} {words}", **numbers)

    if baseline is None:
        return check(INCONCLUSIVE, f"and no baseline to compare it with; fix: {_fix(run)}")
    if apart := baseline_differences(baseline, run):
        numbers["differ"] = differ = in_words(apart)
        words = f"has nothing comparable in baseline {baseline.source}, which is of another setting ({differ})"
        return check(INCONCLUSIVE, f"{words}; fix: {_fix(run, apart)}")
    rows = [(s, baseline.rows.get(s.doc_hash[:HASH_CHARS])) for s in answered]
    unknown = sum(row is None for _, row in rows)
    same = [(s, row) for s, row in rows if row and row.prompt_hash == s.prompt_hash[:HASH_CHARS]]
    pairs = [(score_bit(s, STRICT), row.strict) for s, row in same]
    paired = len(pairs)
    numbers |= {
        "paired": paired,
        "compared": paired if paired == n else 0,
        "baseline_n": baseline.n,
        "baseline": baseline.score,
    }
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
        "mcnemar_exact": stats.mcnemar_exact(up, down), "mcnemar_midp": stats.mcnemar_midp(up, down), "mde": mde,
        "needed": needed, **_flipped(same),
    }  # fmt: skip
    outcome = decide(test, spec.alpha)
    words = (
        f"against baseline {before / n:.4f} ({before}/{n}), {n} paired, {down} lost and {up} won: "
        f"{points(difference)}, {100 * level:g} % {points_interval(span.low, span.high)}, "
        f"{loss_words(outcome, test.p_above, test.p_below, f'{100 * margin:g} pt')}{varies}"
    )
    if up > down and numbers["mcnemar_exact"] <= TOO_GOOD:
        words += (
            f"; warning: a gain of {points(difference)} is no chance ({p_value(numbers['mcnemar_exact'], 1)}), and a "
            "lossless draft gives none: look for a broken extractor or another setting"
        )
    if outcome is not PASS and down:
        words += f"; lost {_documents(numbers['lost_documents'])}"
    return check(outcome, words + what_would_tell(outcome, mde, needed, _units(run)))


def _units(run: Run) -> str:
    """What more would settle it: a repeat of a greedy run answers the same, and settles nothing."""
    return "questions (or repeats of them: gate --repeats)" if run.cell.get("temperature") else "questions"


def _flipped(pairs: Sequence[tuple[Sample, Row]]) -> dict[str, Any]:
    """The fourfold table of (this run, baseline) and the documents that changed sides."""
    sides: dict[tuple[int, int], list[int]] = {}
    for sample, row in pairs:
        sides.setdefault((score_bit(sample, STRICT), row.strict), []).append(sample.doc_id)
    return {"both_right": len(sides.get((1, 1), ())), "both_wrong": len(sides.get((0, 0), ())),
            "lost_documents": sides.get((0, 1), []), "won_documents": sides.get((1, 0), [])}  # fmt: skip


def _documents(ids: Sequence[int]) -> str:
    """`document 3`, `documents 3, 17, 20 and 9 more`."""
    named = ", ".join(map(str, ids[:SHOWN]))
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"document{'s' if len(ids) > 1 else ''} {named}{more}"


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
        f"{told.planned} pairs, {found.down} lost and {found.up} won: {points(difference)}, "
        f"{100 * found.level:.3g} % {points_interval(span.low, span.high)}{_sequential_p(outcome, found, spec)}"
    )
    if n < total:
        words += f"; the other {total - n} are not judged"
    if outcome is PASS and baseline.variation and baseline.variation.excess_sd:
        return check(INCONCLUSIVE, f"{words}; {baseline.variation}, which the rule can't allow for")
    if outcome is INCONCLUSIVE:
        words += "; run the whole task without --stop-early to settle it"
    return check(outcome, words)


def _sequential_p(outcome: Outcome, found: Followed, spec: GateSpec) -> str:
    return f", {loss_words(outcome, found.p, found.p_worse, f'{100 * spec.accuracy_margin:g} pt')}"


def _fix(run: Run, differ: Sequence[Difference] = ()) -> str:
    """How to get a baseline that fits: never of this very run, and of other weights only where they are trusted."""
    trusted = f"evalkit gate {run.id} --baseline THAT_RUN"
    if any(d.name in WEIGHTS for d in differ):
        return (
            "run the target that the baseline was recorded of; or, if other weights are meant, make a K=0 float32 run "
            f"of a target that you trust, with the options of this run, then {trusted}"
        )
    if run.cell.get("k") == 0:
        return f"make a K=0 float32 run of a target that you trust, with the options of this run, then {trusted}"
    command = baseline_fix(run)
    return command if by_name(run) else f"{command}, or {trusted}"

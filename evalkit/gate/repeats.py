"""Repeats of one setting judged as one: other seeds, batch sizes or machines, the same questions.

Each question's answers are averaged over the repeats first, and only questions count as independent (C26): repeats take
the spread within a question out of the error, never that between questions. Every other check must pass in each run.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evalkit import stats
from evalkit.answers import format_check
from evalkit.baseline import HASH_CHARS, STRICT, Baseline, mark, score_bit
from evalkit.chances import loss_words
from evalkit.errors import EvalkitError
from evalkit.fingerprint import acceptance_fingerprint
from evalkit.formats import points, points_interval
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked, combine, decide, what_would_tell
from evalkit.gate.demands import demand
from evalkit.gate.limits import GateSpec
from evalkit.records import Check, Run, Verdict
from evalkit.sameness import COPIED, copy_among

ACCURACY, FORMAT = "accuracy", "format"
WORST = (FAIL, INCONCLUSIVE, PASS)


def join_repeats(
    runs: Sequence[Run], verdicts: Sequence[Verdict], *, baseline: Baseline | None, spec: GateSpec
) -> Verdict:
    """One verdict on all runs, under the id of the first. `verdicts` are those of `judge`, one a run. Raises
    EvalkitError for runs that are no repeats of one another."""
    _refuse(runs)
    by_name: dict[str, list[tuple[Run, Check]]] = {}
    for run, verdict in zip(runs, verdicts, strict=True):
        for check in verdict.checks:
            by_name.setdefault(check.name, []).append((run, check))
    joined = {name: _worst(found, len(runs)) for name, found in by_name.items()}
    own = [check for _, check in by_name.get(ACCURACY, [])]
    if baseline is not None and len(own) == len(runs) and all("difference" in c.numbers for c in own):
        answered = [s for run in runs for s in run.samples if not s.error]
        form, accuracy = format_check(answered, spec.answers, accuracy_of_repeats(runs, baseline, spec))
        (joined[ACCURACY],) = demand([accuracy], spec.demands, runs[0].cell.get("k") or 0)
        joined |= {check.name: check for check in form}
    checks = tuple(joined.values())
    notes = tuple(dict.fromkeys(note for v in verdicts for note in v.notes))
    words = f"{len(runs)} repeats judged as one: {', '.join(run.id for run in runs)}"
    return Verdict(outcome=combine([c.outcome for c in checks]), checks=checks, run_id=runs[0].id,
                   notes=(words, *notes))  # fmt: skip


def accuracy_of_repeats(runs: Sequence[Run], baseline: Baseline, spec: GateSpec) -> Check:
    """Strict-match, averaged over the repeats by question, against the baseline's answer to it. Questions that a repeat
    has no answer to are left out; the check on requests tells of them."""
    scored = [{s.doc_hash[:HASH_CHARS]: score_bit(s, STRICT) for s in run.samples if not s.error} for run in runs]
    docs = [doc for doc in scored[0] if all(doc in one for one in scored)]
    table = np.array([[one[doc] for doc in docs] for one in scored], dtype=np.float64)
    before = np.array([baseline.rows[doc].strict for doc in docs], dtype=np.float64)
    repeats, n, margin = len(runs), len(docs), spec.accuracy_margin
    mean = stats.repeated_mean(table.T.ravel(), np.repeat(np.arange(n), repeats))
    varies = stats.run_variation_by_unit(table)
    excess = baseline.variation.excess_sd if baseline.variation else 0.0
    error: dict[str, Any] = {"sd": excess * math.sqrt(1 + 1 / repeats)}
    error |= {"measured_by": len(baseline.variation.runs)} if baseline.variation else {}
    d = table.mean(axis=0) - before
    test = stats.paired_repeats_test(d, -margin, **error)
    level, difference = 1 - 2 * spec.alpha, float(d.mean())
    span = stats.paired_repeats_interval(d, level, **error)
    outcome = decide(test, spec.alpha)
    se = abs((difference + margin) / test.statistic) if test.statistic else 0.0
    mde, needed = stats.mde_estimate(se, 0.0, spec.alpha), None
    if se and difference + margin:
        needed = stats.needed_clusters(se, n, abs(difference + margin), 0.0, spec.alpha)
    within = f"{mean.within:.4f}" if mean.within is not None else "not known"
    found = f"{STRICT} {mean.mean:.4f} in {repeats} repeats of {n} questions"
    words = (
        f"{found} against baseline {before.mean():.4f} ({int(before.sum())}/{n}): {points(difference)}, "
        f"{100 * level:g} % {points_interval(span.low, span.high)}, "
        f"{loss_words(outcome, test.p_above, test.p_below, f'{100 * margin:g} pt')}; variance within a question "
        f"{within}; run-to-run sd {100 * varies.sd:.2g} pt, {100 * (varies.expected_sd or 0):.2g} pt of it expected "
        "from single answers"
    )
    numbers: dict[str, Any] = {
        "score": mean.mean, "n": n, "se": mean.se, "paired": n, "compared": n, "repeats": repeats,
        "runs": [run.id for run in runs], "baseline_n": baseline.n, "baseline": float(before.mean()),
        "baseline_correct": int(before.sum()), "difference": difference, "interval": [span.low, span.high],
        "level": level, "p": test.p_above, "p_worse": test.p_below, "margin": margin, "mde": mde, "needed": needed,
        "within": mean.within, "between": mean.between, "design_effect": mean.design_effect, "run_sd": varies.sd,
        "run_expected_sd": varies.expected_sd, "run_excess_sd": excess,
    }  # fmt: skip
    expected = f"{STRICT} at most {100 * margin:g} pt below the baseline"
    words += what_would_tell(
        outcome, mde, needed, "questions (or more repeats of these)" if mean.within else "questions"
    )
    if outcome is INCONCLUSIVE and mean.within == 0:
        words += "; no number of repeats would: each question is answered the same in all of them"
    return checked(ACCURACY, outcome, expected, found, words, **numbers)


def _worst(found: Sequence[tuple[Run, Check]], repeats: int) -> Check:
    """The check as it went in the run where it went worst."""
    run, check = min(found, key=lambda pair: WORST.index(pair[1].outcome))
    if check.outcome is PASS:
        return replace(check, message=f"{check.message} (in {run.id}; {len(found)} of {repeats} repeats pass)")
    passed = sum(c.outcome is PASS for _, c in found)
    return replace(check, message=f"{run.id}: {check.message} ({passed} of {repeats} repeats pass)")


def _refuse(runs: Sequence[Run]) -> None:
    fix = "give whole runs of one setting; only the seed, the batch size and the machine may differ"
    if len(runs) < 2:
        raise EvalkitError("one run is no repeat of another", f"without --repeats it is judged alone; or {fix}")
    ids = [run.id for run in runs]
    if len(set(ids)) < len(ids):
        raise EvalkitError("the same run is given twice: a copy is no repeat", fix)
    first = runs[0]
    for run in runs:
        if run.stopping is not None:
            raise EvalkitError(f"run {run.id} was made with --stop-early: its rule is for one run alone", fix)
        there, here = _facts(first), _facts(run)
        differ = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
        if {(s.doc_hash, s.prompt_hash) for s in run.samples} != {(s.doc_hash, s.prompt_hash) for s in first.samples}:
            differ.append("questions or prompts")
        if differ:
            raise EvalkitError(f"run {run.id} is no repeat of {first.id}: {', '.join(differ)} differ", fix)
    if found := copy_among(runs):
        raise EvalkitError(f"run {found[1].id} is a copy of {found[0].id}: {COPIED}", fix)


def _facts(run: Run) -> dict[str, Any]:
    names = ("target", "draft", "quant", "dtype", "limit")
    return acceptance_fingerprint(run).fields | {name: mark(run, name) for name in names}

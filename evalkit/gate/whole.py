"""Is there a whole run, and are its scores scores."""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.baseline import FLEXIBLE, REAL, STRICT, Baseline, score_bit
from evalkit.errors import EvalkitError
from evalkit.fingerprint import docs_sha
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked, correct_of, share_check
from evalkit.gate.limits import GateSpec
from evalkit.records import Check, Outcome, Run, Sample
from evalkit.servercheck import failed_words
from evalkit.stopping import check_stop


def completeness(run: Run, baseline: Baseline | None, spec: GateSpec, notes: list[str]) -> Check:
    found = len(run.samples)
    ids, docs = len({s.doc_id for s in run.samples}), len({s.doc_hash for s in run.samples})
    numbers = {"expected": run.expected, "found": found, "task_size": run.task_size}

    def check(outcome: Outcome, words: str) -> Check:
        expected = f"all {run.task_size} samples of the task, each once"
        return checked("completeness", outcome, expected, f"{found} samples", f"{found} samples: {words}", **numbers)

    if found == 0:
        return check(FAIL, "nothing to compare")
    early = run.stopped and run.complete and found < run.expected
    if run.stopped and not early:
        return check(FAIL, f"it says it was stopped early ({run.stopped[:60]}), and has all its samples; run it again")
    if not early and (not run.complete or found != run.expected):
        return check(FAIL, f"the run was to have {run.expected}; run it again, it continues where it stopped")
    if ids != found or docs != found:
        return check(FAIL, f"only {min(ids, docs)} different documents; a duplicated sample is counted twice")
    if run.expected > run.task_size:
        return check(FAIL, f"the task has only {run.task_size}; the run is of another task than it says")
    if why := _contradiction(run, baseline, early=bool(early)):
        return check(FAIL, f"{why}; the run is not the one that was stored: run it again")
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


def _contradiction(run: Run, baseline: Baseline | None, *, early: bool) -> str:
    """Why the run's own numbers of samples can't all be true; "" where they can. A run that says that its task is
    smaller than it is would otherwise be a whole one."""
    limit, planned = run.cell.get("limit"), run.expected
    if limit and planned != limit:
        return f"its limit is {limit}, and it was to have {planned}"
    if limit == 0 and planned < run.task_size:
        return f"it has no limit, and was to have {planned} of the task's {run.task_size}"
    if limit and planned == run.task_size:
        return f"its limit of {limit} is the whole task, and a whole task has no limit"
    told = run.fingerprint.get("docs_sha")
    if told is not None and not early and told != docs_sha(s.doc_id for s in run.samples):
        return "its documents are not those of its fingerprint (docs_sha)"
    if baseline is None or early:  # an early stop is held against its own baseline's hash
        return ""
    here, there = run.fingerprint.get("task_sha"), baseline.fingerprint.get("task_sha")
    if here is not None and here == there and baseline.n != run.task_size:
        return (
            f"it says that its task has {run.task_size}, baseline {baseline.source} of the same task has {baseline.n}"
        )
    return ""


def requests(run: Run, spec: GateSpec) -> Check:
    failed = sum(bool(s.error) for s in run.samples)
    return share_check("requests", f"requests failed{failed_words(run)}", failed, len(run.samples), spec.max_failed)


def truncated(answered: Sequence[Sample], spec: GateSpec) -> Check:
    if not answered:
        return checked(
            "truncation", INCONCLUSIVE, f"at most {100 * spec.max_truncated:g} %", "no answers", count=0, n=0
        )
    cut = sum(s.finish_reason == "length" for s in answered)
    return share_check("truncation", "answers cut by the token limit", cut, len(answered), spec.max_truncated)


def broken_scores(answered: Sequence[Sample]) -> Check | None:
    expected = "a score of 0 or 1 for every answer"
    if any(s.forced for s in answered):
        words = "acceptance was forced, so no text was scored"
        return checked("scores", FAIL, expected, words, f"{words}; nothing is compared; fix: {REAL}", broken=0)
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
    return checked("scores", FAIL, expected, message, f"{message}; nothing is compared", broken=len(broken))


def protocol(answered: Sequence[Sample]) -> Check:
    n, strict = len(answered), correct_of(answered)
    flexible = sum(int(s.scores.get(FLEXIBLE, 0)) for s in answered)
    found = f"{STRICT} {strict / n:.4f}, {FLEXIBLE} {flexible / n:.4f}"
    if strict == 0 and flexible / n > 0.3:
        words = f"{found}: the answers are there, not in the form asked for (prompt, stop strings or template)"
        return checked("protocol", FAIL, "answers in the form asked for", found, words)
    return checked("protocol", PASS, "answers in the form asked for", found, strict=strict, flexible=flexible, n=n)

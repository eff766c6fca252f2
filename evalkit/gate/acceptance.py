"""Acceptance against golden: verified and not drawn, a draft that does something, the length, the positions."""

from __future__ import annotations

from collections.abc import Callable

from evalkit.acceptance import AcceptanceStats, forced_signs, of_run, reconcile, told_forced
from evalkit.baseline import mark
from evalkit.errors import EvalkitError
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.length import length_check
from evalkit.gate.limits import GateSpec
from evalkit.gate.positions import positions_check, rate_check
from evalkit.golden import NEVER_WORKED, Curve, lookup
from evalkit.records import Check, Run
from evalkit.servercheck import source_check


def acceptance_checks(run: Run, k: int, golden: Curve | None, spec: GateSpec, notes: list[str]) -> list[Check]:
    try:
        found = of_run(run)
    except EvalkitError as e:
        return [checked("acceptance", FAIL, "step counts that add up", "step counts that do not", str(e))]
    real, counts = _real(run, found, golden, notes), _counts(run)
    if k == 0:
        notes.append("K=0 is plain decoding: there is no acceptance to judge")
        return [c for c in (real, counts) if c.outcome is FAIL]
    told = source_check(run, found)
    if told and told[0].outcome is FAIL:
        return [real, *told]
    checks = [real, counts, *told, _draft(run, found)]
    if found.accepted_length is not None and (found.accepted or not found.steps):
        checks.append(length_check(run, k, found, golden, spec, notes))
        if "ratio" in checks[-1].numbers and golden is not None:  # it was comparable
            value = lookup(golden, k, mark(run, "mode"))
            checks += positions_check(run, golden, value, spec, notes)
            rates = rate_check(run, value, spec)
            checks += [rates] if rates else []
        _length_notes(found, notes)
    return checks


def _real(run: Run, found: AcceptanceStats, golden: Curve | None, notes: list[str]) -> Check:
    expected = "acceptance verified by the target"
    if told := told_forced(run.cell, run.provenance, run.counters):
        words = "; ".join(told)
        numbers = {"detectors": sorted({"flag" if sign.startswith("flag ") else "server" for sign in told})}
        hint = f"{words}: acceptance was forced, so the texts mean nothing; turn it off and run again"
        return checked("real acceptance", FAIL, expected, words, hint, **numbers)
    if found.forced or run.forced:
        words = "the engine says that acceptance was forced, not verified"
        return checked("real acceptance", FAIL, expected, "forced", words, detectors=["server"])
    recorded = golden if golden and golden.place != f"run {golden.source}" else None  # a run may equal another
    known = [v for by_k in recorded.values.values() for v in by_k.values()] if recorded else []
    signs = forced_signs(
        found.histogram, accepted_length=found.accepted_length, design_effect=found.design_effect,
        golden_lengths=[v.accepted_length for v in known if v.run_id != run.id],
        clusters=found.clusters,
    )  # fmt: skip
    words = "; ".join(signs)
    if found.looks_forced or len(signs) > 1:
        detectors = ["two-point histogram"] if found.looks_forced else ["pinned mean"]
        return checked("real acceptance", FAIL, expected, words, f"{words}: it looks forced", detectors=detectors)
    if signs:
        notes.append(f"{words}: a forced run would show this too")
    return checked(
        "real acceptance",
        PASS,
        expected,
        "no sign that it was forced" if not signs else "one sign of a forced run, which alone proves nothing",
    )


def _counts(run: Run) -> Check:
    """Whether the stored steps are those that made the answers, by the tokens and by the engine's own counter."""
    found, expected = reconcile(run), "steps that give the answers' tokens, as many as the engine counted"
    numbers = {"steps": found.steps, "counted": found.told, "tokens": found.tokens, "unexplained": found.unexplained,
               "answers": found.answers}  # fmt: skip
    if found.wrong:
        words = "; ".join(found.wrong)
        return checked("step counts", FAIL, expected, words, f"{words}: the steps are not those of this run", **numbers)
    if found.unknown:
        words = "; ".join(found.unknown)
        return checked("step counts", INCONCLUSIVE, expected, words, **numbers)
    session = f" in sessions that leave {found.lost} answers out (one was killed)" if found.lost else ""
    counted = "" if found.told is None else f", and the engine counted {found.told}{session}"
    words = f"{found.steps} verify steps give the {found.tokens} tokens of {found.answers} answers{counted}"
    return checked("step counts", PASS, expected, words, words, **numbers)


def _draft(run: Run, found: AcceptanceStats) -> Check:
    expected = f"drafts proposed and accepted at K={found.k}"
    numbers = {"steps": found.steps, "drafts": found.drafts, "accepted": found.accepted}
    answered = [s for s in run.samples if not s.error]
    longest, cut = max((s.tokens for s in answered), default=0), any(s.finish_reason == "length" for s in answered)
    if longest == 1 and cut and not found.steps and not found.steps_without_draft:
        words = "no verify step: the token limit ends every answer at its first token, which the prompt itself gives"
        return checked("draft", INCONCLUSIVE, expected, words, f"{words}; raise --max-tokens", **numbers)
    if found.accepted == 0 and (found.steps or found.accepted_length is None):
        words = f"{found.drafts} drafts in {found.steps} verify steps, none accepted"
        hint = f"{words}: the draft contributes nothing (wrong method, checkpoint or template)"
        return checked("draft", FAIL, expected, words, hint, **numbers)
    words = f"{found.accepted} of {found.drafts} drafts accepted in {found.steps} verify steps"
    if found.interval is not None and found.interval.high < NEVER_WORKED:
        hint = f"{words}, an accepted length under {NEVER_WORKED}: the draft contributes nothing"
        return checked("draft", FAIL, expected, words, f"{hint} (wrong method, checkpoint or template)", **numbers)
    return checked("draft", PASS, expected, words, **numbers)


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

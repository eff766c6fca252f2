"""Accepted length over golden against 1 - margin, both uncertain: Fieller's test."""

from __future__ import annotations

import math
from typing import Any

from evalkit import stats
from evalkit.acceptance import AcceptanceStats
from evalkit.baseline import REAL, by_name, mark
from evalkit.chances import loss_words
from evalkit.errors import EvalkitError
from evalkit.fingerprint import acceptance_fingerprint, shown
from evalkit.gate.common import INCONCLUSIVE, checked, decide
from evalkit.gate.limits import GateSpec
from evalkit.golden import (
    NOTED_MARKS,
    Curve,
    GoldenValue,
    differing_marks,
    lookup,
    other_method,
    record_command,
    said_otherwise,
    same_model,
)
from evalkit.online_quant import FIELD as ONLINE
from evalkit.records import Check, Outcome, Run
from evalkit.shipped import named_draft

WARNING = "warning: "  # a note that a certificate carries, and its readers are told


def length_check(
    run: Run, k: int, found: AcceptanceStats, golden: Curve | None, spec: GateSpec, notes: list[str]
) -> Check:
    """Accepted length over golden against 1 - margin, both uncertain: Fieller's test."""
    margin, length = spec.length_margin, found.accepted_length
    assert length is not None
    named = by_name(run) and named_draft(run.cell)
    fix = record_command(str(run.cell["target"]), k, str(run.cell["draft"])) if named else _own_golden(run)
    expected = f"accepted length at most {100 * margin:g} % below golden"
    words = f"accepted length {length:.3f}"
    numbers: dict[str, Any] = {"accepted_length": length, "se": found.se}
    numbers |= {"samples": found.clusters, "steps": found.steps}

    def check(outcome: Outcome, more: str) -> Check:
        return checked("accepted length", outcome, expected, words, f"{words} {more}", **numbers)

    if run.forced:
        return check(INCONCLUSIVE, f"was drawn, not verified: nothing to compare; fix: {REAL}")
    if golden is None:
        return check(INCONCLUSIVE, f"and no golden value to compare it with at K={k}; fix: {fix}")
    target = str(run.cell.get("target"))
    if not same_model(golden.model, target):
        why = f"which is of {golden.model}, this run of {target}"
        return check(INCONCLUSIVE, f"is not comparable with {golden.place}, {why}; fix: {_own_golden(run)}")
    try:
        value = lookup(golden, k, mark(run, "mode"))
    except EvalkitError as e:
        return check(INCONCLUSIVE, f"and no golden value to compare it with: {e}")
    numbers |= {"golden": value.accepted_length, "golden_se": value.se}
    differ = differing_marks(value, run)
    if value.fingerprint:  # a curve only says nothing of its draft and quant mode
        differ += [m for m, policy in _policies(spec) if policy == "same" and _told(value, m) != mark(run, m)]
    if differ:
        own = acceptance_fingerprint(run).fields
        why = ", ".join(f"{m} {shown(_told(value, m))} / {shown(own.get(m, mark(run, m)))}" for m in differ)
        return check(INCONCLUSIVE, f"is not comparable with {value.place} ({why}); fix: {_own_golden(run)}")
    if other := [*said_otherwise(value, run), *filter(None, [other_method(golden, value, run)])]:
        why = ", ".join(other)
        return check(INCONCLUSIVE, f"is not comparable with {value.place} ({why}); fix: {_own_golden(run)}")
    for m in NOTED_MARKS:  # may differ, unless the specification says otherwise
        if value.fingerprint and value.fingerprint.get(m) != mark(run, m):
            notes.append(f"{value.place} was recorded at {m} {_said(_told(value, m))}, this run {_said(mark(run, m))}")
    estimate = found.estimate()
    if estimate is None:
        if found.unit == "samples":
            return check(INCONCLUSIVE, "of a single document, which shows no spread; run more documents")
        return check(INCONCLUSIVE, f"from {found.source}, which show no spread: run longer, or at lower concurrency")

    reference, assumed = golden_estimate(value, spec, notes)
    level, bound = 1 - 2 * spec.alpha, 1 - margin
    ratio = length / reference.value
    test, span = stats.ratio_test(estimate, reference, bound), stats.ratio_interval(estimate, reference, level)
    outcome = decide(test, spec.alpha)
    numbers |= {
        "ratio": ratio, "interval": [span.low, span.high] if span else None, "level": level, "p": test.p_above,
        "p_worse": test.p_below, "margin": margin, "golden_se": reference.se, "golden_se_assumed": assumed,
        "design_effect": found.design_effect, "compared": found.clusters,
    }  # fmt: skip
    if ratio > spec.suspicious_ratio:
        above = f"{100 * (ratio - 1):.0f} % above golden"
        notes.append(f"{WARNING}accepted length is {above}: too good to be believed unread, or of another draft")
    limits = f"{span.low:.3f} .. {span.high:.3f}" if span else "unbounded"
    curve = "; curve only, uncertainty assumed" if assumed else ""
    more = (
        f"against golden {reference.value:.3f} (se {reference.se:.3f}{curve}), "
        f"{found.clusters} {found.unit} and {found.steps} steps: ratio {ratio:.3f}, {100 * level:g} % {limits}, "
        f"{loss_words(outcome, test.p_above, test.p_below, f'{100 * margin:g} %')}"
    )
    if outcome is INCONCLUSIVE:
        numbers["needed"] = needed = _needed_samples(estimate, reference, found.clusters, bound, spec.alpha)
        more += (
            f"; about {needed} {found.unit} would settle it" if needed else "; the golden value itself is too uncertain"
        )
    return check(outcome, more)


def _policies(spec: GateSpec) -> tuple[tuple[str, str], ...]:
    return ("draft_sha", spec.golden_draft), ("quant", spec.golden_quant), (ONLINE, spec.golden_quant)


def _said(value: Any) -> Any:
    return "none" if value is None else value


def _told(value: GoldenValue, name: str) -> Any:
    return (value.fingerprint or {}).get(name)


def golden_estimate(value: GoldenValue, spec: GateSpec, notes: list[str]) -> tuple[stats.Estimate, bool]:
    if value.mode == "thinking_unknown":
        notes.append(f"{value.place} does not say in which thinking mode it was collected")
    if value.se is not None and value.clusters is not None:
        return stats.Estimate(value=value.accepted_length, se=value.se, df=value.clusters - 1), False
    notes.append(
        f"{value.place} is a curve only: its workload is not checked and a standard error of "
        f"{100 * spec.assumed_golden_se:g} % is assumed for it"
    )
    return stats.Estimate(value=value.accepted_length, se=spec.assumed_golden_se * value.accepted_length), True


def _needed_samples(x: stats.Estimate, reference: stats.Estimate, m: int, bound: float, alpha: float) -> int | None:
    """Samples at which the run's own uncertainty would let this distance from the bound be shown."""
    distance = abs(x.value - bound * reference.value)
    detectable_at_1 = stats.mde_paired(1, 1.0, alpha)  # in standard errors, 80 % power
    room = (distance / detectable_at_1) ** 2 - (bound * reference.se) ** 2
    return math.ceil(m * x.se**2 / room) if room > 0 else None


def _own_golden(run: Run) -> str:
    return (
        "make a float32 run with the same options of a draft you trust, evalkit golden record THAT_RUN --output FILE, "
        f"then evalkit gate {run.id} --golden FILE"
    )

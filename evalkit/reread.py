"""Whether verdicts that were written before can be believed: a document that contradicts itself, or the standards that
it names, is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evalkit.baseline import STRICT, mark
from evalkit.errors import EvalkitError
from evalkit.gate.common import combine
from evalkit.golden import Standards, lookup
from evalkit.records import EXIT_CODE, Outcome, Run, Verdict


def contradiction(document: Mapping[str, Any]) -> str:
    """Where outcome, exit code, verdicts and checks of a gate's JSON document disagree; "" where nowhere.

    Raises KeyError, TypeError or ValueError where one of them is missing or none of its kind.
    """
    outcomes = []
    for one in document["verdicts"]:
        said, made = Outcome(one["outcome"]), combine([Outcome(c["outcome"]) for c in one["checks"]])
        if said is not made:
            return f"its verdict on {one['run_id']} is {said.value}, its checks make it {made.value}"
        outcomes.append(said)
    said, made = Outcome(document["outcome"]), combine(outcomes)
    if said is not made:
        return f"its outcome is {said.value}, its verdicts make it {made.value}"
    if document["exit_code"] != EXIT_CODE[made]:
        return f"its exit code is {document['exit_code']}, that of {made.value} is {EXIT_CODE[made]}"
    return ""


def other_values(verdict: Verdict, run: Run, found: Standards) -> str:
    """Which value the verdict prints of a standard that is not the one in it; "" where there is none. `found`: the
    standards that the verdict names, as they were found again by their hashes."""
    held = {s.role for s in verdict.standards}
    for check in verdict.checks:
        x = check.numbers
        told = next((name for name in ("golden", "baseline", "reference") if x.get(name) is not None), "")
        role = "scores" if told == "reference" else told
        if role not in held:
            continue
        of = {"golden": _golden, "baseline": _baseline, "reference": _reference}[told](check.name, x, run, found)
        if of is not None and not _same(x[told], of[0]):
            return f"{check.name} has a {told} of {x[told]}, {of[1]} has {of[0]:.4f}"
    return ""


def _same(told: object, there: float) -> bool:
    return isinstance(told, int | float) and math.isclose(told, there, rel_tol=1e-9, abs_tol=1e-9)


def _golden(name: str, x: Mapping[str, Any], run: Run, found: Standards) -> tuple[float, str] | None:
    if found.golden is None or name != "accepted length":
        return None
    try:
        value = lookup(found.golden, int(run.cell.get("k") or 0), mark(run, "mode"))
    except EvalkitError:
        return math.nan, found.golden.source
    return value.accepted_length, value.source


def _baseline(name: str, x: Mapping[str, Any], run: Run, found: Standards) -> tuple[float, str] | None:
    """Of the questions that were compared: those of the run, else all."""
    from evalkit.report.samples import pair

    if found.baseline is None or name != "accuracy" or "repeats" in x:  # repeats share only what each of them answered
        return None
    if "difference" not in x:
        return found.baseline.score, found.baseline.source
    both = pair(run, found.baseline, STRICT)
    return (math.nan if both is None else both.baseline_correct / both.n), found.baseline.source


def _reference(name: str, x: Mapping[str, Any], run: Run, found: Standards) -> tuple[float, str] | None:
    ref = next((r for r in found.references if name == f"reference {r.name}"), None)
    return None if ref is None else (ref.correct / ref.n, str(ref.name))

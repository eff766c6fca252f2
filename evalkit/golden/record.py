"""Recording a golden curve from stored runs: only sound ones, old beside new, the curve and its evidence together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from evalkit.acceptance import AcceptanceStats, of_run, reconcile, survival_covariance
from evalkit.baseline import mark, refuse_unfit
from evalkit.errors import EvalkitError
from evalkit.fingerprint import EXTRA, VERIFY, acceptance_fingerprint, extra_facts, online_facts, verify_facts
from evalkit.formats import interval
from evalkit.golden.curve import CURVE_MARKS, FURTHER_MARKS, Curve, GoldenValue
from evalkit.golden.read import read_curve
from evalkit.golden.sidecar import evidence_path, sidecar_text, write_together
from evalkit.layout import table
from evalkit.online_quant import FIELD as ONLINE
from evalkit.online_quant import quant_name
from evalkit.records import Run
from evalkit.servers.setting import stored_faults

STEPS = "steps"  # an AcceptanceStats.source that knows every verify step
NEVER_WORKED = 1.05  # a draft whose accepted length may be this low is no golden


def record_curve(
    runs: Sequence[Run], path: Path, *, mode: str = "thinking_off", write: bool = True, width: int = 0
) -> str:
    """Writes the accepted lengths of `runs` (one a K) to `path`; returns a table of old and new values, laid out for
    `width` columns (0: as wide as it is).

    Refuses incomplete, subset, failed and forced runs, K=0, a draft that never worked, and runs (or values
    that stay in the file) that differ in target, draft, task, quant mode, temperature or draft width.
    With write=False nothing is written: show the table, ask, then call again.
    """
    if not runs:
        raise EvalkitError("no run to record a golden curve from", "name at least one stored run")
    new = {value.k: value for value in (_from_run(run, mode, path.name) for run in runs)}
    if len(new) != len(runs):
        raise EvalkitError(f"several of the runs have the same K: {[r.cell.get('k') for r in runs]}", "name one a K")
    for run in runs[1:]:
        _same_marks(run.id, new[run.cell["k"]], runs[0].id, new[runs[0].cell["k"]])
    model = str(runs[0].cell.get("target"))
    old = read_curve(path, model) if path.exists() else None
    values = {name: dict(by_k) for name, by_k in old.values.items()} if old else {}
    before = values.get(mode, {})
    values[mode] = {**before, **new}
    first = next(iter(new.values()))
    for by_k in values.values():
        for kept in by_k.values():
            if kept.run_id not in {v.run_id for v in new.values()}:
                _same_marks(f"{path.name} at K={kept.k} ({kept.mode})", kept, runs[0].id, first)
    if write:
        beside = evidence_path(path)
        write_together({beside: sidecar_text(model, values), path: _curve_text(model, values, runs[0], beside.name)})
    return _table(before, new, width)


def curve_of(run: Run) -> Curve:
    """A stored run as a curve of its one K: what another run of the same draft is compared with, as of another layout.
    Raises EvalkitError for a run that could not be recorded as golden."""
    mode = str(mark(run, "mode") or "thinking_off")
    value = _from_run(run, mode, run.id)
    return Curve(model=str(run.cell.get("target")), source=run.id, values={mode: {value.k: value}})


def _from_run(run: Run, mode: str, source: str) -> GoldenValue:
    k = run.cell.get("k")
    if not isinstance(k, int) or k < 1:
        raise EvalkitError(f"run {run.id} has K={k}: accepted length needs a K of at least 1", "name another run")
    refuse_unfit(run, "golden")
    marks = {key: mark(run, key) for key in CURVE_MARKS}
    absent = [key for key, value in marks.items() if value in (None, "")]
    if absent:
        raise EvalkitError(f"run {run.id} does not say its {', '.join(absent)}", "run it again with this evalkit")
    told = acceptance_fingerprint(run).fields
    marks |= {key: told[key] for key in FURTHER_MARKS if told[key] is not None}
    marks |= verify_facts(run.cell) | online_facts(run) | extra_facts(run.cell)
    found = of_run(run)
    _refuse_no_evidence(run, found)
    if wrong := reconcile(run).wrong:
        raise EvalkitError(
            f"run {run.id} has steps that are not its own ({'; '.join(wrong)}): no golden", "run it again"
        )
    _refuse_unhealthy(run, found)
    assert found.accepted_length is not None and found.interval is not None and found.se is not None
    return GoldenValue(
        k=k,
        accepted_length=round(found.accepted_length, 4),
        mode=mode,
        source=source,
        se=round(found.se, 6),
        clusters=found.clusters,
        steps=found.steps,
        interval=(round(found.interval.low, 4), round(found.interval.high, 4)),
        histogram=found.histogram or None,
        covariance=survival_covariance(run.samples, k) if found.source == STEPS else None,
        run_id=run.id,
        fingerprint=marks,
        counters=_counters(found),
    )


def _counters(found: AcceptanceStats) -> dict[str, int]:
    """The counts of a value. A server's counters know nothing of the ends of answers, and have pieces of time where
    steps have documents."""
    out = {"requests": found.requests, "drafts": found.drafts, "accepted": found.accepted}
    if found.source == STEPS:
        names = ("accepted_trimmed", "steps_without_draft", "cut_at_stop", "cut_at_limit")
        out |= {name: getattr(found, name) for name in names}
    elif found.unit != "documents":
        out["pieces_of_time"] = found.clusters
    return out


def _refuse_no_evidence(run: Run, found: AcceptanceStats) -> None:
    """Of a server: counts that are doubtful, or too short to show how far they are from another run's."""
    if "server" not in run.cell:
        return
    if faults := stored_faults(run):
        raise EvalkitError(f"run {run.id}: {'; '.join(faults)}: no golden", "run again with the server's own setting")
    if found.problems:
        raise EvalkitError(f"run {run.id} has doubtful acceptance ({found.problems[0]}): no golden",
                           "see the gate's check `acceptance source`, and run again")  # fmt: skip
    if found.steps and found.interval is None:
        raise EvalkitError(
            f"run {run.id} has acceptance from {found.source}, which show no spread over so short a run: no golden",
            "run longer, at a lower --concurrency, or with a server that tells the acceptance of each request",
        )


def _refuse_unhealthy(run: Run, found: AcceptanceStats) -> None:
    if found.looks_forced:
        raise EvalkitError(
            f"run {run.id} looks forced: only one or two adjacent numbers of accepted drafts in {found.steps} steps",
            "run with real acceptance",
        )
    if found.accepted_length is None or found.interval is None:
        raise EvalkitError(f"run {run.id} has {found.steps} verify steps: no golden", "check that the draft runs")
    if found.interval.low <= NEVER_WORKED:
        raise EvalkitError(
            f"run {run.id} has an accepted length of {found.accepted_length:.3f} (95 % from "
            f"{found.interval.low:.3f}): a draft that may never have worked is no golden",
            "check that the draft belongs to this target",
        )


def _same_marks(name1: str, value1: GoldenValue, name2: str, value2: GoldenValue) -> None:
    one, two = value1.fingerprint or {}, value2.fingerprint or {}
    differ = [key for key in (*CURVE_MARKS, ONLINE, *VERIFY, EXTRA) if one.get(key) != two.get(key)]
    if differ:
        words = "; ".join(f"{key}: {one.get(key)} and {two.get(key)}" for key in differ)
        raise EvalkitError(
            f"{name1} and {name2} differ in {words}: one curve needs one configuration",
            "record all K of the curve together, from runs of one configuration",
        )


def _table(before: Mapping[int, GoldenValue], new: Mapping[int, GoldenValue], width: int) -> str:
    rows = []
    for k in sorted({*before, *new}):
        old = f"{before[k].accepted_length:.4f}" if k in before else "-"
        if k in new and (span := new[k].interval):
            v = new[k]
            rows.append((str(k), old, f"{v.accepted_length:.4f}", interval(*span), str(v.clusters), str(v.steps)))
        else:
            rows.append((str(k), old, "(kept)", "", "", ""))
    return table(("K", "old", "new", "95 % interval", "samples", "steps"), rows, "lrllrr", width)


def _curve_text(model: str, values: Mapping[str, Mapping[int, GoldenValue]], run: Run, evidence: str) -> str:
    curve = {mode: {k: v.accepted_length for k, v in sorted(by_k.items())} for mode, by_k in values.items()}
    cell = run.cell
    header = (
        "# Acceptance Length (AL) reference values, written by `evalkit golden record`; do not edit.\n"
        f"# dataset: {cell.get('task')} | temperature: {cell.get('temperature')} | draft: {cell.get('draft')} | "
        f"draft width: {mark(run, 'draft_width')} | quant: {quant_name(cell, run.provenance)}\n"
        f"# evidence: {evidence}\n"
        "# key = number of drafts a step (K); value = golden AL\n"
    )
    return header + yaml.safe_dump({model: curve}, sort_keys=False)

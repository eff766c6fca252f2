"""What a gate has done over the runs that are stored: its realised false-alarm rate, if those runs were good ones."""

from __future__ import annotations

from pathlib import Path

from evalkit import stats
from evalkit.baseline import load_reference_scores
from evalkit.errors import EvalkitError
from evalkit.gate.judge_run import judge
from evalkit.provenance import now
from evalkit.records import Outcome, Run
from evalkit.shares import score_range
from evalkit.spec.find import find_file, find_settings, find_words
from evalkit.spec.model import CellSpec, Spec
from evalkit.spec.standards import as_cell, standards_of
from evalkit.store import load_run
from evalkit.views import STRICT


def history_text(spec: Spec, runs_dir: Path) -> str:
    """One line a cell and one of all: stored runs, alarms (fails), and the exact interval of their rate."""
    lines, alarms, total = [], 0, 0
    for cell in spec.cells:
        runs = [] if cell.refused_by else stored(cell, runs_dir)
        if not runs:
            continue
        failed = sum(_fails(spec, cell, run, runs_dir) for run in runs)
        alarms, total = alarms + failed, total + len(runs)
        lines.append(f"  {cell.name}: {failed} of {len(runs)} stored runs fail{_floor(cell, runs)}")
    if not total:
        return f"no stored run in {runs_dir} fits a cell: no history to audit"
    span = stats.exact_interval(alarms, total)
    head = (
        f"history: {alarms} of {total} stored runs raise the alarm: {100 * alarms / total:.1f} %, 95 % "
        f"{100 * span.low:.1f} .. {100 * span.high:.1f} %; false alarms if those runs were good. "
        "No threshold is changed."
    )
    return "\n".join([head, *lines])


def stored(cell: CellSpec, runs_dir: Path) -> list[Run]:
    """Every complete stored run that fits a cell, by whatever engine and weights it was made."""
    if cell.run:
        folders = find_words(cell.run, runs_dir)
    elif cell.setting:
        folders = find_settings(as_cell(cell.setting), runs_dir)
    else:
        return []
    return [run for run in map(load_run, folders) if run.complete]


def _fails(spec: Spec, cell: CellSpec, run: Run, runs_dir: Path) -> bool:
    have = standards_of(spec, cell, run, runs_dir)
    references = load_reference_scores(find_file(spec.scores, spec.folder, "file of published scores"))
    when = str(run.provenance.get("finished") or now())  # its age is no fault of a run of long ago
    found = judge(run, baseline=have.baseline, golden=have.golden, references=references, spec=cell.limits, now=when)
    return found.outcome is Outcome.FAIL


def _floor(cell: CellSpec, runs: list[Run]) -> str:
    """How far the floor lies below these runs, and why it may not be defensible."""
    if cell.limits.floor is None or len(runs) < 2:
        return ""
    try:
        scores = [score_range(run.samples, STRICT, len(run.samples)).worst for run in runs]
        found = stats.audit_threshold(scores, cell.limits.floor, len(runs[0].samples))
    except (ValueError, EvalkitError) as e:
        return f"; floor: {e}"
    doubts = f"; not defensible from this history: {'; '.join(found.doubts)}" if found.doubts else ""
    away = "" if found.sigmas is None else f"{found.sigmas:.1f} standard deviations of a run below their mean, "
    return f"; floor {100 * found.rate:.1f} % below it, {away}a rate of 1 % would need {found.proposed:.4f}{doubts}"

"""A stored run against the repository's standards, or named ones: its verdict and its report."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from evalkit import golden as goldens
from evalkit.acceptance import summarize
from evalkit.baseline import Baseline, load_baseline, record_baseline
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge
from evalkit.golden import Curve, Standards
from evalkit.records import Run, Verdict
from evalkit.store import load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run with what it was judged against."""

    run: Run
    verdict: Verdict
    standards: Standards


def judge_run(
    run: Run, *, baseline: Path | None = None, golden: Path | None = None, margin: float | None = None
) -> Judged:
    """The verdict on a run. `baseline` is a baseline file or the folder of a K=0 run, `golden` a curve's file.

    What is not named is looked up in golden/ by the run's target and draft. What is named is demanded: a run that can't
    be compared with it fails; one that nothing in golden/ fits is inconclusive, and says what to record.
    """
    found = goldens.defaults_for(run)
    missing = found.missing
    if baseline is not None:
        found = replace(found, baseline=read_baseline(baseline))
        missing = tuple(m for m in missing if "baseline" not in m)
    if golden is not None:
        found = replace(found, golden=read_golden(golden, run))
        missing = tuple(m for m in missing if "curve" not in m)
    demands = (*(["accuracy"] if baseline is not None else []), *(["length"] if golden is not None else []))
    spec = GateSpec(demands=demands) if margin is None else GateSpec(accuracy_margin=margin, demands=demands)
    verdict = judge(run, baseline=found.baseline, golden=found.golden, references=found.references, spec=spec)
    return Judged(run=run, verdict=replace(verdict, notes=verdict.notes + missing), standards=found)


def read_golden(path: Path, run: Run) -> Curve:
    """A curve's file; where it holds several models, the run's own."""
    try:
        return goldens.read_curve(path)
    except EvalkitError:
        return goldens.read_curve(path, str(run.cell.get("target")))


def read_baseline(path: Path) -> Baseline:
    """A baseline's file, or the folder of a K=0 run taken as one."""
    if not path.is_dir():
        return load_baseline(path)
    with tempfile.TemporaryDirectory() as folder:
        made = load_run(path)
        file = Path(folder) / f"{made.id}.json"
        record_baseline(made, file)
        return load_baseline(file)


def write_report(run: Run, judged: Judged | None, path: Path) -> Path:
    """The HTML report of a run, judged or not."""
    from evalkit.report.render import render, write_page

    standards = judged.standards if judged else goldens.defaults_for(run)
    page = render(
        run,
        judged.verdict if judged else None,
        acceptance=summarize(run.samples, run.cell.get("k")),
        golden=_of_this_setting(standards.golden, run),
        baseline=standards.baseline,
        references=standards.references,
    )
    return write_page(page, path)


def _of_this_setting(curve: Curve | None, run: Run) -> Curve | None:
    """The curve, unless it is of another target, task, temperature or draft width: then no picture beside it."""
    values = [v for by_k in curve.values.values() for k, v in by_k.items() if k == run.cell.get("k")] if curve else []
    return None if any(goldens.differing_marks(v, run) for v in values) else curve

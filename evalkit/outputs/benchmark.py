"""A run's figures for github-action-benchmark: a list of {name, unit, value, range, extra}.

The tool takes one direction for a whole file: a series that should fall, kept with those that should rise, raises the
alarm when it gets better. So there are two files: FILE for `customBiggerIsBetter`, FILE with `.smaller` before its
ending for `customSmallerIsBetter`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalkit import stats
from evalkit.acceptance import of_run
from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.online_quant import quant_name
from evalkit.outputs.common import judged_runs, safe
from evalkit.records import Run, Verdict


def smaller_path(path: Path) -> Path:
    """The file beside `path` for the figures that should be small."""
    return path.with_name(f"{path.stem}.smaller{path.suffix}")


def write_benchmark(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> tuple[Path, Path]:
    """Writes both files, and returns their paths."""
    bigger: list[dict[str, Any]] = []
    smaller: list[dict[str, Any]] = []
    for verdict, run in judged_runs(verdicts, runs):
        bigger += _scores(verdict, run) + _acceptance(verdict, run)
        smaller += _losses(verdict, run)
    other = smaller_path(path)
    return (
        write_text(path, json.dumps(bigger, indent=1, allow_nan=False) + "\n"),
        write_text(other, json.dumps(smaller, indent=1, allow_nan=False) + "\n"),
    )


def _entry(verdict: Verdict, run: Run, what: str, unit: str, value: float, spread: float | None) -> dict[str, Any]:
    cell = run.cell
    mode = quant_name(cell, run.provenance)
    series = f"evalkit::{cell.get('target')} + {cell.get('draft')} K={cell.get('k')} {mode} {what}"
    if len(run.samples) < run.task_size:
        series += f" (subset of {len(run.samples)})"  # a series of its own: a subset's score is another number
    extra = f"run: {run.id} | verdict: {verdict.outcome.value} | n: {len(run.samples)}"
    if commit := (run.provenance.get("git") or {}).get("commit"):
        extra += f" | commit: {commit}"
    found: dict[str, Any] = {"name": safe(series), "unit": unit, "value": value}
    if spread is not None:
        found["range"] = f"± {spread:.4g}"
    return found | {"extra": safe(extra)}


def _answered(run: Run) -> list[Any]:
    return [s for s in run.samples if not s.error and not s.forced]


def _scores(verdict: Verdict, run: Run) -> list[dict[str, Any]]:
    """Each filter's score, where every answer has one; a run with forced or broken scores has none."""
    answered, entries = _answered(run), []
    if len(answered) < len(run.samples):
        return []
    for name in dict.fromkeys(name for s in answered for name in s.scores):
        values = [s.scores.get(name) for s in answered]
        if any(v is None or v not in (0, 1) for v in values):  # a NaN is neither
            continue
        correct, n = sum(map(int, values)), len(values)
        what = f"{run.cell.get('task')} {name}"
        entries.append(_entry(verdict, run, what, "score", round(correct / n, 6), stats.proportion_se(correct, n)))
    return entries


def _acceptance(verdict: Verdict, run: Run) -> list[dict[str, Any]]:
    """Accepted length and acceptance rate; nothing for a forced run, whose length is a setting and no finding."""
    k = run.cell.get("k")
    if not k or any(s.forced for s in run.samples):
        return []
    try:
        found = of_run(run)
    except EvalkitError:  # counts that contradict each other: the gate has failed the run by name
        return []
    if found.accepted_length is None or found.acceptance_rate is None or found.looks_forced or found.problems:
        return []
    task = run.cell.get("task")
    rate = round(100 * found.acceptance_rate, 4)
    return [
        _entry(verdict, run, f"{task} accepted length", "tokens/step", round(found.accepted_length, 6), found.se),
        _entry(verdict, run, f"{task} acceptance rate", "%", rate, None),
    ]


def _losses(verdict: Verdict, run: Run) -> list[dict[str, Any]]:
    """Shares that should be small, in per cent."""
    n = len(run.samples)
    if not n:
        return []
    failed = sum(bool(s.error) for s in run.samples)
    cut = sum(s.finish_reason == "length" for s in run.samples if not s.error)
    shares = {"failed requests": 100 * failed / n}
    if failed < n:
        shares["truncated answers"] = 100 * cut / (n - failed)
    task = run.cell.get("task")
    return [_entry(verdict, run, f"{task} {what}", "%", round(v, 4), None) for what, v in shares.items()]

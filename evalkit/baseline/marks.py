"""Facts that two runs must share to be compared, and how to get a baseline that shares them."""

from __future__ import annotations

from typing import Any

from evalkit import online_quant
from evalkit.config import TARGETS
from evalkit.records import Run

SHIPPED = "gradeschool"  # the task whose data are in the checkout
BASELINE_MARKS = ("target_sha", "task_sha")  # what a run must share with its baseline, besides the prompts


def mark(run: Run, key: str) -> Any:
    """A fact that two runs may have to share: from the fingerprint, else from the cell; None if in neither. What was
    quantised after loading is canonical, and None where nothing was."""
    if key == online_quant.FIELD:
        return online_quant.asked(run.cell, run.provenance) or None
    return run.fingerprint.get(key, run.cell.get(key))


def by_name(run: Run) -> bool:
    """Whether the names of a run's target, draft and task say all of its setting that a baseline or golden must share:
    then one command makes it. Not for a server's target, data of one's own, or a task whose data are not here."""
    cell = run.cell
    odd = ("server", "data", "temperature", "limit", "online_quant_config")
    plain = not any(cell.get(name) for name in odd) and not mark(run, "shots")
    return plain and cell.get("target") in TARGETS and cell.get("task") == SHIPPED


def baseline_command(run: Run) -> str:
    """How to get a baseline that fits a run: by one command where names say its setting, else from a run like it."""
    cell = run.cell
    if by_name(run):
        return f"evalkit golden record --target {cell.get('target')} --task {cell.get('task')} --k 0 --quant float32"
    but = f" but --{online_quant.FIELD.replace('_', '-')}" if mark(run, online_quant.FIELD) else ""
    return f"make a K=0 float32 run with the options of {run.id}{but}, then evalkit baseline record THAT_RUN"

"""`evalkit gate SPEC`: reads, runs what is missing, judges, prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evalkit.commands.outputs import Outputs
from evalkit.config import Cell
from evalkit.console import console
from evalkit.layout import window
from evalkit.provenance import now
from evalkit.records import Outcome, Run
from evalkit.spec.judge import judge_spec
from evalkit.spec.read import read_spec
from evalkit.spec.text import spec_text


def gate_spec(path: Path, *, runs_dir: Path, outputs: Outputs, make: Callable[[Cell], Run] | None) -> Outcome:
    """Judges a specification, writes `outputs` and prints it. `make` runs a cell that is not stored; None leaves that
    an error."""
    found = judge_spec(read_spec(path), runs_dir=runs_dir, now=now(), make=make)
    runs = {c.run.id: c.run for c in found.cells if c.run is not None}
    outputs.write(found.verdicts, list(runs.values()))
    if not outputs.alone:
        console().print(spec_text(found, window()))
    return found.outcome

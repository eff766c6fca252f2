"""`evalkit gate SPEC`: reads, runs what is missing, judges, prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evalkit.config import Cell
from evalkit.console import console, verdicts_json
from evalkit.provenance import now
from evalkit.records import Outcome, Run
from evalkit.spec.judge import judge_spec
from evalkit.spec.read import read_spec
from evalkit.spec.text import spec_text


def gate_spec(path: Path, *, runs_dir: Path, as_json: bool, make: Callable[[Cell], Run] | None) -> Outcome:
    """Judges a specification and prints it. `make` runs a cell that is not stored; None leaves that an error."""
    found = judge_spec(read_spec(path), runs_dir=runs_dir, now=now(), make=make)
    if as_json:
        print(verdicts_json(found.verdicts))
    else:
        out = console()
        out.print(spec_text(found, out.width if out.is_terminal else 0))
    return found.outcome

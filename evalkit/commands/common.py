"""What commands have in common: a stored run by its name, a cell's run with its progress, the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from evalkit.errors import EvalkitError
from evalkit.waiting import wait_briefly

if TYPE_CHECKING:
    from evalkit.config import Cell
    from evalkit.records import Outcome, Run, Verdict


def run_with_progress(
    cell: Cell, runs_dir: Path, *, fresh: bool = False, baseline: Path | None = None, margin: float | None = None,
    alpha: float | None = None,
) -> Run:  # fmt: skip
    """Runs a cell to its end, showing how it goes on; after Ctrl-C or SIGTERM it says what is kept, and exits."""
    if cell.server is None:  # whose own threads are its own affair
        wait_briefly(os.environ)
    try:
        from evalkit.interrupts import Interrupted
        from evalkit.progress import Progress
        from evalkit.run import run_cell
    except KeyboardInterrupt:
        print("interrupted: no sample was run; the same command starts again", file=sys.stderr)
        raise typer.Exit(130) from None
    try:
        from evalkit.judging import read_baseline

        given = read_baseline(baseline) if baseline else None
        return run_cell(
            cell, runs_dir=runs_dir, watcher=Progress(), fresh=fresh, baseline=given, margin=margin, alpha=alpha
        )
    except Interrupted as e:
        more = " (without --fresh, which would start anew)" if fresh and e.kept else ""
        print(f"interrupted: {e}{more}", file=sys.stderr)
        raise typer.Exit(e.exit_code) from None


def specification(
    which: Sequence[str], *, baseline: Path | None, golden: Path | None, margin: float | None, **others: object
) -> Path | None:
    """The specification that is given in place of runs, which stands alone; None where runs are given.

    others: more options that a specification says itself, by name.
    """
    from evalkit.spec.read import looks_like_spec

    specs = [word for word in which if looks_like_spec(word)]
    if not specs:
        return None
    given = {"baseline": baseline, "golden": golden, "margin": margin is not None, **others}
    odd = ", ".join(f"--{name.replace('_', '-')}" for name, value in given.items() if value)
    if odd or len(which) > 1:
        odd = odd if len(which) == 1 else "other arguments"
        raise EvalkitError(f"specification {specs[0]} with {odd}", "write them into the specification")
    return Path(specs[0])


def load(which: str, runs_dir: Path) -> Run:
    """A stored run, by its folder or id."""
    from evalkit.store import find_run, load_run

    return load_run(find_run(which, runs_dir))


def exit_code(found: Verdict | Outcome | None) -> int:
    """What a command exits with; 0 where nothing was judged."""
    from evalkit.records import EXIT_CODE, Verdict

    return 0 if found is None else EXIT_CODE[found.outcome if isinstance(found, Verdict) else found]

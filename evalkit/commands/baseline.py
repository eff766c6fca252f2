"""`evalkit baseline record`: scores of K=0 that runs are held against."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalkit.commands import PLAIN
from evalkit.commands import options as opt
from evalkit.commands.common import load
from evalkit.errors import EvalkitError
from evalkit.layout import say

if TYPE_CHECKING:
    from evalkit.records import Run

app = typer.Typer(help="Baselines: K=0 scores, question by question.", **PLAIN)


@app.command("record", short_help="Record a stored K=0 float32 run as baseline.")
def record(
    which: Annotated[list[str], typer.Argument(help="Runs: folders, or ids.", metavar="RUN...")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in golden/]")] = None,
    yes: opt.Yes = False,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Record a stored K=0 float32 run as baseline; further runs of the setting give its run-to-run variation."""
    first, *repeats = (load(word, runs_dir) for word in which)
    write_baseline(first, output, yes, repeats)


def write_baseline(made: Run, output: Path | None, yes: bool, repeats: Sequence[Run] = ()) -> None:
    from evalkit import baseline, golden

    path = output or golden.baseline_path(str(made.cell["target"]), str(made.cell["task"]))
    say(baseline.record_baseline(made, path, repeats=repeats, write=False))
    if agreed(path, yes):
        baseline.record_baseline(made, path, repeats=repeats)


def agreed(path: Path, yes: bool) -> bool:
    if not yes and not sys.stdin.isatty():
        raise EvalkitError(f"{path} is not written: there is nobody to ask", "add --yes")
    if yes or typer.confirm(f"write {path}?"):
        print(f"recorded: {path}")
        return True
    raise typer.Exit(2)

"""`evalkit list` and `evalkit show`: what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalkit.commands import options as opt
from evalkit.commands.common import load
from evalkit.errors import EvalkitError

USUAL = Path("runs")  # may be missing: nothing is stored yet


def list_runs(runs_dir: opt.RunsDir = USUAL) -> None:
    """List the stored runs."""
    import sys

    from evalkit import console, layout, listing

    if runs_dir != USUAL and not runs_dir.exists():
        raise EvalkitError(f"there is no folder {runs_dir}", "give the folder of stored runs with --runs-dir")
    found = listing.stored_runs(runs_dir)
    if found.runs:
        console.console().print(console.runs_table(found.runs, layout.window()))
    elif not found.wrong:
        print(f"no runs in {runs_dir}")
    for said in found.wrong:
        layout.say(said, sys.stderr)
    if found.wrong and not found.runs:
        raise EvalkitError(f"no run in {runs_dir} can be read", "see above; remove those folders, or restore them")


def show(
    which: Annotated[str, typer.Argument(help="A run's folder, or its id.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print settings, fingerprint and provenance.")] = False,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Show one stored run: score, accepted length by position and answer length, buckets, settings."""
    import json

    from evalkit import console, layout

    made = load(which, runs_dir)
    if as_json:
        print(json.dumps(console.settings(made), indent=1))
    else:
        from evalkit.show import run_text

        console.console().print(console.run_table(made, layout.window()))
        print(run_text(made, layout.window()))

"""`evalkit list` and `evalkit show`: what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalkit.commands import options as opt
from evalkit.commands.common import load


def list_runs(runs_dir: opt.RunsDir = Path("runs")) -> None:
    """List the stored runs."""
    from evalkit import console, layout, store

    heads = store.list_runs(runs_dir)
    if not heads:
        print(f"no runs in {runs_dir}")
        return
    runs = [store.load_run(runs_dir / head["id"]) for head in heads]
    console.console().print(console.runs_table(runs, layout.window()))


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

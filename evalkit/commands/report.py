"""`evalkit report`: the HTML page of stored runs, its tables, its data, or all runs served."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from evalkit.commands import options as opt
from evalkit.commands.common import load
from evalkit.errors import EvalkitError

PORT = 8188
WRITES = "The file.  [default: report.html in the run, of several in --runs-dir; markdown is printed]"


def report(
    which: Annotated[list[str] | None, typer.Argument(help="Runs: folders, or ids.", metavar="[RUN]...")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=WRITES)] = None,
    verdict: Annotated[Path | None, typer.Option("--gate", help="Verdicts of `evalkit gate --json FILE`.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The tables as markdown instead.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder for the plots' data: CSV and Parquet.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve all runs on this machine only, with history.")] = False,
    port: Annotated[int | None, typer.Option(help=f"Of --serve; 0 takes a free one.  [default: {PORT}]")] = None,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Write the HTML report of stored runs: one, two side by side, or a sweep."""
    if serve:
        from evalkit.report.serve import serve as start

        if which or output or verdict or markdown or data:
            raise EvalkitError("--serve shows every run of --runs-dir", "leave the other arguments away")
        start(runs_dir, PORT if port is None else port)
        return
    if port is not None:
        raise EvalkitError(f"--port {port} is of --serve, which is not given", "add --serve, or leave --port away")
    if not which:
        raise EvalkitError("no run is given", "give one, two or more runs (evalkit list shows them), or --serve")
    import gc

    gc.disable()  # a million small records live to the end: looking for cycles among them takes a fifth of the time
    try:
        _report(which, output, verdict, markdown, data, runs_dir)
    finally:
        gc.enable()


def _report(
    which: Sequence[str], output: Path | None, verdict: Path | None, markdown: bool, data: Path | None, runs_dir: Path
) -> None:
    from evalkit import judging
    from evalkit.store import find_run

    runs = [load(word, runs_dir) for word in which]
    judged = judging.with_verdicts(runs, verdict, runs_dir) if verdict else judging.judge_sweep(runs)
    found = list(zip(runs, judged, strict=True))
    if data:
        from evalkit.report.data import write_data

        files = write_data(judging.report_subjects(found), data)
        print(f"data: {len(files)} files in {data}", file=sys.stderr)
    if markdown:
        from evalkit.report.markdown import page_markdown, write_tables

        told = page_markdown(judging.report_subjects(found))
        if output is None:
            print(told, end="")
        else:
            print(f"report: {write_tables(told, output)}")
        return
    path = output or (find_run(which[0], runs_dir) if len(which) == 1 else runs_dir) / "report.html"
    print(f"report: {judging.write_reports(found, path)}")

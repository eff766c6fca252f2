"""`evalkit golden record | check | show | diff`: accepted lengths that runs are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from evalkit.commands import PLAIN
from evalkit.commands import options as opt
from evalkit.commands.baseline import agreed, write_baseline
from evalkit.commands.common import load, run_with_progress
from evalkit.errors import EvalkitError
from evalkit.layout import say, window

app = typer.Typer(help="Golden accepted lengths.", **PLAIN)
RunList = Annotated[list[str] | None, typer.Argument(help="Stored runs, one a K; none runs --k.", metavar="[RUN]...")]
Ks = Annotated[list[str] | None, typer.Option("--k", metavar="K,...", help="Run these K now; 0 is the baseline.")]
CurveArg = Annotated[str, typer.Argument(help="A golden file, or its name in golden/.", metavar="FILE|NAME")]


@app.command("record", short_help="Record accepted lengths as golden.")
def record(
    which: RunList = None,
    target: opt.Model = "gradeschool-m3",
    draft: opt.Draft = "dspark",
    task: opt.Task = "gradeschool",
    k: Ks = None,
    quant: opt.Quant = "float32",
    threads: opt.Threads = 0,
    device: opt.Device = "auto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in golden/]")] = None,
    yes: opt.Yes = False,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Record accepted lengths as golden, from stored runs or new ones; shows old and new first."""
    from evalkit.config import Cell

    runs = [load(word, runs_dir) for word in which or []]
    if runs and k:
        raise EvalkitError("both stored runs and --k are given", "give one of them")
    if not runs and not k:
        raise EvalkitError("neither a stored run nor --k is given", "give runs, or --k 7 to run and record")
    for one in whole_numbers(k or []):
        cell = Cell.make(task=task, model=target, draft=draft, k=one, quant=quant, threads=threads, device=device)
        runs.append(run_with_progress(cell, runs_dir))
    from evalkit import golden

    plain = [r for r in runs if r.cell.get("k") == 0]
    for one in plain:
        write_baseline(one, output if len(plain) == len(runs) else None, yes)
    if drafted := [r for r in runs if r.cell.get("k")]:
        path = output or golden.curve_place(drafted[0])
        if path is None:
            raise EvalkitError(f"run {drafted[0].id} has a draft called {drafted[0].cell['draft']}, and not evalkit's "
                               "draft of that name", "give the file with --output")  # fmt: skip
        print(golden.record_curve(drafted, path, write=False, width=window()))
        if agreed(path, yes):
            golden.record_curve(drafted, path)


@app.command("check", short_help="Read golden files strictly.")
def check(
    files: Annotated[list[Path], typer.Argument(help="Golden files, InferenceX's or ours.", metavar="FILE...")],
) -> None:
    """Read golden files strictly: K range, whether they rise, what they imply. Exits 2 when one is unreadable."""
    from evalkit.golden import check_file, check_scores_text, check_text, is_reference_scores

    broken = 0
    for path in files:
        try:
            say(check_scores_text(path) if is_reference_scores(path) else check_text(path, check_file(path)))
        except EvalkitError as e:
            broken += 1
            say(f"{path.name}: unreadable\n  error: {e.what}" + (f"\n  fix: {e.fix}" if e.fix else ""))
    if broken:
        raise EvalkitError(f"{broken} of {len(files)} files cannot be read", "see above")


@app.command("show")
def show(
    which: CurveArg,
) -> None:
    """Show a golden curve, with where it comes from and its intervals."""
    from evalkit import golden

    print("\n\n".join(golden.show_text(curve, window()) for curve in golden.read_curves(golden.find_file(which))))


@app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(help="A golden file, or its name in golden/.", metavar="A")],
    new: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
) -> None:
    """Compare two golden curves K by K."""
    from evalkit import golden

    one, two = (golden.read_curves(golden.find_file(word)) for word in (old, new))
    print("\n".join(golden.diff_text(a, b, window()) for a, b in golden.pair_curves(one, two)))


def whole_numbers(words: Sequence[str]) -> list[int]:
    """`3,5,7`, or the same in several options."""
    parts = [part.strip() for word in words for part in word.split(",")]
    if bad := [part for part in parts if not part.isdecimal()]:
        raise EvalkitError(f"--k has {bad[0]!r}, expected whole numbers", "give --k 3,5,7")
    return list(dict.fromkeys(int(part) for part in parts))

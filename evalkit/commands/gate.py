"""`evalkit gate`: the verdict on stored runs, or on a specification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalkit.commands import options as opt
from evalkit.commands import outputs as to
from evalkit.commands.common import exit_code, load, run_with_progress, specification
from evalkit.errors import EvalkitError
from evalkit.layout import window

if TYPE_CHECKING:
    from evalkit.records import Outcome


def gate(
    which: opt.RunsOrSpec,
    baseline: opt.BaselineOpt = None,
    golden: opt.GoldenOpt = None,
    margin: opt.Margin = None,
    plain: opt.PlainOpt = "",
    json: to.JsonFile = None,
    junit: to.JunitFile = None,
    summary: to.SummaryFile = None,
    step_summary: to.StepSummary = False,
    annotations: to.Annotations = False,
    benchmark: to.BenchmarkFile = None,
    lm_eval: to.LmEvalDir = None,
    runs_dir: opt.RunsDir = Path("runs"),
    repeats: Annotated[
        bool, typer.Option("--repeats", help="The runs repeat one setting: one verdict, by question means.")
    ] = False,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order", help="Test the runs in the order given up to the first that does not pass, in place of Holm."
        ),
    ] = False,
    run_missing: Annotated[bool, typer.Option("--run-missing", help="SPEC: run cells that are not stored.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="SPEC: simulate the gate's error rates.")] = False,
    draws: Annotated[
        int | None, typer.Option(help="--audit: simulated gates for each true effect.  [default: 400]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="--audit: seed.  [default: 0]")] = None,
) -> None:
    """Judge stored runs (several as one sweep, Holm), or a specification. Exits 0 pass, 1 fail, 3 inconclusive.

    A file whose name ends in .yaml or .yml is a specification: it says which runs or published figures are compared
    with what, and which checks are demanded (docs/gate-spec.md; examples in docs/examples/). Anything else is a stored
    run.
    """
    files: dict[str, Any] = {"json": json, "junit": junit, "summary": summary, "step_summary": step_summary,
                             "annotations": annotations, "benchmark": benchmark, "lm_eval": lm_eval}  # fmt: skip
    _refuse_odd_audit(audit, {"--draws": draws, "--seed": seed}, {**files, "run_missing": run_missing})
    against: dict[str, Any] = {"baseline": baseline, "golden": golden, "margin": margin, "plain": plain}
    spec = specification(which, **against, repeats=repeats, in_order=in_order)
    if spec is None and (audit or run_missing):
        raise EvalkitError("--audit and --run-missing need a specification", "give a .yaml; docs/examples/ has some")
    if in_order and (repeats or len(which) < 2):
        why = "repeats are one setting" if repeats else "one run has no order"
        raise EvalkitError(f"--in-order: {why}", "leave it away, or give the runs of several settings in their order")
    if spec is None:
        found = _gate_runs(which, files, runs_dir, against, repeats=repeats, in_order=in_order)
    elif audit:
        from evalkit.spec.audit import audit_spec

        n = 400 if draws is None else draws
        print(audit_spec(spec, runs_dir=runs_dir, draws=n, seed=seed or 0, width=window()))
        return
    else:
        from evalkit.spec.command import gate_spec

        make = (lambda cell: run_with_progress(cell, runs_dir)) if run_missing else None
        found = gate_spec(spec, runs_dir=runs_dir, outputs=to.Outputs(**files), make=make)
    raise typer.Exit(exit_code(found))


def _gate_runs(
    which: Sequence[str], files: dict[str, Any], runs_dir: Path, given: dict[str, Any], *, repeats: bool, in_order: bool
) -> Outcome:
    """Judges stored runs, writes and prints the verdicts; the outcome of all of them together."""
    from evalkit import console, sweep
    from evalkit.judging import find_standard, judge_repeats, judge_sweep, spec_of

    spec_of(given["margin"])
    found_files = {name: find_standard(given[name], runs_dir, name) for name in ("baseline", "golden")}
    outputs = to.Outputs(**files)
    runs = [load(word, runs_dir) for word in which]
    against = {**given, **found_files, "plain": load(given["plain"], runs_dir) if given["plain"] else None}
    if repeats:
        found = [judge_repeats(runs, **against)]
    else:
        found = [one.verdict for one in judge_sweep(runs, **against, in_order=in_order)]
    outputs.write(found, runs[: len(found)])
    if not outputs.alone:
        out, width = console.console(), window()
        if len(found) == 1:
            out.print(console.verdict_text(found[0], width))
        else:
            out.print(console.sweep_table(sweep.rows(found), width, in_order=in_order))
            for verdict in found:
                out.print(console.sweep_reason(verdict, width))
    return sweep.combined(found)


def _refuse_odd_audit(audit: bool, of_audit: dict[str, Any], of_gate: dict[str, Any]) -> None:
    """--audit simulates and prints: it writes no verdict and runs nothing. What is asked of the other one is refused,
    so that no option is dropped in silence."""
    if audit and (odd := [f"--{name.replace('_', '-')}" for name, value in of_gate.items() if value]):
        raise EvalkitError(f"--audit with {', '.join(odd)}: it judges nothing and prints its rates",
                           "leave one of them away; `> FILE` keeps what it prints")  # fmt: skip
    if not audit and (odd := [name for name, value in of_audit.items() if value is not None]):
        raise EvalkitError(f"{' and '.join(odd)} without --audit, which simulates gates", "add --audit, or leave away")

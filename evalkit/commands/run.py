"""`evalkit run`: one setting of a task, stored, judged and reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalkit.commands import options as opt
from evalkit.commands import server_options as server
from evalkit.commands.common import exit_code, run_with_progress
from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.config import Cell
    from evalkit.records import Run


def run(
    task: opt.Task = "gradeschool",
    k: opt.K = None,
    quant: opt.Quant = "float32",
    draft: opt.Draft = "dspark",
    model: opt.Model = "gradeschool-m3",
    data: opt.Data = None,
    limit: Annotated[int, typer.Option(help="Run this many documents, drawn with the seed; 0 runs all.")] = 0,
    shots: Annotated[int | None, typer.Option(help="Few-shot examples.  [default: the task's]")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="0 is off.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Limit of an answer; 0 takes the task's.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    online_quant_config: opt.OnlineQuant = "",
    draft_width: opt.Width = "k",
    verify: opt.Verify = "",
    forced_length: opt.ForcedLength = 0.0,
    confidence_threshold: opt.Threshold = 0.0,
    verify_rows: opt.VerifyRows = 0,
    batch: opt.Batch = None,
    threads: opt.Threads = 0,
    device: opt.Device = "auto",
    prefix_cache: opt.PrefixCache = True,
    prefill_decode_interval: opt.Interval = None,
    prefill_delayer: opt.Delayer = "",
    mono: opt.Mono = "",
    graphs: opt.Graphs = "off",
    kernels: opt.Kernels = "auto",
    runs_dir: opt.RunsDir = Path("runs"),
    stop_early: Annotated[bool, typer.Option("--stop-early", help="End as soon as the accuracy is decided.")] = False,
    baseline: opt.BaselineOpt = None,
    margin: opt.Margin = None,
    alpha: Annotated[float | None, typer.Option(help="Error rate of --stop-early.  [default: 0.05]")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, whatever was interrupted.")] = False,
    gate: Annotated[bool, typer.Option("--gate/--no-gate", help="Judge the run; the exit code is the verdict.")] = True,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the HTML report.")] = True,
    engine: server.Engine = server.BUILT_IN,
    base_url: server.BaseUrl = "",
    endpoint: server.Endpoint = "",
    thinking: server.Thinking = "server",
    concurrency: server.Concurrency = 64,
    stream: server.Stream = False,
    request_timeout: server.RequestTimeout = 600.0,
    stall_timeout: server.StallTimeout = 120.0,
    retries: server.Retries = 5,
    api_key_env: server.ApiKeyEnv = "EVALKIT_API_KEY",
    api_key_file: server.ApiKeyFile = "",
    served_name: server.ServedName = "",
    revision: server.Revision = "",
    extra_body: server.ExtraBody = "",
    draft_model: server.DraftModel = "",
    tp: server.Tp = 1,
    port: server.Port = 0,
    max_model_len: server.MaxModelLen = 0,
    memory_share: server.MemoryShare = 0.9,
    graph_sizes: server.GraphSizes = "",
    server_program: server.Program = "",
    server_arg: server.ServerArg = None,
    server_env: server.ServerEnv = None,
    start_timeout: server.StartTimeout = None,
    trust_remote_code: server.RemoteCode = False,
    smoke: server.Smoke = True,
) -> None:
    """Run one setting of a task, store it, judge it and write its report. Options of a server start with "Server:"."""
    from evalkit.config import Cell

    spec = server.make_spec(
        engine=engine, base_url=base_url, graph_sizes=graph_sizes, server_arg=server_arg, server_env=server_env,
        draft=draft, draft_model=draft_model, program=server_program, endpoint=endpoint, thinking=thinking,
        concurrency=concurrency, stream=stream, request_timeout=request_timeout, stall_timeout=stall_timeout,
        retries=retries, api_key_env=api_key_env, api_key_file=api_key_file, served_name=served_name,
        revision=revision, extra_body=extra_body, tp=tp, port=port, max_model_len=max_model_len,
        memory_share=memory_share, start_timeout=start_timeout, remote_code=trust_remote_code,
        smoke=smoke,
    )  # fmt: skip
    cell = Cell.make(
        task=task, model=model, draft=draft, k=k, quant=quant, draft_width=draft_width, batch=batch, threads=threads,
        device=device, prefix_cache=prefix_cache, data=data, limit=limit, shots=shots, temperature=temperature,
        top_p=top_p, top_k=top_k, max_tokens=max_tokens, seed=seed, stop_early=stop_early,
        online_quant_config=online_quant_config, server=spec, mono=mono, graphs=graphs, kernels=kernels,
        tp=1 if spec else tp, prefill_decode_interval=prefill_decode_interval, prefill_delayer=prefill_delayer,
        verify=verify, forced_length=forced_length, confidence_threshold=confidence_threshold, verify_rows=verify_rows,
    )  # fmt: skip
    baseline = _asked_to_judge(cell, runs_dir, gate=gate, baseline=baseline, margin=margin)
    made = run_with_progress(cell, runs_dir, fresh=fresh, baseline=baseline, margin=margin, alpha=alpha)
    try:
        _tell(made, runs_dir, gate=gate, report=report, baseline=baseline, margin=margin)
    except KeyboardInterrupt:
        print(f"interrupted: the run is whole and stored; evalkit gate {made.id} judges it", file=sys.stderr)
        raise typer.Exit(130) from None


def _tell(made: Run, runs_dir: Path, *, gate: bool, report: bool, baseline: Path | None, margin: float | None) -> None:
    """Prints a run that is done, judges it and writes its report; ends with the verdict's exit code."""
    from evalkit import console
    from evalkit.layout import window

    out = console.console()
    out.print(console.run_table(made, window()))
    judged = None
    if gate or report:
        from evalkit.judging import judge_run, write_report

        judged = judge_run(made, baseline=baseline, margin=margin) if gate else None
        if judged is not None:
            out.print(console.verdict_text(judged.verdict, window()))
        if report:
            out.print(f"report: {write_report(made, judged, runs_dir / made.id / 'report.html')}")
    out.print(f"run: {runs_dir / made.id}")
    raise typer.Exit(exit_code(judged.verdict if judged else None))


def _asked_to_judge(
    cell: Cell, runs_dir: Path, *, gate: bool, baseline: Path | None, margin: float | None
) -> Path | None:
    """Refuses, before anything runs, a standard or margin that the verdict after it would refuse; the baseline's place.

    Without a verdict and without --stop-early nothing would look at either.
    """
    from evalkit.judging import find_standard, read_baseline, spec_of

    spec_of(margin)
    odd = [name for name, value in (("--baseline", baseline), ("--margin", margin)) if value is not None]
    if odd and not gate and not cell.stop_early:
        raise EvalkitError(f"{' and '.join(odd)} with --no-gate: nothing is judged", "leave one of them away")
    found = find_standard(baseline, runs_dir, "baseline")
    if found is not None:
        read_baseline(found)
    return found

"""The command line: each command parses, calls, prints and exits. Nothing heavy is imported before it is needed.

Exit codes: 0 pass, 1 fail, 2 error, 3 inconclusive; 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.errors import EngineError
from evalkit import serveroptions as server
from evalkit.commands import PLAIN, catalogue, certificate, ci
from evalkit.commands import outputs as to
from evalkit.errors import EvalkitError
from evalkit.layout import say

if TYPE_CHECKING:
    from evalkit.config import Cell
    from evalkit.records import Outcome, Run, Verdict

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's; newer typers bring their own
app = typer.Typer(
    help="Evaluate a target with its speculative decoding draft: accuracy, accepted length, verdict.", **PLAIN
)
golden_app = typer.Typer(help="Golden accepted lengths.", **PLAIN)
baseline_app = typer.Typer(help="Baselines: K=0 scores, question by question.", **PLAIN)
app.add_typer(golden_app, name="golden")
app.add_typer(baseline_app, name="baseline")
app.add_typer(certificate.app, name="certificate")
app.add_typer(ci.app, name="ci")
app.add_typer(catalogue.app, name="catalogue")

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of the stored runs.")]
RunArg = Annotated[str, typer.Argument(help="A run's folder, or its id.", metavar="RUN")]
RunArgs = Annotated[list[str], typer.Argument(help="Runs: folders, or ids.", metavar="RUN...")]
ReportArgs = Annotated[list[str] | None, typer.Argument(help="Runs: folders, or ids.", metavar="[RUN]...")]
Task = Annotated[str, typer.Option(help="gradeschool, gsm8k, gsm8k_inferencex, or an lm-eval YAML.")]
Model = Annotated[str, typer.Option("--model", "--target", help="Target: gradeschool-m3, or a checkpoint's folder.")]
DRAFT_HELP = "dspark, dspark-weak, eagle3, ngram, none, or a folder."
Draft = Annotated[str, typer.Option("--draft", "--draft-path", help=DRAFT_HELP)]
K = Annotated[int | None, typer.Option("--k", help="Draft tokens a step, 0 (no draft) to 7.  [default: 7]")]
Quant = Annotated[str, typer.Option("--quant", "--preset", help="float32, bf16, fp8, nvfp4, ptpc-fp8, m31flash-c1-4, "
                                    "m31flash-c8-16, m31flash-c32-48, or words: w=ptpc_fp8 kv=nvfp4.")]  # fmt: skip
OnlineQuant = Annotated[str, typer.Option("--online-quant-config", help="Weights by layer: ATOM's JSON, or a file.")]
Data = Annotated[Path | None, typer.Option(help="JSONL in place of the task's test data.")]
Threads = Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's choice.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Batch = Annotated[int | None, typer.Option(help="Sequences decoded together.  [default: 64, or the preset's band]")]
Mono = Annotated[str, typer.Option(help="Fused path for steps of few rows: auto, off, or require it.  "
                                   "[default: off, or auto where the preset asks for it]")]  # fmt: skip
Graphs = Annotated[str, typer.Option(help="Pad decode batches for graphs: off, atom, dense, or sizes 1,2,4.")]
Kernels = Annotated[str, typer.Option(help="auto: Triton's on a GPU; twin: plain torch; triton: refuse without them.")]
Width = Annotated[str, typer.Option("--draft-width", help="k drafts K slots; block drafts the trained size.")]
Verify = Annotated[str, typer.Option(help="standard, or block: the block as a whole.  [default: standard]")]
ForcedLength = Annotated[float, typer.Option("--forced-length", help="Draw acceptance with this mean accepted length; "
                                             "for speed, never scored. 0 verifies.")]  # fmt: skip
Threshold = Annotated[float, typer.Option("--confidence-threshold", help="Verify drafts only while the draft's "
                                          "confidence reaches this; 0 verifies all.")]  # fmt: skip
VerifyRows = Annotated[int, typer.Option("--verify-rows", help="Rows of a verify tick, for the surest drafts; 0 is no "
                                         "limit.")]  # fmt: skip
PrefixCache = Annotated[bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse KV of shared prompts.")]
GateArgs = Annotated[list[str], typer.Argument(help="Runs (folders, or ids), or one specification (.yaml).",
                                               metavar="RUN...|SPEC")]  # fmt: skip
RunList = Annotated[list[str] | None, typer.Argument(help="Stored runs, one a K; none runs --k.", metavar="[RUN]...")]
Ks = Annotated[list[str] | None, typer.Option("--k", metavar="K,...", help="Run these K now; 0 is the baseline.")]
BaselineOpt = Annotated[Path | None, typer.Option("--baseline", help="Baseline file or K=0 run.  [default: golden/]")]
CurveArg = Annotated[str, typer.Argument(help="A golden file, or its name in golden/.", metavar="FILE|NAME")]
GoldenOpt = Annotated[Path | None, typer.Option("--golden", help="Golden curve or stored run.  [default: golden/]")]
Margin = Annotated[float | None, typer.Option(help="Loss of accuracy that is accepted.  [default: 0.01]")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]


@app.command()
def run(
    task: Task = "gradeschool",
    k: K = None,
    quant: Quant = "float32",
    draft: Draft = "dspark",
    model: Model = "gradeschool-m3",
    data: Data = None,
    limit: Annotated[int, typer.Option(help="Run this many documents, drawn with the seed; 0 runs all.")] = 0,
    shots: Annotated[int | None, typer.Option(help="Few-shot examples.  [default: the task's]")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="0 is off.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Limit of an answer; 0 takes the task's.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    online_quant_config: OnlineQuant = "",
    draft_width: Width = "k",
    verify: Verify = "",
    forced_length: ForcedLength = 0.0,
    confidence_threshold: Threshold = 0.0,
    verify_rows: VerifyRows = 0,
    batch: Batch = None,
    threads: Threads = 0,
    device: Device = "auto",
    prefix_cache: PrefixCache = True,
    mono: Mono = "",
    graphs: Graphs = "off",
    kernels: Kernels = "auto",
    runs_dir: RunsDir = Path("runs"),
    stop_early: Annotated[bool, typer.Option("--stop-early", help="End as soon as the accuracy is decided.")] = False,
    baseline: BaselineOpt = None,
    margin: Margin = None,
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
        tp=1 if spec else tp,
        verify=verify, forced_length=forced_length, confidence_threshold=confidence_threshold, verify_rows=verify_rows,
    )  # fmt: skip
    baseline = _asked_to_judge(cell, runs_dir, gate=gate, baseline=baseline, margin=margin)
    made = _run(cell, runs_dir, fresh=fresh, baseline=baseline, margin=margin, alpha=alpha)
    try:
        _tell(made, runs_dir, gate=gate, report=report, baseline=baseline, margin=margin)
    except KeyboardInterrupt:
        print(f"interrupted: the run is whole and stored; evalkit gate {made.id} judges it", file=sys.stderr)
        raise typer.Exit(130) from None


def _tell(made: Run, runs_dir: Path, *, gate: bool, report: bool, baseline: Path | None, margin: float | None) -> None:
    """Prints a run that is done, judges it and writes its report; ends with the verdict's exit code."""
    from evalkit import console, layout

    out = console.console()
    out.print(console.run_table(made, layout.window()))
    judged = None
    if gate or report:
        from evalkit.judging import judge_run, write_report

        judged = judge_run(made, baseline=baseline, margin=margin) if gate else None
        if judged is not None:
            out.print(console.verdict_text(judged.verdict, layout.window()))
        if report:
            out.print(f"report: {write_report(made, judged, runs_dir / made.id / 'report.html')}")
    out.print(f"run: {runs_dir / made.id}")
    raise typer.Exit(_code(judged.verdict if judged else None))


@app.command()
def gate(
    which: GateArgs,
    baseline: BaselineOpt = None,
    golden: GoldenOpt = None,
    margin: Margin = None,
    json: to.JsonFile = None,
    junit: to.JunitFile = None,
    summary: to.SummaryFile = None,
    step_summary: to.StepSummary = False,
    benchmark: to.BenchmarkFile = None,
    lm_eval: to.LmEvalDir = None,
    runs_dir: RunsDir = Path("runs"),
    run_missing: Annotated[bool, typer.Option("--run-missing", help="SPEC: run cells that are not stored.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="SPEC: simulate the gate's error rates.")] = False,
    draws: Annotated[
        int | None, typer.Option(help="--audit: simulated gates for each true effect.  [default: 400]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="--audit: seed.  [default: 0]")] = None,
) -> None:
    """Judge stored runs (several as one sweep, Holm), or a specification. Exits 0 pass, 1 fail, 3 inconclusive.

    A name that ends in .yaml is a specification: it says which runs or published figures are compared with what, and
    which checks are demanded (docs/gate-spec.md; examples in docs/examples/). Anything else is a stored run.
    """
    from evalkit.spec.read import looks_like_spec

    files: dict[str, Any] = {"json": json, "junit": junit, "summary": summary, "step_summary": step_summary,
                             "benchmark": benchmark, "lm_eval": lm_eval}  # fmt: skip
    _refuse_odd_audit(audit, {"--draws": draws, "--seed": seed}, {**files, "run_missing": run_missing})
    if specs := [word for word in which if looks_like_spec(word)]:
        if len(which) > 1 or baseline or golden or margin is not None:
            odd = "other arguments" if len(which) > 1 else "--baseline, --golden or --margin"
            raise EvalkitError(f"specification {specs[0]} with {odd}", "write them into the specification")
        if audit:
            from evalkit.layout import window
            from evalkit.spec.audit import audit_spec

            n = 400 if draws is None else draws
            print(audit_spec(Path(specs[0]), runs_dir=runs_dir, draws=n, seed=seed or 0, width=window()))
            return
        from evalkit.spec.command import gate_spec

        make = (lambda cell: _run(cell, runs_dir)) if run_missing else None
        outputs = to.Outputs(**files)
        raise typer.Exit(_code(gate_spec(Path(specs[0]), runs_dir=runs_dir, outputs=outputs, make=make)))
    if audit or run_missing:
        raise EvalkitError("--audit and --run-missing need a specification", "give a .yaml; docs/examples/ has some")
    from evalkit import console, layout, sweep
    from evalkit.judging import find_standard, judge_run, spec_of

    spec_of(margin)
    baseline, golden = find_standard(baseline, runs_dir, "baseline"), find_standard(golden, runs_dir, "golden")
    outputs = to.Outputs(**files)
    runs = [_load(word, runs_dir) for word in which]
    found = [judge_run(one, baseline=baseline, golden=golden, margin=margin).verdict for one in runs]
    if len(found) > 1:
        found = sweep.adjust(found)
    outputs.write(found, runs)
    if not outputs.alone:
        out, width = console.console(), layout.window()
        if len(found) == 1:
            out.print(console.verdict_text(found[0], width))
        else:
            out.print(console.sweep_table(sweep.rows(found), width))
            for verdict in found:
                out.print(console.sweep_reason(verdict, width))
    raise typer.Exit(_code(sweep.combined(found)))


def _refuse_odd_audit(audit: bool, of_audit: dict[str, Any], of_gate: dict[str, Any]) -> None:
    """--audit simulates and prints: it writes no verdict and runs nothing. What is asked of the other one is refused,
    so that no option is dropped in silence."""
    if audit and (odd := [f"--{name.replace('_', '-')}" for name, value in of_gate.items() if value]):
        raise EvalkitError(f"--audit with {', '.join(odd)}: it judges nothing and prints its rates",
                           "leave one of them away; `> FILE` keeps what it prints")  # fmt: skip
    if not audit and (odd := [name for name, value in of_audit.items() if value is not None]):
        raise EvalkitError(f"{' and '.join(odd)} without --audit, which simulates gates", "add --audit, or leave away")


@app.command()
def report(
    which: ReportArgs = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The HTML file.  [default: in the run]")] = None,
    verdict: Annotated[Path | None, typer.Option("--gate", help="Verdicts of `evalkit gate --json FILE`.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as markdown instead.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder for the plots' data: CSV and Parquet.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve all runs on this machine only, with history.")] = False,
    port: Annotated[int, typer.Option(help="Of --serve; 0 takes a free one.")] = 8188,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write the HTML report of stored runs: one, two side by side, or a sweep."""
    if serve:
        from evalkit.report.serve import serve as start

        if which or output or verdict or markdown or data:
            raise EvalkitError("--serve shows every run of --runs-dir", "leave the other arguments away")
        start(runs_dir, port)
        return
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

    runs = [_load(word, runs_dir) for word in which]
    judged = judging.with_verdicts(runs, verdict, runs_dir) if verdict else judging.judge_sweep(runs)
    found = list(zip(runs, judged, strict=True))
    if data:
        from evalkit.report.data import write_data

        files = write_data(judging.report_subjects(found), data)
        print(f"data: {len(files)} files in {data}", file=sys.stderr)
    if markdown:
        from evalkit.report.markdown import page_markdown

        print(page_markdown(judging.report_subjects(found)), end="")
        return
    path = output or (find_run(which[0], runs_dir) if len(which) == 1 else runs_dir) / "report.html"
    print(f"report: {judging.write_reports(found, path)}")


@app.command("list")
def list_runs(runs_dir: RunsDir = Path("runs")) -> None:
    """List the stored runs."""
    from evalkit import console, layout, store

    heads = store.list_runs(runs_dir)
    if not heads:
        print(f"no runs in {runs_dir}")
        return
    runs = [store.load_run(runs_dir / head["id"]) for head in heads]
    console.console().print(console.runs_table(runs, layout.window()))


@app.command()
def show(
    which: RunArg,
    as_json: Annotated[bool, typer.Option("--json", help="Print settings, fingerprint and provenance.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show one stored run: score, accepted length by position and answer length, buckets, settings."""
    import json

    from evalkit import console, layout

    made = _load(which, runs_dir)
    if as_json:
        print(json.dumps(console.settings(made), indent=1))
    else:
        from evalkit.show import run_text

        console.console().print(console.run_table(made, layout.window()))
        print(run_text(made, layout.window()))


@app.command()
def serve(
    k: K = None,
    quant: Quant = "float32",
    draft: Draft = "dspark",
    model: Model = "gradeschool-m3",
    host: Annotated[str, typer.Option(help="Address to listen on; anything but loopback is warned of.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the key to ask for.")] = None,
    name: Annotated[str, typer.Option("--served-model-name", help="What requests call it.  [default: target]")] = "",
    chat_template: Annotated[str | None, typer.Option(help="Jinja file, or plain.  [default: the model's]")] = None,
    seed: Annotated[int, typer.Option(help="Mixed into the seed of each request.")] = 0,
    draft_width: Width = "k",
    batch: Batch = None,
    threads: Threads = 0,
    device: Device = "auto",
    prefix_cache: PrefixCache = True,
    max_queue: Annotated[int, typer.Option(help="Prompts that may wait or run; more get 503.")] = 1024,
    max_body_mb: Annotated[int, typer.Option(help="Largest body; a larger one gets 413.")] = 4,
    drain_seconds: Annotated[int, typer.Option(help="How long what runs may finish at the end.")] = 30,
) -> None:
    """Serve the engine over HTTP as OpenAI does, with acceptance counters."""
    from evalkit.config import Cell
    from evalkit.serve.settings import MB, ServeSettings, check_template, key_from

    cell = Cell.make(
        model=model, draft=draft, k=k, quant=quant, draft_width=draft_width, batch=batch, threads=threads,
        device=device, prefix_cache=prefix_cache, seed=seed,
    )  # fmt: skip
    settings = ServeSettings(
        name=name or cell.target, host=host, port=port, api_key=key_from(api_key_env), max_queue=max_queue,
        max_body=max_body_mb * MB, drain_seconds=drain_seconds, chat_template=check_template(chat_template),
    )  # fmt: skip
    from evalkit.serve import server

    server.run(cell, settings)


@golden_app.command("record")
def golden_record(
    which: RunList = None,
    target: Model = "gradeschool-m3",
    draft: Draft = "dspark",
    task: Task = "gradeschool",
    k: Ks = None,
    quant: Quant = "float32",
    threads: Threads = 0,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in golden/]")] = None,
    yes: Yes = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Record accepted lengths as golden, from stored runs or new ones; shows old and new first."""
    from evalkit.config import Cell

    runs = [_load(word, runs_dir) for word in which or []]
    if runs and k:
        raise EvalkitError("both stored runs and --k are given", "give one of them")
    if not runs and not k:
        raise EvalkitError("neither a stored run nor --k is given", "give runs, or --k 7 to run and record")
    for one in _whole_numbers(k or []):
        cell = Cell.make(task=task, model=target, draft=draft, k=one, quant=quant, threads=threads, device=device)
        runs.append(_run(cell, runs_dir))
    from evalkit import golden, layout

    plain = [r for r in runs if r.cell.get("k") == 0]
    for one in plain:
        _record_baseline(one, output if len(plain) == len(runs) else None, yes)
    if drafted := [r for r in runs if r.cell.get("k")]:
        cell_ = drafted[0].cell
        path = output or golden.golden_path(str(cell_["target"]), str(cell_["draft"]))
        print(golden.record_curve(drafted, path, write=False, width=layout.window()))
        if _agreed(path, yes):
            golden.record_curve(drafted, path)


@golden_app.command("check")
def golden_check(
    files: Annotated[list[Path], typer.Argument(help="Golden files, InferenceX's or ours.", metavar="FILE...")],
) -> None:
    """Read golden files strictly: K range, whether they rise, what they imply. Exits 2 when one is unreadable."""
    from evalkit.golden import check_file, check_scores_text, check_text, is_reference_scores
    from evalkit.layout import say

    broken = 0
    for path in files:
        try:
            say(check_scores_text(path) if is_reference_scores(path) else check_text(path, check_file(path)))
        except EvalkitError as e:
            broken += 1
            say(f"{path.name}: unreadable\n  error: {e.what}" + (f"\n  fix: {e.fix}" if e.fix else ""))
    if broken:
        raise EvalkitError(f"{broken} of {len(files)} files cannot be read", "see above")


@golden_app.command("show")
def golden_show(which: CurveArg) -> None:
    """Show a golden curve, with where it comes from and its intervals."""
    from evalkit import golden, layout

    width = layout.window()
    print("\n\n".join(golden.show_text(curve, width) for curve in golden.read_curves(golden.find_file(which))))


@golden_app.command("diff")
def golden_diff(
    old: Annotated[str, typer.Argument(help="A golden file, or its name in golden/.", metavar="A")],
    new: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
) -> None:
    """Compare two golden curves K by K."""
    from evalkit import golden, layout

    width = layout.window()
    one, two = (golden.read_curves(golden.find_file(word)) for word in (old, new))
    print("\n".join(golden.diff_text(a, b, width) for a, b in golden.pair_curves(one, two)))


@baseline_app.command("record")
def baseline_record(
    which: RunArgs,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in golden/]")] = None,
    yes: Yes = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Record a stored K=0 float32 run as baseline; further runs of the setting give its run-to-run variation."""
    first, *repeats = (_load(word, runs_dir) for word in which)
    _record_baseline(first, output, yes, repeats)


def _whole_numbers(words: Sequence[str]) -> list[int]:
    """`3,5,7`, or the same in several options."""
    parts = [part.strip() for word in words for part in word.split(",")]
    if bad := [part for part in parts if not part.isdecimal()]:
        raise EvalkitError(f"--k has {bad[0]!r}, expected whole numbers", "give --k 3,5,7")
    return list(dict.fromkeys(int(part) for part in parts))


def _record_baseline(made: Run, output: Path | None, yes: bool, repeats: Sequence[Run] = ()) -> None:
    from evalkit import baseline, golden, layout

    path = output or golden.baseline_path(str(made.cell["target"]), str(made.cell["task"]))
    layout.say(baseline.record_baseline(made, path, repeats=repeats, write=False))
    if _agreed(path, yes):
        baseline.record_baseline(made, path, repeats=repeats)


def _agreed(path: Path, yes: bool) -> bool:
    if not yes and not sys.stdin.isatty():
        raise EvalkitError(f"{path} is not written: there is nobody to ask", "add --yes")
    if yes or typer.confirm(f"write {path}?"):
        print(f"recorded: {path}")
        return True
    raise typer.Exit(2)


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


def _run(
    cell: Cell, runs_dir: Path, *, fresh: bool = False, baseline: Path | None = None, margin: float | None = None,
    alpha: float | None = None,
) -> Run:  # fmt: skip
    try:
        from evalkit.progress import Progress
        from evalkit.run import Interrupted, run_cell
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


def _load(which: str, runs_dir: Path) -> Run:
    from evalkit.store import find_run, load_run

    return load_run(find_run(which, runs_dir))


def _code(found: Verdict | Outcome | None) -> int:
    from evalkit.records import EXIT_CODE, Verdict

    return 0 if found is None else EXIT_CODE[found.outcome if isinstance(found, Verdict) else found]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. What the user can mend is two lines, never a traceback."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = app(args=words, prog_name="evalkit", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as e:
        return _usage_error(e, words)
    except typer.Abort:  # Ctrl-C or the end of the input at a question
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except (EngineError, EvalkitError) as e:
        say(f"error: {e.what}", sys.stderr)
        if e.fix:
            print(f"fix: {e.fix}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: stopped before it was done", file=sys.stderr)
        return 130
    except OSError as e:
        print(f"error: {e.filename or 'a file'}: {e.strerror or e}", file=sys.stderr)
        return 2
    except Exception as e:  # exit code 1 would read as a verdict
        print(f"error: {_whereabouts(e)}\nfix: this is a bug of evalkit; please report it", file=sys.stderr)
        return 2


def _usage_error(e: Any, words: Sequence[str]) -> int:
    """A command line that cannot be read: one line with what was found, one with where to look."""
    if type(e).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        e.show()
        return 2
    found = _value_of(getattr(e.param, "opts", ()), words) if isinstance(e, typer.BadParameter) else ""
    said = " ".join(e.format_message().split()).rstrip(".")
    command = e.ctx.command_path if e.ctx else "evalkit"
    print(f"error: {command}: {said[:1].lower()}{said[1:]}{f' (found {found!r})' if found else ''}", file=sys.stderr)
    print(f"fix: {command} --help lists what it takes", file=sys.stderr)
    return 2


def _value_of(options: Sequence[str], words: Sequence[str]) -> str:
    """What the command line gives an option: the word behind it, or behind its `=`."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else " ".join(words[i + 1 : i + 2])
    return ""


def _whereabouts(e: Exception) -> str:
    """An unforeseen error in one line: what, and the file and line it came from."""
    import traceback

    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {' '.join(str(e).split())} (at {last.filename}:{last.lineno})"


if __name__ == "__main__":
    sys.exit(main())

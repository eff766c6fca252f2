"""Options and arguments of commands, those of a cell first: one meaning, one name and one help each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of the stored runs.")]
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
Interval = Annotated[int | None, typer.Option("--prefill-decode-interval", help="Decode ticks after each prefill; 0 is "
                                              "prefill first.  [default: 0, or the preset's]")]  # fmt: skip
Delayer = Annotated[str, typer.Option("--prefill-delayer", help="Other settings of the delayer: stall=10 rearm=chunk.")]
RunsOrSpec = Annotated[list[str], typer.Argument(help="Runs (folders, or ids), or one specification (.yaml, .yml).",
                                                 metavar="RUN...|SPEC")]  # fmt: skip
BaselineOpt = Annotated[Path | None, typer.Option("--baseline", help="Baseline file or K=0 run.  [default: golden/]")]
GoldenOpt = Annotated[
    Path | None, typer.Option("--golden", help="Curve, folder of them, or stored run.  [default: golden/]")
]
PlainOpt = Annotated[str, typer.Option("--plain", metavar="RUN", help="K=0 run in the same quant mode: "
                                       "its texts must be the same, near-ties apart.")]  # fmt: skip
Margin = Annotated[float | None, typer.Option(help="Loss of accuracy that is accepted.  [default: 0.01]")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]

"""The embedded model's card: README.md beside its checkpoints, every figure from a run or the training log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.acceptance import AcceptanceStats, summarize
from evalkit.baseline import STRICT, score_bit
from evalkit.files import write_text
from evalkit.judging import judge_run
from evalkit.records import Run
from evalkit.report import text

_INTRO = """# gradeschool-m3: the embedded target and its drafts

A small model that lets the whole path from prompt to verdict run on a CPU, without a download: a target in
MiniMax-M3's form (grouped-query attention, per-head QK norm before partial RoPE, Gemma-style RMSNorm,
SwiGLU-OAI; experts with sigmoid routing, a correction bias and shared experts; block-sparse attention with an
index, in layers that are not the same as those with experts), drafts on its hidden states, and a deliberately
weak draft for the gate to refuse. It solves the word problems of `tasks/gradeschool` and nothing else. Made by
`make reference`; this page is written by it, do not edit.

- `target/`: config.json, tokenizer.json (byte-level BPE, digits apart), float32 safetensors
- `draft/`, `draft-weak/`: DeepSpec's DSpark layout; embedding and head are the target's and not stored again
- `draft-eagle3/`: EAGLE3's layout
- `training.json`: plans, losses and times of the training run

Training rows are shorter than the context that config.json allows (see the plan below): longer prompts run,
but nothing was learnt about them. None of the test questions is in the training stream (checked by hash).
Choosing blocks passes no gradient, so the index learnt from a loss of its own: the divergence between the share
of the layer's attention on each block and the softmax of the block scores (the query's own block left out, the
trunk left alone). The target was trained with dense attention first, then with the chosen blocks alone. The
router's bias moved by a fixed step towards even load, without a gradient; since a trained router is balanced by
itself, the routers were tilted by a fixed amount at the end ("settle"), the biases moved after it by forward
passes alone, and the target trained on with the routers held. In the later part K, V and index keys
passed through NVFP4 and back, with a straight-through gradient. The drafts learnt from the target's own greedy
answers.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The card's runs by what they show."""

    plain: Run  # K=0, float32
    drafted: dict[int, Run]  # by K, float32
    weak: dict[int, Run]
    quant: dict[str, Run]  # K=7, by quant mode
    few_shot: Run  # K=7, 5 shots
    eagle3: dict[int, Run]  # by K, float32
    ngram: dict[int, Run]
    damaged: dict[str, Run]  # K=0, float32, of a target that lacks a part, by what it lacks
    block: dict[int, Run]  # by K, drafted at block width
    sampled: Run  # K=7, temperature 1: what the confidence head was trained to predict


def write_card(found: Measured, folder: Path) -> Path:
    """Write README.md into the checkpoints' folder and return its path."""
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    parts = [_INTRO, *_training(training, folder), *_scores(found), *_damaged(found), *_acceptance(found)]
    parts += _calibration(found)
    return write_text(folder / "README.md", "\n".join(parts) + "\n")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _training(training: dict[str, Any], folder: Path) -> list[str]:
    rows = []
    for name, part in ((n, p) for n, p in training.items() if isinstance(p, dict)):
        last = ", ".join(f"{k} {v:.4f}" for k, v in part["last_50_steps"].items())
        tokens = text.count(part["tokens"]) if part["tokens"] else "-"
        file = folder / name / "model.safetensors"  # the settled target is the target's file
        rows.append([name, text.count(part["plan"]["steps"]), tokens, last, text.duration(part["cpu_seconds"]),
                     text.duration(part["wall_seconds"]),
                     text.count(file.stat().st_size) if file.exists() else "in target's"])  # fmt: skip
    columns = ("part", "steps", "training tokens", "last 50 steps, mean", "CPU time", "wall time", "bytes")
    plan = training["target"]["plan"]
    return [
        "## Training\n",
        _table(columns, rows),
        f"{training['threads']} threads, torch {training['torch']}; rows of {plan['short'][1]} and {plan['long'][1]} "
        f"tokens; the drafts learnt from {text.count(training['outputs'])} answers of the target.\n",
    ]


def _correct(run: Run) -> int:
    return sum(score_bit(s, STRICT) for s in run.samples)


def _scores(found: Measured) -> list[str]:
    base = {s.doc_id: score_bit(s, STRICT) for s in found.plain.samples}
    plain_text = {s.doc_id: s.text for s in found.plain.samples}
    rows = []
    named = [("K=0, float32 (the baseline)", found.plain)]
    named += [(f"K={k}, float32", run) for k, run in found.drafted.items()]
    named += [(f"K=7, {quant}", run) for quant, run in found.quant.items()]
    named += [("K=7, float32, 5 shots", found.few_shot)]
    for name, run in named:
        pairs = [(score_bit(s, STRICT), base[s.doc_id]) for s in run.samples]
        lost, gained = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        same = sum(s.text == plain_text[s.doc_id] for s in run.samples)
        gate = "other prompts" if run is found.few_shot else judge_run(run).verdict.outcome.value
        rows.append([name, text.score(_correct(run), len(run.samples)), f"{lost} / {gained}", text.count(same),
                     gate, text.duration(run.seconds)])  # fmt: skip
    columns = ("cell", "strict-match", "lost / gained", "same text as K=0", "gate", "time")
    return ["## Score on the test split\n", _table(columns, rows)]


def _damaged(found: Measured) -> list[str]:
    """What the score says of an engine that gets a part of the architecture wrong."""
    rows = [["complete", text.score(_correct(found.plain), len(found.plain.samples))]]
    rows += [[name, text.score(_correct(run), len(run.samples))] for name, run in found.damaged.items()]
    words = (
        "## With a part of the architecture wrong, K=0, float32\n\nWhere the score hardly moves, it would not show.\n"
    )
    return [words, _table(("target", "strict-match"), rows)]


def _acceptance(found: Measured) -> list[str]:
    rows = []
    named = {"dspark, T=K": found.drafted, "dspark, T=block": found.block, "dspark-weak, T=K": found.weak}
    named |= {"eagle3": found.eagle3, "n-gram": found.ngram}
    named["dspark, T=K, temperature 1"] = {7: found.sampled}
    for name, runs in named.items():
        for k, run in runs.items():
            stats = summarize(run.samples, k)
            survival = " ".join(text.share(s) for s in stats.survival)
            rows.append([name, str(k), text.length(stats.accepted_length), _interval(stats), text.count(stats.steps),
                         survival, judge_run(run).verdict.outcome.value])  # fmt: skip
    columns = ("draft", "K", "accepted length", "95 % interval", "steps", "accept rate at 1..K", "gate")
    return ["## Accepted length, greedy unless a temperature is named, float32\n", _table(columns, rows)]


def _interval(stats: AcceptanceStats) -> str:
    return "-" if stats.interval is None else text.interval(stats.interval.low, stats.interval.high, 3)


def _calibration(found: Measured) -> list[str]:
    columns = ("kind", "position", "steps", "mean confidence", "accepted", "ECE, 10 bins")
    parts = [
        "## Confidence of the draft, K=7, float32\n",
        "The head learnt 1 - TV, the chance that a draft is kept when target and draft sample at temperature 1. A "
        "greedy target keeps a draft or not: where two wordings are about equally likely, that chance is high and the "
        "greedy outcome a coin's, so the greedy figures below are not what it was trained for.\n",
    ]
    for name, run in (("Temperature 1", found.sampled), ("Greedy", found.drafted[7])):
        rows = [
            [c.kind, str(c.position), text.count(c.steps), text.share(c.mean_confidence), text.share(c.rate),
             text.share(c.ece_10)]
            for c in summarize(run.samples, 7).calibration
        ]  # fmt: skip
        parts += [f"{name}:\n", _table(columns, rows)]
    return parts

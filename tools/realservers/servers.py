"""The servers: how each gets here and its command line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from tools.realservers.install import (
    ACCELERATE,
    APART,
    LLAMA,
    OPENAI,
    ROOT,
    VLLM,
    Skip,
    fetched,
    install_torch,
    library,
    name_of,
    requirements,
    run,
    uv,
)  # fmt: skip
from tools.realservers.start import Server, free_port

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def serve(name: str, *words: str) -> Server:
    """evalkit's own server, for the comparisons."""
    port = free_port()
    command = (sys.executable, "-m", "evalkit.cli", "serve", "--served-model-name", name, "--port", str(port),
               "--threads", "1", *words)  # fmt: skip
    return Server(label="evalkit serve", profile="openai", name=name, port=port, command=command, environment=QUIET)


def llama(folder: Path, gguf: Path, *, name: str, k: int, draft: Path | None = None, slots: int = 1) -> Server:
    """llama.cpp's server, from the wheel of xllamacpp."""
    program = ROOT / "tools" / "realservers" / "llama_server.py"
    port = free_port()
    words = [sys.executable, program, "--library", library(folder, "llama", alone=(LLAMA,)), "--model", gguf,
             "--name", name, "--port", port, "--k", k, "--slots", slots]  # fmt: skip
    words += ["--draft", draft] if draft else []
    label = f"llama.cpp ({LLAMA.replace('==', ' ')})"
    return Server(label=label, profile="llamacpp", name=name, port=port, command=tuple(map(str, words)),
                  environment=QUIET)  # fmt: skip


def transformers(folder: Path, model: Path) -> Server:
    """`transformers serve`; the model's name is its path. It has no speculation and no counters."""
    more = library(folder, "transformers", whole=(OPENAI,), alone=ACCELERATE)
    if importlib.util.find_spec("transformers.cli") is None:
        raise Skip("this transformers has no `serve`")
    from importlib import metadata

    port = free_port()
    words = (str(Path(sys.executable).with_name("transformers")), "serve", str(model), "--host", "127.0.0.1",
             "--port", str(port), "--dtype", "float32", "--device", "cpu")  # fmt: skip
    label = f"transformers serve ({metadata.version('transformers')})"
    return Server(label=label, profile="openai", name=str(model), port=port, command=words,
                  environment=QUIET | {"PYTHONPATH": str(more)})  # fmt: skip


VLLM_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1",
                 "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
VLLM_MODULE = "vllm.entrypoints.openai.api_server"
VLLM_LABEL = f"vLLM ({VLLM.replace('==', ' ')})"


def vllm_python(folder: Path) -> Path:
    """The Python of an environment with vLLM's CPU build, made where it is not there."""
    venv, stamp = folder / "vllm", folder / "vllm" / ".done"
    python = venv / "bin" / "python"
    if not stamp.exists():
        wheel = fetched(folder, VLLM)
        run(sys.executable, "-m", "venv", venv)
        needs = requirements(wheel)
        install_torch(python, next(n for n in needs if n.startswith("torch==")).split("+")[0], folder)
        install = (uv(folder), "pip", "install", "--quiet", "--python", python)  # pip took 7 minutes, uv 20 seconds
        run(*install, *(n for n in needs if name_of(n) not in APART))
        run(*install, "--no-deps", wheel)
        stamp.touch()
    return python


def vllm(folder: Path, model: Path, *, name: str, k: int) -> Server:
    """vLLM with n-gram speculation, telling the steps of each request."""
    port = free_port()
    speculation = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    words = [vllm_python(folder), "-m", VLLM_MODULE, "--model", model, "--served-model-name", name,
             "--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--max-model-len", 2048, "--max-num-seqs", 4,
             "--enforce-eager", "--speculative-config", json.dumps(speculation),
             "--per-request-spec-decode-metrics", "detailed"]  # fmt: skip
    return Server(label=VLLM_LABEL, profile="vllm", name=name, port=port, command=tuple(map(str, words)),
                  environment=QUIET | VLLM_SETTINGS)  # fmt: skip

"""Where a run comes from (provenance) and what it may be compared with (fingerprint).

Standard library only: versions are read from package metadata, so nothing heavy is imported.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from evalkit import online_quant
from evalkit.checkpoint import TOKENIZER_FILES, checkpoint_hash, sha256_files
from evalkit.config import ROOT, Cell, resolve_task, task_names
from evalkit.fingerprint import ASKED, docs_sha, extra_facts, sha256_json, verify_facts
from evalkit.servers.identity import PROTOCOL, weights

PACKAGES = ("torch", "triton", "lm-eval", "transformers", "datasets", "tokenizers", "numpy", "scipy")
SERVER_ONLY = ("mode", "bos")  # of ASKED: facts that the engine in this process leaves to its tokenizer and template


def fingerprint(
    cell: Cell, *, settings: Mapping[str, str], task: Mapping[str, Any], doc_ids: Sequence[int]
) -> dict[str, Any]:
    """What must agree for two runs to be comparable, and `hash` over all of it.

    `settings` is what the backend made of "auto"; `task` is what the harness says of the task. Batch size,
    threads and the prefix cache are left out: they must not change a sample.
    """
    engine = cell.engine
    out: dict[str, Any] = {
        **_weights(cell),
        "k": engine.k,
        "draft_width": engine.draft_width,
        **verify_facts(asdict(engine)),
        "quant": engine.quant,
        "dtype": settings.get("dtype", engine.dtype),
        "device": settings.get("device", engine.device),
        **{
            name: settings.get(name, default)
            for name, default in ASKED.items()
            if name not in SERVER_ONLY or name in settings
        },
        "temperature": cell.temperature,
        "top_p": cell.top_p,
        "top_k": cell.top_k,
        "seed": cell.seed,
        **task,
        "docs_sha": docs_sha(doc_ids),
    }
    if engine.tp > 1:  # sums are then taken in another order
        out["tp"] = engine.tp
    if online := online_quant.canonical(engine.online_quant_config):
        out[online_quant.FIELD] = online
    if cell.server is not None:
        out |= {name: settings[name] for name in PROTOCOL if name in settings} | extra_facts(cell.to_json())
    return out | {"hash": sha256_json(out)}


def _weights(cell: Cell) -> dict[str, str]:
    engine = cell.engine
    if cell.server is not None:
        return weights(cell)
    return {
        "target_sha": checkpoint_hash(engine.model),
        "tokenizer_sha": checkpoint_hash(engine.model, TOKENIZER_FILES),
        "draft_sha": checkpoint_hash(engine.draft_path) if engine.draft_path is not None else engine.draft,
        "draft_method": engine.draft,
    }


def extend(found: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A fingerprint with further facts that must agree, hashed anew."""
    out = {name: value for name, value in found.items() if name != "hash"} | more
    return out | {"hash": sha256_json(out)}


def collect(cell: Cell, *, settings: Mapping[str, str], files: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what a run is made: commit, versions, machine, files, time."""
    engine = cell.engine
    return {
        "git": git_state(ROOT),
        "code": code_hash(),
        "versions": versions(),
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": engine.threads,
        **({"server": {**cell.server.to_json(), "version": settings.get("server_version")}} if cell.server else {}),
        "device": settings.get("device_name", settings.get("device", engine.device)),
        "platform": platform.platform(),
        **({"driver": driver} if (driver := gpu_driver()) else {}),
        "image": settings.get("image", ""),
        **({"task_path": str(resolve_task(cell.task))} if cell.task not in task_names() else {}),
        "target_path": str(engine.model),
        "draft_path": str(engine.draft_path or ""),
        "data": dict(files),
        "started": now(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of python and of the packages that can change a result; "" where one is absent."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and dirty flag of a checkout; empty commit where there is no git or no commit."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit or "", "dirty": bool(status) if status is not None else None}


def _git(folder: Path, *args: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_hash() -> str:
    """sha256 of the engine's own source: samples of two engines are never put into one run."""
    files = (p for p in (ROOT / "engine").rglob("*.py") if "training" not in p.parts)
    return sha256_files(files, ROOT)


DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def gpu_driver(files: Sequence[Path] = DRIVERS) -> str:
    """The version of the GPU's kernel driver as it says it itself; "" where there is none, or where an amdgpu that came
    with the kernel has none of its own (`platform` then tells it)."""
    for file in files:
        try:
            line = file.read_text(encoding="utf-8", errors="replace").splitlines()[0]
        except (OSError, IndexError):
            continue
        return " ".join(f"{file.parent.name} {line}".split())
    return ""


def cpu_name() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

"""The stored runs of a folder for `evalkit list`: what is readable, and why the rest is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.records import Run
from evalkit.runfile import RUN_FILE, load_run

SAME = ("task", "target", "draft", "k", "quant")  # what two runs of one setting share, as a reader sees them
LAYOUT = (("batch", "max_batch"), ("TP", "tp"), ("concurrency", "concurrency"))  # word, key of the cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Readable runs, oldest first, each under its folder's name; what is wrong with any folder, a sentence each."""

    runs: tuple[Run, ...]
    wrong: tuple[str, ...] = ()


def stored_runs(root: Path) -> Stored:
    """Every run below `root`. A folder that holds none that can be read takes no other down.

    Raises EvalkitError where `root` is a file, or can't be looked into."""
    runs, wrong = [], []
    ids: Counter[str] = Counter()
    for folder in _folders(root):
        try:
            run = load_run(folder)
        except EvalkitError as e:
            wrong.append(f"{folder}: {e.what}")
            continue
        except OSError as e:
            wrong.append(f"{folder}: it cannot be read ({e.strerror})")
            continue
        ids[run.id] += 1
        if run.id != folder.name:
            wrong.append(f"{folder}: it holds run {run.id}, and was copied or renamed: give the folder's name")
        runs.append(replace(run, id=folder.name))
    for name, count in ids.items():
        if count > 1:
            wrong.append(f"{root}: {count} folders hold run {name}")
    return Stored(runs=tuple(sorted(runs, key=_age)), wrong=tuple(wrong))


def layouts(runs: Sequence[Run]) -> list[str]:
    """What tells a run from others of the same setting: batch, TP and concurrency, where they differ; else ""."""
    told = [(tuple(str(run.cell.get(key)) for key in SAME), layout_of(run.cell)) for run in runs]
    kinds: dict[Any, dict[str, set[str]]] = {}
    for same, own in told:
        for word, _ in LAYOUT:
            kinds.setdefault(same, {}).setdefault(word, set()).add(own.get(word, "1" if word == "TP" else ""))
    return [" ".join(f"{word}={value}" for word, value in own.items() if len(kinds[same][word]) > 1)
            for same, own in told]  # fmt: skip


def layout_of(cell: Mapping[str, Any]) -> dict[str, str]:
    """How many sequences, ranks and requests at a time a run had, as far as its cell says it."""
    server = cell.get("server")
    own = {**cell, **({"concurrency": server.get("concurrency")} if isinstance(server, Mapping) else {})}
    if isinstance(server, Mapping):
        own.pop("max_batch", None)  # the built-in engine's
        own["tp"] = server.get("tp", own.get("tp"))
    return {word: str(own[key]) for word, key in LAYOUT if own.get(key) is not None}


def _age(run: Run) -> tuple[str, str]:
    return str(run.provenance.get("started", "")), run.id


def _folders(root: Path) -> list[Path]:
    fix = "give the folder of stored runs with --runs-dir"
    if root.exists() and not root.is_dir():
        raise EvalkitError(f"{root} is a file, expected a folder of runs", fix)
    try:
        return sorted(p for p in root.iterdir() if p.is_dir() and (p / RUN_FILE).exists()) if root.exists() else []
    except OSError as e:
        raise EvalkitError(f"{root} cannot be read ({e.strerror})", fix) from None

"""Where a specification's words lead: files beside it, stored runs by id, folder, glob or setting."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from evalkit.checkpoint import checkpoint_hash
from evalkit.config import ROOT, Cell
from evalkit.errors import EvalkitError
from evalkit.fingerprint import verify_facts
from evalkit.online_quant import FIELD, asked, canonical
from evalkit.provenance import code_hash
from evalkit.runfile import RUN_FILE, find_run, read_head

ASKED = ("target", "draft", "k", "quant", "draft_width", "temperature", "top_p", "top_k", "seed", "limit", "data")


def find_file(word: str, folder: Path, what: str) -> Path:
    """A file named by a specification: from where one stands, beside the specification, or in the checkout."""
    tried = [Path(word), folder / word, ROOT / word]
    for path in tried:
        if path.is_file():
            return path
    raise EvalkitError(f"no {what} {word!r}", f"give a path from the specification's folder ({folder}) or the checkout")


def find_word(word: str, root: Path) -> Path | None:
    """The folder of a stored run: by path, id or a glob of ids; of several the newest. None where there is none."""
    found = find_words(word, root)
    return found[-1] if found else None


def find_words(word: str, root: Path) -> list[Path]:
    """Every stored run that a path, id or glob of ids names, oldest first."""
    try:
        return [find_run(word, root)]
    except EvalkitError:
        return _by_time([(path, head) for path, head in heads(root) if fnmatch(path.name, word)])


def find_setting(cell: Cell, root: Path, *, batch: bool = False) -> Path | None:
    """The newest stored run of exactly this setting, complete, by the engine, weights and data of now. The batch, which
    must change no sample, is the same only where `batch` asks for it."""
    found = [(p, h) for p, h in _of_setting(cell, root) if _same_things(cell, h)]
    if batch:
        found = [(p, h) for p, h in found if h["cell"].get("max_batch") == cell.engine.max_batch]
    return _by_time(found)[-1] if found else None


def find_settings(cell: Cell, root: Path) -> list[Path]:
    """Every complete stored run of this setting, oldest first, by whatever engine, weights and data."""
    return _by_time(_of_setting(cell, root))


def _of_setting(cell: Cell, root: Path) -> list[tuple[Path, dict[str, Any]]]:
    wanted = cell.to_json()
    whole = [(path, head) for path, head in heads(root) if head["complete"] and not head.get("stopped")]
    return [(p, h) for p, h in whole if _same_setting(wanted, h)]


def _by_time(found: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[Path]:
    return [path for _, path in sorted((str(head["provenance"].get("started", "")), path) for path, head in found)]


def heads(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """run.json of every readable run; one of another version is no candidate."""
    out = []
    for file in sorted(root.glob(f"*/{RUN_FILE}")):
        try:
            out.append((file.parent, read_head(file.parent)))
        except EvalkitError:
            continue
    return out


def _same_setting(wanted: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    cell = head["cell"]
    if verify_facts(cell) != verify_facts(wanted) or "server" in cell:  # a setting is the built-in engine's
        return False
    if cell.get("tp", 1) != wanted["tp"]:  # 1 is what a run is that was stored before it could say
        return False
    if canonical(wanted[FIELD]) not in (canonical(cell.get(FIELD)), asked(cell, head["provenance"])):
        return False
    names = [*ASKED, *(["shots"] if wanted["shots"] is not None else [])]
    task = str(wanted["task"])
    return all(cell.get(name) == wanted[name] for name in names) and cell.get("task") in (task, Path(task).stem)


def _same_things(cell: Cell, head: Mapping[str, Any]) -> bool:
    told, made, engine = head["fingerprint"], head["provenance"], cell.engine
    draft = _hash(engine.draft_path) if engine.draft_path is not None else engine.draft
    same = told.get("target_sha") == _hash(engine.model) and told.get("draft_sha") == draft
    return same and made.get("code") == _code() and all(_unchanged(file) for file in made.get("data", {}).values())


def _unchanged(file: Mapping[str, Any]) -> bool:
    path = Path(str(file.get("path", "")))
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.get("sha256")


@cache
def _hash(folder: Path) -> str:
    return checkpoint_hash(folder)


@cache
def _code() -> str:
    return code_hash()

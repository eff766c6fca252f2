"""Which of the drafts that this project ships a run had: told by method and weights, never by a folder's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.checkpoint import checkpoint_hash
from evalkit.config import DRAFTS
from evalkit.errors import EvalkitError

TAIL = 3  # parts of a shipped draft's path: engine/reference/draft, wherever the checkout lies


def shipped_draft(method: Any, sha: Any) -> str:
    """The shipped draft of this method and sha256 of its files, by its name; "" where it is none of them."""
    for name, spec in DRAFTS.items():
        if spec.method == method and sha == (spec.method if spec.path is None else _hash(spec.path)):
            return name
    return ""


def named_draft(cell: Mapping[str, Any]) -> bool:
    """Whether a cell's draft was asked for by a shipped name: then that name on a command line makes the run again.
    A folder may be called like one (`--draft /tmp/ngram`)."""
    spec = DRAFTS.get(str(cell.get("draft")))
    if spec is None or cell.get("draft_method", spec.method) not in (spec.method, "external"):
        return False
    path = cell.get("draft_path")
    if "draft_path" not in cell or not path or spec.path is None:
        return not path
    return Path(str(path)).parts[-TAIL:] == spec.path.parts[-TAIL:]


def draft_fault(cell: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """In what the draft of a cell is not that of its fingerprint, or is called what its folder is not; "" where in
    nothing. A server's method is in its fingerprint alone."""
    name, path, method = cell.get("draft"), cell.get("draft_path"), cell.get("draft_method", "external")
    if method != "external" and "draft_method" in told and method != told["draft_method"]:
        return f"draft_method is {method!r} in its cell and {told['draft_method']!r} in its fingerprint"
    if "server" in cell or "draft_path" not in cell or method == "external":
        return ""
    if not path and name != method:
        return f"draft is {name!r} in its cell, without a folder, and draft_method {method!r}"
    if path and name != Path(str(path)).name and not named_draft(cell):
        return f"draft is {name!r} in its cell, and its folder {Path(str(path)).name!r}"
    sha = told.get("draft_sha", method)
    if not path and sha != method:
        return f"draft_sha is {sha!r} in its fingerprint, and its cell has no draft with weights"
    return "draft_sha says no weights, and its cell a draft's folder" if path and sha == method else ""


def _hash(folder: Path) -> str:
    try:
        return checkpoint_hash(folder)
    except EvalkitError:  # a checkout without its drafts
        return ""

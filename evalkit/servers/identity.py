"""What is known of the weights behind a server: a folder's hash, a revision that was named, or only a name.

A name alone is no identity: the same name may be served with other weights tomorrow. It is marked as such in the
fingerprint, so such runs pair only with each other, and the run's notes say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalkit.checkpoint import TOKENIZER_FILES, checkpoint_hash

if TYPE_CHECKING:
    from evalkit.config import Cell

PROTOCOL = ("engine", "server_version", "asked_on", "thinking", "bos", "stops", "served_flags")


def weights(cell: Cell) -> dict[str, str]:
    """target_sha, tokenizer_sha, draft_sha and draft_method of a cell that a server runs."""
    spec = cell.server
    assert spec is not None
    folder = cell.engine.model
    if folder.is_dir():
        target = checkpoint_hash(folder)
        has = any((folder / name).exists() for name in TOKENIZER_FILES)
        tokenizer = checkpoint_hash(folder, TOKENIZER_FILES) if has else "unknown"
    else:
        known = f"{cell.engine.model}@{spec.revision}" if spec.revision else cell.target
        target = f"{'revision' if spec.revision else 'served'}:{known}"
        tokenizer = target
    path = cell.engine.draft_path if cell.k else None
    draft = checkpoint_hash(path) if path else "none" if not cell.k else f"served:{spec.draft_model or cell.draft}"
    method = spec.method if path else cell.draft
    return {"target_sha": target, "tokenizer_sha": tokenizer, "draft_sha": draft, "draft_method": method}


def notes(cell: Cell) -> list[str]:
    """What a reader must know of that identity."""
    spec = cell.server
    assert spec is not None
    if cell.engine.model.is_dir():
        if spec.base_url:
            return [f"the server's weights are taken to be those of {cell.engine.model.name}, as --model says"]
        return []
    if spec.revision:
        return []
    return ["the weights behind the server are known by name only; --model FOLDER or --revision would name them"]

"""The hash of a checkpoint's folder: which weights and which tokenizer a run had."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from evalkit.errors import EvalkitError

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def sha256_files(paths: Iterable[Path], base: Path) -> str:
    """One sha256 over files, their names (relative to `base`) and contents."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(base).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def checkpoint_hash(folder: Path, patterns: Iterable[str] = WEIGHT_FILES) -> str:
    """sha256 of a checkpoint's files. Raises EvalkitError where there is no checkpoint."""
    if not folder.is_dir():
        raise EvalkitError(f"the checkpoint folder {folder} does not exist", "give the folder of a checkpoint")
    files = [p for pattern in patterns for p in folder.glob(pattern)]
    if not files:
        raise EvalkitError(f"{folder} has none of {', '.join(patterns)}", "give the folder of a whole checkpoint")
    try:
        return sha256_files(files, folder)
    except OSError as e:
        raise EvalkitError(f"{e.filename} cannot be read ({e.strerror})", "restore the checkpoint") from None

"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from evalkit.errors import EvalkitError


def write_text(path: Path, text: str) -> Path:
    """Writes a UTF-8 file whole or not at all; makes its folder. Raises EvalkitError where that can't be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as e:
        raise EvalkitError(f"cannot write {path} ({e.strerror})",
                           "free some space, or give a file in a writable folder") from None  # fmt: skip
    return path


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and safe on disk."""
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_all(fd: int, data: bytes) -> None:
    """All of the bytes, however many the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

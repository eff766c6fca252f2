"""A file is written whole, or the old one stays and the user is told in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evalkit.errors import EvalkitError
from evalkit.files import write_text


def test_a_file_is_written_with_its_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    assert write_text(path, "ä\n") == path and path.read_bytes() == "ä\n".encode()
    assert write_text(path, "b").read_text() == "b" and list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "a.txt", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EvalkitError, match=r"cannot write .*a\.txt \(No space left on device\); fix: free some space"):
        write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_where_a_folder_must_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EvalkitError, match=r"cannot write .*file"):
        write_text(tmp_path / "file" / "a.txt", "x")

"""A checkpoint's hash is over names and contents, and there is none without a checkpoint."""

import pytest

from evalkit.checkpoint import checkpoint_hash, sha256_files
from evalkit.errors import EvalkitError


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(EvalkitError, match="does not exist"):
        checkpoint_hash(tmp_path / "nowhere")
    with pytest.raises(EvalkitError, match="none of"):
        checkpoint_hash(tmp_path)


def test_a_name_moved_into_a_content_is_another_hash(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    for folder, names in ((one, ("ab", "c")), (two, ("a", "bc"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("")
    assert sha256_files(one.iterdir(), one) != sha256_files(two.iterdir(), two)

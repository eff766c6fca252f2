"""What stands before a prompt. The rest of the tokenizer is tested through LLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.processors import TemplateProcessing

from engine import LLM, EngineConfig
from engine.errors import EngineError
from engine.tokenizer import Tokenizer
from tests.engine.tiny import EOS, Tiny

BOS = 0  # <pad> of the tiny vocabulary


def folder(tiny: Tiny, tmp_path: Path, template: str, **config: Any) -> Path:
    inner = HfTokenizer.from_file(str(tiny.target / "tokenizer.json"))
    if template:
        inner.post_processor = TemplateProcessing(single=template, special_tokens=[("<pad>", BOS), ("<eos>", EOS)])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("template", "config", "bos"),
    [
        ("", {}, []),
        ("$A", {"bos_token": "<pad>"}, []),
        ("<pad> $A", {}, [BOS]),
        ("<pad> $A <eos>", {"add_bos_token": True}, [BOS]),  # a prompt is continued, so it gets no end
        ("$A <eos>", {}, []),
        ("<pad> $A", {"add_bos_token": False}, []),
        ("", {"add_bos_token": True, "bos_token": {"content": "<pad>"}}, [BOS]),
    ],
)
def test_bos_is_what_the_checkpoint_says(
    tiny: Tiny, tmp_path: Path, template: str, config: dict[str, Any], bos: list[int]
) -> None:
    tok = Tokenizer(folder(tiny, tmp_path, template, **config))
    plain = Tokenizer(tiny.target).encode(["abc", ""])
    assert tok.bos == bos
    assert tok.encode(["abc", ""]) == [bos + ids for ids in plain]
    assert tok.encode(["abc"], bos=False) == plain[:1]
    assert tok.encode(["<pad>abc"]) == Tokenizer(tiny.target).encode(["<pad>abc"])  # written out: not twice


def test_a_tokenizer_with_ids_that_the_target_lacks_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.target, tmp_path / "target")
    inner = HfTokenizer.from_file(str(tiny.target / "tokenizer.json"))
    inner.add_tokens(["more"])
    inner.save(str(tmp_path / "target" / "tokenizer.json"))
    with pytest.raises(EngineError, match=r"tokenizer.json has the id 63 \('more'\), config.json a vocabulary of 63;"):
        LLM(EngineConfig(model=tmp_path / "target", device="cpu", threads=1))


def test_add_bos_token_is_true_or_false(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match='add_bos_token as "yes"; fix: give true or false'):
        Tokenizer(folder(tiny, tmp_path, "", add_bos_token="yes"))


def test_a_bos_that_is_no_token_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="bos_token '<s>' is in no vocabulary"):
        Tokenizer(folder(tiny, tmp_path, "", add_bos_token=True, bos_token="<s>"))

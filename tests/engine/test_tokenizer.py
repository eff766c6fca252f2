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
from engine.api import Request, SamplingParams
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


def test_tokens_beyond_the_target_s_vocabulary_are_refused_only_in_a_prompt(tiny: Tiny, tmp_path: Path) -> None:
    """Qwen's and MiniMax's tokenizers have tokens that their models never see; transformers loads them as well."""
    shutil.copytree(tiny.target, tmp_path / "target")
    inner = HfTokenizer.from_file(str(tiny.target / "tokenizer.json"))
    inner.add_tokens(["more", "and more"])
    inner.save(str(tmp_path / "target" / "tokenizer.json"))
    plain, llm = (LLM(EngineConfig(model=m, device="cpu", threads=1)) for m in (tiny.target, tmp_path / "target"))
    params = SamplingParams(max_tokens=4)
    asked, bad = (Request(id=n, prompt=t, params=params) for n, t in (("a", "abc"), ("b", "one more")))
    assert llm.generate([asked])[0].token_ids == plain.generate([asked])[0].token_ids
    assert plain.notes == () and llm.notes == (
        "2 tokens of tokenizer.json, 'more' the first, have no row in the target's vocabulary of 63: a prompt with one "
        "is refused",
    )  # fmt: skip
    with pytest.raises(EngineError, match=r"request b: .* the id 63 \('more'\), the vocabulary has 0 to 62; fix: use "
                                          "the model's own tokenizer, or leave 'more' out$"):  # fmt: skip
        llm.generate([asked, bad])
    with pytest.raises(EngineError, match=r"the id 1099511627776, the vocabulary"):
        llm.generate([Request(id="c", prompt=(2**40,))])
    assert llm.generate([asked])[0].text, "refused before any request ran, and ready for the next"


def test_add_bos_token_is_true_or_false(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match='add_bos_token as "yes"; fix: give true or false'):
        Tokenizer(folder(tiny, tmp_path, "", add_bos_token="yes"))


def test_a_bos_that_is_no_token_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="bos_token '<s>' is in no vocabulary"):
        Tokenizer(folder(tiny, tmp_path, "", add_bos_token=True, bos_token="<s>"))

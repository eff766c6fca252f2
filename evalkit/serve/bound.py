"""The fewest tokens that a text can have, by its length alone: what is far too long is refused before any work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

NFC_SHRINK = 4  # code points that NFC may join into one: no canonical decomposition has more (Unicode FAQ)


def longest_token(folder: Path) -> int:
    """`reach` of a model folder's tokenizer.json, which the engine has read before."""
    return reach(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))


def reach(tokenizer: Mapping[str, Any]) -> int:
    """The most characters that one token can stand for, so that a text has at least len(text) / reach tokens.

    `tokenizer` is the content of a tokenizer.json. 0 where no such number is certain: a normaliser or a pre-tokenizer
    that may drop text, a vocabulary that lacks a byte, added tokens that take spaces with them.
    """
    model, added = tokenizer.get("model") or {}, tokenizer.get("added_tokens") or []
    vocab, shrink = model.get("vocab") or {}, _shrink(tokenizer.get("normalizer"))
    steps = list(_steps(tokenizer.get("pre_tokenizer")))
    drops = [s for s in steps if s["type"] not in ("ByteLevel", "Digits", "Split") or s.get("behavior") == "Removed"]
    whole = model.get("type") == "BPE" and any(s["type"] == "ByteLevel" for s in steps)
    whole = whole and all(byte in vocab for byte in ByteLevel.alphabet())  # BPE drops what it does not know
    if not whole or not shrink or drops or any(t.get("lstrip") or t.get("rstrip") for t in added):
        return 0
    return shrink * max(len(t) for t in (*vocab, *(t["content"] for t in added)))


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The pre-tokenizers of a sequence, one by one."""
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] == "Sequence":
        for one in pre_tokenizer["pretokenizers"]:
            yield from _steps(one)
    else:
        yield pre_tokenizer


def _shrink(normalizer: Mapping[str, Any] | None) -> int:
    """By how much a normaliser may shorten a text; 0 where nobody knows."""
    if normalizer is None:
        return 1
    return NFC_SHRINK if normalizer["type"] == "NFC" else 0

"""A document ready to be asked, what was found in an answer, and the hash of both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One document, ready to be asked. `doc_hash` and `prompt_hash` are lm-eval's."""

    doc_id: int
    doc_hash: str
    prompt_hash: str
    text: str
    question: str
    gold: str
    category: str = ""  # the row's `category` or `template`, where it has one
    item: str = ""  # hash of what the templates take from the document ...
    shots: tuple[str, ...] = ()  # ... and the same of each few-shot example in `text`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What each filter found in a text, and whether that was right."""

    scores: Mapping[str, float]
    extracted: Mapping[str, str]


def sha256_of(*parts: str | bytes) -> str:
    """sha256 of one text, as lm-eval has it; several are told apart by their lengths."""
    if len(parts) == 1:
        part = parts[0]
        return hashlib.sha256(part.encode() if isinstance(part, str) else part).hexdigest()
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()

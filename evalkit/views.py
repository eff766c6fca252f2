"""strict-match and flexible-extract as lm-eval computes them, character for character, without lm-eval.

lm-eval's regex filter takes one of all matches, its exact_match removes four patterns from both sides and compares
lower-cased text, through numpy arrays of fixed width. A test holds these twins to lm-eval's own filters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

STRICT, FLEXIBLE = "strict-match", "flexible-extract"
INVALID = "[invalid]"  # what lm-eval's filter says when nothing matches
Pick = Literal["first", "last"]

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(re.compile(p) for p in (",", r"\$", r"(?s).*#### ", r"\.$"))


@dataclass(frozen=True, slots=True)
class View:
    """What one reading of a text found, and whether it is the gold answer."""

    extracted: str
    correct: bool


def strict_view(text: str, gold: str, pick: Pick = "first") -> View:
    """`#### N`: the first one (tasks gsm8k, gradeschool) or the last (gsm8k_inferencex)."""
    if pick == "first":
        match = _STRICT.search(text)
        found = match[1] if match else INVALID
    else:
        matches = _STRICT.findall(text)
        found = matches[-1] if matches else INVALID
    return View(found, normalise(found) == normalise(gold))


def flexible_view(text: str, gold: str) -> View:
    """The last thing that looks like a number; a lone comma or a pair of dots does, too."""
    matches = _FLEXIBLE.findall(text)
    found = next(part for part in matches[-1] if part) if matches else INVALID
    return View(found, normalise(found) == normalise(gold))


def normalise(text: str) -> str:
    """A side of lm-eval's exact_match, as gsm8k asks for it. numpy drops NULs at the end and keeps the width."""
    for pattern in _IGNORED:
        text = pattern.sub("", text).rstrip("\0")
    return text.lower()[: len(text)].rstrip("\0")

"""Finds the answer in a text: thinking removed, run-on cut, then marker, box, phrase or last number.

Steps 1 to 4 of the rule in `scoring.py`, where the reasons stand. Standard library only.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from evalkit.numbers import Number, last_number, scan, whole_text

_TAG = r"(?:think|thinking|thought|reasoning)"
_OPEN, _CLOSE = re.compile(rf"<{_TAG}>", re.IGNORECASE), re.compile(rf"</{_TAG}>", re.IGNORECASE)
_CLOSED = re.compile(rf"<{_TAG}>.*?</{_TAG}>", re.IGNORECASE | re.DOTALL)
_NEXT = re.compile(r"^[ \t>*_]*(?:Question|Q)[ \t]*\d*[ \t*_]*:|<\|im_start\|>|^(?:Human|User):", re.MULTILINE)
_MARKER = re.compile(r"#{4,}")
_BOXED = re.compile(r"\\f?boxed\s*\{")
_PHRASE = re.compile(r"\banswer(?:[ \t]+is\b[ \t*_:]*|[ \t*_]*[:=][ \t*_]*)", re.IGNORECASE)
_QUIET = re.compile(r"\\[a-zA-Z]+|US\$|USD|EUR|GBP|Rs")  # letters that are no words
_ANSWER_WORD = re.compile(r"answer|result|total|final|\bis\b|therefore|\bso\b|thus|equals?|=", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """A text without its thinking. `unclosed` thinking never came to an end."""

    text: str
    thinking: bool = False
    unclosed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where an answer was looked for, and what was found there. `explicit`: the text says that it is the answer."""

    number: Number | None
    where: str  # marker | boxed | phrase | last number | nowhere
    end: int = 0  # of the answer, in the text that was read

    @property
    def explicit(self) -> bool:
        return self.where in ("marker", "boxed", "phrase")


def visible(text: str) -> Visible:
    """Removes thinking (step 1)."""
    if "<" not in text:
        return Visible(text=text)
    rest = _CLOSED.sub("", text)
    closes = list(_CLOSE.finditer(rest))
    if closes:
        rest = rest[closes[-1].end() :]
    opened = _OPEN.search(rest)
    if opened:
        return Visible(text=rest[: opened.start()], thinking=True, unclosed=True)
    return Visible(text=rest, thinking=len(rest) != len(text))


def cut_run_on(text: str) -> str:
    """The text up to where the model goes on with a question of its own (step 2)."""
    starts = [m.start() for m in islice(_NEXT.finditer(text), 50)]
    if not starts:
        return text
    for start in starts:
        if read(text[:start]).explicit:
            return text[:start]
    if read(text).explicit:  # the answer comes after it: the question was restated
        return text
    return next((text[:start] for start in starts if last_number(text[:start])), text)


def read(text: str) -> Reading:
    """Finds the answer of a visible text (step 3)."""
    for marker in _last(_MARKER, text):
        line, end = _line(text, marker.end())
        number, heading = _field(line, marker=True)
        if not heading:
            return Reading(number=number, where="marker", end=end if number is None else marker.end() + number.end)
    for where, pattern in (("boxed", _BOXED), ("phrase", _PHRASE)):
        for found in _last(pattern, text):
            line, end = _inside(text, found.end()) if where == "boxed" else _line(text, found.end())
            number, _ = _field(line)
            if number is not None:
                return Reading(number=number, where=where, end=end)
    number = last_number(text)
    return Reading(number=number, where="last number" if number else "nowhere", end=number.end if number else 0)


def _last(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The last matches, last first. A text with more of them is a loop; looking at all would take minutes."""
    return reversed(deque(pattern.finditer(text), maxlen=20))


def _line(text: str, start: int) -> tuple[str, int]:
    """The rest of the line, or the next line with something in it where the rest is bare."""
    end = start
    while end < len(text):
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        if text[end:stop].strip(" \t\r*_:#`"):
            return text[start:stop], stop
        end = stop + 1
    return text[start:], len(text)


def _inside(text: str, start: int) -> tuple[str, int]:
    """What stands in braces, nested ones included."""
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start:i], i
    return text[start:], len(text)


def _field(line: str, *, marker: bool = False) -> tuple[Number | None, bool]:
    """The number of an answer's own line (step 4), and whether the line is a heading instead."""
    found = list(scan(line, field=True))
    numbers = [n for n in found if n is not None]
    before = line[: numbers[0].start] if numbers else line
    words = re.search(r"[A-Za-z]", _QUIET.sub("", before))
    if words:
        if marker and not _ANSWER_WORD.search(before):
            return None, True
        return _side(line) or (numbers[-1] if numbers and not marker else next(iter(numbers), None)), False
    if not found or found[0] is None:
        return None, False
    equation = "=" in line and not re.search(r"[A-Za-z]{2}|[,;](?!\d)", _QUIET.sub("", line[: line.find("=")]))
    return (_side(line) if equation else None) or found[0], False


def _side(line: str) -> Number | None:
    """The side of an equation that is one number, the right one first."""
    if "=" not in line:
        return None
    cut = line.rfind("=") + 1
    for side, offset in ((line[cut:], cut), (line[: line.find("=")], 0)):
        found = list(scan(side, field=True))
        if len(found) == 1 and found[0] is not None:
            return replace(found[0], start=found[0].start + offset, end=found[0].end + offset)
    return None


@lru_cache(maxsize=4096)
def gold_number(gold: str) -> Number | None:
    """The gold answer's number: after its last `####`, or the whole of a text without one. None if there is none."""
    cut = gold.rfind("####")
    return whole_text(gold if cut < 0 else gold[cut:].lstrip("#"))

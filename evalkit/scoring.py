"""The canonical score: one written rule that reads an answer as a careful person would. Standard library only.

lm-eval's strict-match and flexible-extract stay as they are (`views.py`, for comparison with published numbers); this
score stands beside them, tells what they missed and why, and says which samples have no answer to grade at all.

The rule, in this order, each step with its reason:

1. Thinking is removed: `<think>...</think>`, and all before a lone `</think>` (the prompt had opened it). Hidden
   reasoning is never graded, it may hold numbers that were given up again (C15). Thinking that never ends leaves what
   stood before it; if that is nothing, the sample is "reasoning only".
2. A run-on is cut: once the text has an answer, a new line that starts with `Question:` (or `Q:`, or another turn of
   a chat) is the model going on with its own next question.
3. The answer is read from the last `####` (a model may recite worked examples first, C01); without one from the last
   `\\boxed{}`; without one from the last "answer is" or "Answer:"; without one from the last number in the text.
   A `####` that opens a heading ("#### Step 2: add") is no marker.
4. In a marker's line the number is the first one, or the side of an equation that is one number. Numbers are read by
   the rule in `numbers.py`; equality with the gold answer is exact.
5. A text without an answer is not wrong: it was truncated, cut by a stop, degenerate, or has no number (`Bucket`). A
   last number in running text does not count as an answer where the text was cut off: it may be any number.

The denominator is all requests. A request that failed is neither right nor wrong: `score_range` gives the score if all
of them were wrong and if all were right, and a gate uses the first (C84).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from evalkit.degenerate import degenerate
from evalkit.numbers import Number, equal, last_number, scan, whole_text
from evalkit.records import Bucket, CanonicalScore, Sample

_TAG = r"(?:think|thinking|thought|reasoning)"
_OPEN, _CLOSE = re.compile(rf"<{_TAG}>", re.IGNORECASE), re.compile(rf"</{_TAG}>", re.IGNORECASE)
_CLOSED = re.compile(rf"<{_TAG}>.*?</{_TAG}>", re.IGNORECASE | re.DOTALL)
_NEXT = re.compile(r"^[ \t>*_]*(?:Question|Q)[ \t]*\d*[ \t*_]*:|<\|im_start\|>|^(?:Human|User):", re.MULTILINE)
_MARKER = re.compile(r"#{4,}")
_BOXED = re.compile(r"\\f?boxed\s*\{")
_PHRASE = re.compile(r"\banswer(?:[ \t]+is\b[ \t*_:]*|[ \t*_]*[:=][ \t*_]*)", re.IGNORECASE)
_QUIET = re.compile(r"\\[a-zA-Z]+|US\$|USD|EUR|GBP|Rs")  # letters that are no words
_ANSWER_WORD = re.compile(r"answer|result|total|final|\bis\b|therefore|\bso\b|thus|equals?", re.IGNORECASE)
_TIMEOUT = re.compile(r"time[d]?[- ]?out", re.IGNORECASE)


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
    starts = [m.start() for m in _NEXT.finditer(text)]
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
    for marker in reversed(list(_MARKER.finditer(text))):
        line, end = _line(text, marker.end())
        number, heading = _field(line, marker=True)
        if not heading:
            return Reading(number=number, where="marker", end=end if number is None else marker.end() + number.end)
    for where, pattern in (("boxed", _BOXED), ("phrase", _PHRASE)):
        for found in reversed(list(pattern.finditer(text))):
            line, end = _inside(text, found.end()) if where == "boxed" else _line(text, found.end())
            number, _ = _field(line)
            if number is not None:
                return Reading(number=number, where=where, end=end)
    number = last_number(text)
    return Reading(number=number, where="last number" if number else "nowhere", end=number.end if number else 0)


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
    return _side(line) or found[0], False


def _side(line: str) -> Number | None:
    """The side of an equation that is one number, the right one first."""
    if "=" not in line:
        return None
    for side in (line[line.rfind("=") + 1 :], line[: line.find("=")]):
        found = list(scan(side, field=True))
        if len(found) == 1 and found[0] is not None:
            offset = line.rfind("=") + 1 if side is not line and line.endswith(side) else 0
            return replace(found[0], start=found[0].start + offset, end=found[0].end + offset)
    return None


@lru_cache(maxsize=4096)
def gold_number(gold: str) -> Number | None:
    """The gold answer's number: after its last `####`, or the whole of a text without one. None if there is none."""
    cut = gold.rfind("####")
    return whole_text(gold if cut < 0 else gold[cut:].lstrip("#"))


def canonical(
    text: str, gold: str, *, finish_reason: str = "", stop_hit: str = "", tokens: int = 1, token_ids: Sequence[int] = ()
) -> CanonicalScore:
    """Reads and grades one text. `tokens` 0 says that the engine emitted none; see the module for the rule."""
    if not text.strip():
        bucket = Bucket.EMPTY if tokens else Bucket.ZERO_TOKENS
        return CanonicalScore(bucket=bucket, reason=bucket.value)
    seen, capped = visible(text), finish_reason == "length"
    notes = ["thinking"] if seen.thinking else []
    if not seen.text.strip():
        bucket = Bucket.TRUNCATED_IN_THINKING if capped and seen.unclosed else Bucket.REASONING_ONLY
        return CanonicalScore(bucket=bucket, reason=bucket.value, notes=tuple(notes))
    body = cut_run_on(seen.text)
    notes += ["run-on"] if len(body) < len(seen.text) else []
    found, broken = read(body), degenerate(text, token_ids)
    notes += ["degenerate"] if broken else []
    whole = len(body) < len(seen.text) or bool(body[found.end :].strip(" \t*_`$}.")) or body.endswith("\n")
    if found.explicit and found.number is not None and (whole or not capped):
        bucket = Bucket.ANSWERED
    elif broken:
        bucket = Bucket.DEGENERATE
    elif capped and not found.explicit or capped and not whole:
        bucket = Bucket.TRUNCATED
    elif fired(stop_hit) and not found.explicit and "run-on" not in notes:
        bucket = Bucket.STOP_CUT
    else:
        bucket = Bucket.ANSWERED if found.number is not None else Bucket.NO_ANSWER
    number, target = found.number, gold_number(gold)
    graded = bucket is Bucket.ANSWERED and number is not None and target is not None
    if number is not None:
        notes += [*number.notes, *([number.kind] if number.kind in ("fraction", "exponent") else [])]
    return CanonicalScore(
        value=number.text if number else "",
        raw_span=number.raw if number else "",
        correct=equal(number, target) if graded and number and target else None,
        bucket=bucket,
        reason=broken if bucket is Bucket.DEGENERATE else found.where,
        notes=tuple(dict.fromkeys(notes)),
    )


def fired(stop_hit: str) -> bool:
    """Whether a stop was a string in the text; an end-of-turn token is an end, no cut."""
    return bool(stop_hit) and not stop_hit.isdigit() and not re.fullmatch(r"<[^<>\s]*>", stop_hit)


def bucket_of(sample: Sample) -> Bucket:
    """What became of a sample: as stored, else worked out from its text."""
    if sample.error:
        return Bucket.TIMEOUT if _TIMEOUT.search(sample.error) else Bucket.FAILED
    return (sample.canonical or score_sample(sample)).bucket


def score_sample(sample: Sample, token_ids: Sequence[int] = ()) -> CanonicalScore:
    """The canonical score of a sample, with the reason why lm-eval's readings disagree with it."""
    from evalkit.disagreement import disagreement

    if sample.error:
        return CanonicalScore(bucket=bucket_of(sample), reason="the request came to nothing")
    found = canonical(
        sample.text, sample.gold, finish_reason=sample.finish_reason, stop_hit=sample.stop_hit, tokens=sample.tokens,
        token_ids=token_ids,
    )  # fmt: skip
    return replace(found, disagreement=disagreement(sample, found))


def score_samples(samples: Sequence[Sample]) -> list[CanonicalScore]:
    """The canonical score of every sample: the stored one, or worked out now."""
    return [s.canonical or score_sample(s) for s in samples]

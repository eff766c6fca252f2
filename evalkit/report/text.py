"""Figures of a run and untrusted text as words, for the page, markdown and the terminal; numbers by evalkit.formats."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalkit import stats
from evalkit.formats import (
    count,
    counting,
    interval,
    length,
    percent,
    percent_interval,
    points,
    points_interval,
    share,
    signed,
    typeset,
)

__all__ = [
    "HEAVIEST", "Table", "clip", "count", "counted", "counting", "duration", "fair_limit", "inline", "interval",
    "length", "mean_score", "names", "percent", "percent_interval", "plain", "points", "points_interval", "score",
    "share", "signed", "speed", "spread", "typeset", "visible", "weight", "wilson",
]  # fmt: skip

# Shown as their code: control and bidirectional characters (they could reorder what a reader sees), and lone
# surrogates (they cannot be written as UTF-8).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is ready to print: every cell is text. `align` has one letter a column, l or r."""

    name: str
    caption: str
    columns: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]
    missing: str = ""  # said in place of a table without rows
    fine: bool = False  # that there are none is as it should be


_NAMES = {"verify": "verify rule", "k": "K", "top_p": "top-p", "top_k": "top-k", "bos": "BOS token",
          "mode": "thinking mode", "quant": "quant mode", "stop": "stop strings"}  # fmt: skip


def names(facts: Sequence[str], most: int = 0) -> str:
    """`target, task and verify rule`: facts of a setting in words; of more than `most` the rest are counted."""
    words = list(dict.fromkeys(_NAMES.get(f, f.removesuffix("_sha").replace("_", " ")) for f in facts))
    if most and len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def spread(error: float | None, decimals: int = 4) -> str:
    """` ± 0.0064`; nothing where there is no standard error."""
    return "" if error is None else f" ± {error:.{decimals}f}"


def score(correct: int, n: int) -> str:
    """`0.9431 ± 0.0064 (1244/1319)`: the share, its standard error and the counts. Of all right or all wrong the error
    is no 0 (C23): the interval is shown, `1.0000, 95 % 0.9971 .. 1.0000 (1319/1319)`."""
    if n == 0:
        return "no scored sample"
    if n > 1 and correct in (0, n):
        return f"{share(correct / n)}, 95 % {wilson(correct, n)} ({correct}/{n})"
    error = stats.proportion_se(correct, n)
    alone = " (one sample has no standard error)" if error is None else ""
    return f"{share(correct / n)}{spread(error)}{alone} ({correct}/{n})"


def mean_score(values: Sequence[float]) -> str:
    """The same of scores that need not be 0 or 1, spaced for a terminal: `0.9431 ± 0.0064  (1244/1319)`."""
    n, total = len(values), sum(values)
    square = sum((v - total / n) ** 2 for v in values)
    if values and total in (0, n) and set(values) <= {0, 1}:
        return f"{share(total / n)}, 95 % {wilson(int(total), n)}  ({total:g}/{n})"
    error = math.sqrt(square / (n - 1) / n) if square else None  # values that are all the same show no spread
    return f"{share(total / n)}{spread(error)}  ({total:g}/{n})"


def counted(counts: Mapping[str, int]) -> str:
    """`answered 1,318, truncated 1`: what is there at all."""
    return ", ".join(f"{name} {count(n)}" for name, n in counts.items() if n)


def speed(tokens: int, seconds: float, plain: bool = False) -> str:
    """`2629 tokens/s`; `plain` leaves the commas of 10,000 and more away, for a terminal."""
    value = round(tokens / seconds)
    return f"{value if plain else count(value)} tokens/s"


def wilson(correct: int, n: int) -> str:
    if n == 0:
        return "no scored sample"
    found = stats.wilson(correct, n)
    return interval(found.low, found.high)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plain(value: object) -> str:
    """A stored JSON value in words; what is not there is said, never blank or None."""
    if value is None or value == "":
        return "not recorded"
    if value in ([], (), {}):
        return "none"  # recorded, and empty
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inner(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(repr(item) if isinstance(item, str) else _inner(item) for item in value)
    return str(value)


def _inner(value: object) -> str:
    """A value inside of a recorded one: it was written down, so null is an answer."""
    return "absent" if value == "" else "none" if value is None else plain(value)


def visible(text: str) -> str:
    """Model output with every invisible or reordering character written as its code, `\\u202e`."""
    if text.isprintable():  # nearly every short text: nothing in it is of those
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


HEAVIEST = 6  # bytes of a character in the page at most: `&quot;`, `\\ud800`


def weight(text: str) -> int:
    """Bytes that a text takes in the page, escaped."""
    return len(html.escape(text).encode("utf-8", "backslashreplace"))


def clip(text: str, limit: int) -> str:
    """The text, or as much of it as takes `limit` bytes in the page, with a word on what was left out."""
    if len(text) * HEAVIEST <= limit or weight(text) <= limit:
        return text
    low, high = 0, min(len(text), limit)  # a character takes a byte or more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if weight(text[:middle]) <= limit else (low, middle - 1)
    return f"{text[:low]}\n[cut here: {count(low)} of {count(len(text))} characters shown; the stored run has all]"


def fair_limit(weights: Sequence[int], budget: int) -> int:
    """The largest limit a text such that all texts together stay within `budget` bytes."""
    left, waiting = budget, sorted(weights)
    for i, size in enumerate(waiting):
        each = left // (len(waiting) - i)
        if size > each:
            return each
        left -= size
    return max(weights, default=0)


_MARKDOWN = {
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`", "*": "\\*", "_": "\\_", "~": "\\~", "[": "\\[",
    "]": "\\]", "#": "&#35;", "@": "&#64;", "\n": " ",
}  # fmt: skip


def inline(words: str) -> str:
    """Text inside a markdown table cell: one line, nothing that markdown, HTML or a forge (links, issue numbers,
    mentions) would act on."""
    safe = "".join(_MARKDOWN.get(c, c) for c in words.replace("\\", "\\\\"))
    return visible(safe.replace("://", "&#58;//").replace("www.", "www&#46;"))

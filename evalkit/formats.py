"""Numbers as words, one rule a kind, for terminal, gate, markdown and page. Standard library only.

- A signed number has its sign in front, an ASCII hyphen for the minus, so that it can be grepped, pasted and reckoned
  with; what rounds to zero has none (never -0.0). The page alone shows the minus as U+2212 (`typeset`, at its edge).
- A share is a fraction of 1 with four decimals; a difference of scores is in points (pt) with one.
- A percentage stands before a blank and its sign: `99.8 %`; an interval is `low .. high`, its unit once, at the end.
- A count has no separator up to four digits, nor anywhere in a terminal; the page and markdown group longer ones with
  commas.
- Accepted lengths have three decimals, p-values two digits that count (evalkit.chances).
"""

from __future__ import annotations

import re

MINUS = "\u2212"
# A hyphen that is a minus: before a digit, behind a power's e or nothing that makes a name, a date or an option.
_HYPHEN = re.compile(r"(?<![\w.)\]#/:=+-])-(?=\d|\.\d)|(?<=\de)-(?=\d+(?!\w))")
# Whole numbers of five digits or more that stand alone: no part of a name, a hash, a fraction's decimals or a date.
_LONG = re.compile(r"(?<![\w.,/:#=+\u2212-])\d{5,}(?![\w/:-]|[.,]\d)")


def count(value: int) -> str:
    """`1319`, `53,507`."""
    return f"{value:,}" if abs(value) >= 10_000 else str(value)


def counting(value: int, word: str) -> str:
    """`1 sample`, `1319 samples`."""
    return f"{count(value)} {word}{'' if value == 1 else 's'}"


def share(value: float) -> str:
    """A fraction of 1 with four decimals."""
    return f"{value:.4f}"


def signed(value: float, decimals: int = 4) -> str:
    """`+0.0120`, `-0.0120`, `0.0000`."""
    words = f"{value:+.{decimals}f}"
    return words if float(words) else words[1:]


def points(fraction: float) -> str:
    """A difference of two shares in points: `-0.4 pt`."""
    return f"{signed(100 * fraction, 1)} pt"


def points_interval(low: float, high: float) -> str:
    """`-0.4 .. +0.2 pt`."""
    return f"{signed(100 * low, 1)} .. {signed(100 * high, 1)} pt"


def percent(part: float, whole: float = 1.0) -> str:
    """`99.8 %` with one decimal."""
    return f"{100 * part / whole:.1f} %" if whole else "of nothing"


def percent_interval(low: float, high: float) -> str:
    """`98.9 .. 100.5 %`."""
    return f"{100 * low:.1f} .. {100 * high:.1f} %"


def length(value: float | None) -> str:
    """Accepted length, in tokens a step."""
    return "no value" if value is None else f"{value:.3f}"


def interval(low: float, high: float, decimals: int = 4, plus: bool = False) -> str:
    if plus:
        return f"{signed(low, decimals)} .. {signed(high, decimals)}"
    return f"{low:.{decimals}f} .. {high:.{decimals}f}"


def typeset(words: str) -> str:
    """Our own words as the page shows them: U+2212 for every minus (a line never ends behind one, as it may behind a
    hyphen), commas in long counts. Not for what a model wrote, for names, commands or settings."""
    return _LONG.sub(lambda found: f"{int(found[0]):,}", _HYPHEN.sub(MINUS, words))

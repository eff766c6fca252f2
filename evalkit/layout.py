"""Text laid out for the window that it is read in: the one place that knows how wide it is and how lines are folded.

A width of 0 is no window (a pipe, a file): nothing is folded there, so that every line can be grepped and cut. A line
is only ever broken between words, and never inside of a number with its error, its interval or its unit; a word wider
than the window (a run's id, a path) stays whole. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO

GAP = 2  # blanks between columns of a table
NAME_GAP = 3  # between a name and its value
LEAST = 24  # columns that a folded text needs: a narrower window takes a smaller indent
UNKNOWN = 80  # columns of a terminal that does not tell
JOINTS = (" ± ", " .. ", " %", " pt")
_P = re.compile(r"\bp (?=[<\d])")
_GLUE = "\ue000"  # of no alphabet: stands for a blank that is never a line's end


def window(stream: IO[str] | None = None) -> int:
    """Columns of the terminal behind `stream` (default: standard output), COLUMNS before what it says itself; 0 where
    it is none."""
    stream = sys.stdout if stream is None else stream
    if stream is None or stream.closed or not stream.isatty():
        return 0
    try:
        size = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a terminal only in name
        size = 0
    return max(LEAST, shutil.get_terminal_size((size or UNKNOWN, 24)).columns)


def joined(words: str, glue: str = "\u00a0") -> str:
    """The words with a blank that can't be a line's end inside of `0.94 ± 0.01`, `0.93 .. 0.95`, `1 %`, `1 pt` and
    `p 0.5`."""
    for joint in JOINTS:
        words = words.replace(joint, joint.replace(" ", glue))
    return _P.sub(f"p{glue}", words)


def fold(words: str, width: int, first: str = "", later: str | None = None) -> str:
    """`first` and then the words, over as many lines of `width` columns as they take. Further lines begin with `later`,
    by default blanks under the first word."""
    if not width:
        return first + words
    later = " " * len(first) if later is None else later
    glued = joined(words, _GLUE)
    longest = max(map(len, glued.split()), default=0)
    if width - len(later) < LEAST or len(later) + longest > width >= 4 + longest:
        later = " " * min(4, len(later))  # room for a run's id, even if it starts a line of its own
    lines = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=later, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    if lines and len(lines[0]) > width and first.strip():
        lines = [first.rstrip(), *textwrap.wrap(glued, width, initial_indent=later, subsequent_indent=later,
                                                break_long_words=False, break_on_hyphens=False)]  # fmt: skip
    return "\n".join(lines).replace(_GLUE, " ") if lines else first.rstrip()


def fold_lines(text: str, width: int) -> str:
    """A text of several lines, each folded under itself: further lines are indented by two more."""
    if not width:
        return text
    out = []
    for line in text.split("\n"):
        if len(line) <= width:
            out.append(line)
            continue
        words = line.lstrip(" ")
        indent = " " * (len(line) - len(words))
        out.append(fold(words, width, indent, f"{indent}  "))
    return "\n".join(out)


def say(text: str, stream: IO[str] | None = None) -> None:
    """Prints a text of lines, folded where a window is too narrow for one."""
    print(fold_lines(text, window(stream)), file=sys.stdout if stream is None else stream, flush=True)


def pairs(rows: Sequence[tuple[str, str]], width: int = 0, indent: int = 2) -> str:
    """`name   value`, a line each, values under one another; one that is too long goes on under itself."""
    edge = " " * indent
    column = max((len(name) for name, _ in rows), default=0)
    if width and indent + column + NAME_GAP + LEAST > width:
        return "\n".join(fold(value, width, f"{edge}{name}  ", f"{edge}  ") for name, value in rows)
    return "\n".join(fold(value, width, f"{edge}{name:{column + NAME_GAP}}").rstrip() for name, value in rows)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], align: str = "", width: int = 0, indent: int = 0
) -> str:
    """A table of text: a line a row where the window holds it. Else the columns of each row go on in a second line,
    header and rows alike; where two do not do, each value stands behind its column's name. `align`: l or r a column."""
    align = align or "l" * len(columns)
    cells = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    parts = _parts(widths, width, indent)
    if not parts:
        return _blocks(columns, rows, width, indent)
    out = []
    for row in cells:
        for i, part in enumerate(parts):
            edge = " " * (indent + (GAP if i else 0))
            shown = [row[c].rjust(widths[c]) if align[c] == "r" else row[c].ljust(widths[c]) for c in part]
            out.append((edge + (" " * GAP).join(shown)).rstrip())
    return "\n".join(out)


def _parts(widths: Sequence[int], width: int, indent: int) -> list[list[int]]:
    """The columns of each line that a row takes: one line, else two as even as can be; [] where two won't do."""
    every = list(range(len(widths)))

    def wide(part: Sequence[int], more: int = 0) -> int:
        return indent + more + sum(widths[c] for c in part) + GAP * (len(part) - 1)

    if not width or wide(every) <= width:
        return [every]
    cuts = [(every[:i], every[i:]) for i in every[1:]]
    fits = [(max(wide(a), wide(b, GAP)), a, b) for a, b in cuts if max(wide(a), wide(b, GAP)) <= width]
    return list(min(fits)[1:]) if fits else []


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, indent: int) -> str:
    """A row as a block of lines: its first cell, and under it every other one that says something, behind its name."""
    edge = " " * indent
    out = []
    for row in rows:
        head = row[0] if len(row[0]) > LEAST or not columns[0] else f"{columns[0]} {row[0]}"
        out.append(f"{edge}{head}")
        told = [(name, value) for name, value in zip(columns[1:], row[1:], strict=True) if value]
        out += [pairs(told, width, indent + GAP)] if told else []
    return "\n".join(out)

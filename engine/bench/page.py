"""The bench's tables as markdown, which a terminal shows as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.measure import Ratio

INTRO = """# Speed

Written by `make bench ARGS="--write docs/bench.md"`: nothing here is typed by hand.

All ways of one section ran in turn in one process, {rounds} rounds, {threads} thread(s), after one run to warm up. A
ratio is taken round by round; median (smallest .. largest). Rates are tokens a second of the process's CPU time,
prefill included: with one thread that is wall time on a machine of one's own. They hold for this machine ({machine}),
the ratios for more.

No GPU was at hand: nothing on this page ran on one. Graph capture (`engine/graphs.py`) has not been run on a GPU at
all; its sizes, padding and counts are tested on the CPU, where every padded batch runs eagerly.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what it is, its figure, and the least or most it has to be ("" where nothing is asked)."""

    what: str
    figure: Ratio
    unit: str = "x"
    asked: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    words: str
    rows: Sequence[Row]


def page(sections: Sequence[Section], *, rounds: int, threads: int, machine: str) -> str:
    """The whole page."""
    parts = [INTRO.format(rounds=rounds, threads=threads, machine=machine)]
    return "\n".join([*parts, *map(section_text, sections)])


def section_text(section: Section) -> str:
    lines = [
        f"## {section.title}",
        "",
        section.words,
        "",
        "| | median | smallest .. largest | asked |",
        "|---|---|---|---|",
    ]
    for row in section.rows:
        form = ".0f" if row.unit == "tokens/s" else ".2f"
        unit = "" if row.unit == "x" else f" {row.unit}"
        met = "" if row.met is None else ": met" if row.met else ": NOT MET"
        f = row.figure
        lines.append(f"| {row.what} | {f.median:{form}}{unit} | {f.low:{form}} .. {f.high:{form}} | {row.asked}{met} |")
    return "\n".join([*lines, ""])

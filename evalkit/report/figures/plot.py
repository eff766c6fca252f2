"""One plot of the page: its question, what it shows in words, the numbers that it draws, its markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evalkit.report import svg, text
from evalkit.report.text import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Frame = tuple[Mapping[str, Any], ...]  # rows of what is drawn: plain values, the same keys in every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure: the question it answers, what it shows in words, its data, its markup (drawn by `drawn`)."""

    name: str
    question: str
    alt: str
    data: Frame
    draw: Callable[[Axes], None]
    height: float = svg.HEIGHT
    left: float = svg.LEFT
    bottom: float = svg.BOTTOM
    foot: float = 0.0  # inches under all that: of a legend that does not fit inside
    note: str = ""
    group: str = ""  # of the runs it shows; "" where it shows all
    markup: str = ""

    @property
    def table(self) -> Table:
        """What is drawn, as numbers."""
        columns = tuple(self.data[0]) if self.data else ()
        right = "".join("r" if all(_number(row[c]) for row in self.data) else "l" for c in columns)
        rows = tuple(tuple(_word(row[c]) for c in columns) for row in self.data)
        return Table(name=self.name, caption=self.question, align=right, rows=rows,
                     columns=tuple(c.replace("_", " ") for c in columns))  # fmt: skip


def drawn(plots: Iterable[Plot]) -> list[Plot]:
    """The plots with their markup."""
    return [replace(p, markup=_markup(p)) for p in plots]


def _markup(p: Plot) -> str:
    return svg.draw(
        p.name, f"{p.question} {p.alt}", p.draw, height=p.height + p.foot, left=p.left, bottom=p.bottom + p.foot
    )


def _number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _word(value: object) -> str:
    if value is None:
        return "no value"
    return f"{value:.4f}" if isinstance(value, float) else text.count(value) if isinstance(value, int) else str(value)


def plot_id(name: str, group: str) -> str:
    return "-".join([name, *("".join(c if c.isalnum() else "-" for c in group).split("-") if group else [])])

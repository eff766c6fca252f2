"""What plots of accepted length over ranges of tokens share: the ranges as ticks, a line with intervals a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalkit.report import svg
from evalkit.report.figures.lines import legend, name_in, spans_of
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLAT_TICKS = 5  # more ranges of tokens stand aslant under the axis


def spread(members: Sequence[Subject], rows: Sequence[Mapping[str, Any]]) -> str:
    out = []
    for s in members:
        values = [r["accepted_length"] for r in rows if r["run"] == s.label]
        if values:
            out.append(f"{s.label}: accepted length {min(values):.2f} to {max(values):.2f}")
    return "; ".join(out)


def tick_room(rows: Sequence[Mapping[str, Any]]) -> float:
    return svg.BOTTOM if len({r["from_token"] for r in rows}) <= FLAT_TICKS else 0.85


def binned(members: Sequence[Subject], rows: Sequence[Mapping[str, Any]], axis: str) -> Callable[[Axes], None]:
    def picture(ax: Axes) -> None:
        edges = sorted({(r["from_token"], r["to_token"]) for r in rows})
        starts = sorted({low for low, _ in edges})
        place = {low: i for i, low in enumerate(starts)}
        name = {low: f"{low}\u2013{max(h for lo, h in edges if lo == low)}" for low in starts}
        many = len(members)
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            x = [place[r["from_token"]] + 0.08 * (i - (many - 1) / 2) for r in own]
            y = [r["accepted_length"] for r in own]
            ax.plot(x, y, label=name_in(s, members), **svg.series(i))
            spans_of(ax, i, [(at, r["low"], r["high"]) for at, r in zip(x, own, strict=True) if r["low"] is not None])
        ax.set_xticks(range(len(starts)), [name[low] for low in starts],
                      rotation=0 if len(starts) <= FLAT_TICKS else 40,
                      ha="center" if len(starts) <= FLAT_TICKS else "right")  # fmt: skip
        ax.set_ylim(bottom=1)
        ax.margins(y=0.12)
        ax.set_xlabel(axis)
        ax.set_ylabel("accepted length")
        legend(ax, loc="lower left", ncols=2 if many > 3 else 1)

    return picture

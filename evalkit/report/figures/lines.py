"""What plots of one line a run share: names, the legend and its room, intervals, bands, marks of the golden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalkit.report import svg
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSIDE, UNDER = 1.5, 3.7  # inches of a name in a legend inside the axes, and under them
BANDS = "Bands hold for all positions of a run at once (95 %)."


def spans_of(ax: Axes, i: int, spans: Sequence[tuple[float, float, float]]) -> None:
    """Intervals (x, low, high) of the i-th line, as one artist: matplotlib takes its time by the artist."""
    if spans:
        x, low, high = zip(*spans, strict=True)
        ax.vlines(x, low, high, color=svg.series(i)["color"], linewidth=1.2)


def legend(ax: Axes, **more: Any) -> None:
    """Inside of the axes; names too long for that stand under them, in the room that `foot` makes."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    shape = {"handlelength": 2.4, "labelspacing": 0.25, "borderpad": 0.1}
    if max(map(svg.width_of, labels)) <= INSIDE:
        ax.legend(**shape, **more)
    elif (figure := ax.figure) is not None:
        figure.legend(
            handles, [svg.wrapped(x, UNDER) for x in labels], loc="lower left", bbox_to_anchor=(0.01, 0), **shape
        )


def foot(members: Sequence[Subject]) -> float:
    """Inches under the axes for a legend of long names; 0 where they fit into the axes."""
    names = [name_in(s, members) for s in members]
    if max(map(svg.width_of, names)) <= INSIDE:
        return 0.0
    lines = 1 + sum(svg.wrapped(name, UNDER).count("\n") + 1 for name in names)  # and one of the golden
    return 0.1 + 0.19 * lines


def name_in(s: Subject, members: Sequence[Subject]) -> str:
    """What a legend calls a run: its K where that tells all of them apart."""
    return f"K={s.k}" if len({m.k for m in members}) == len(members) > 1 else s.label


def bands(ax: Axes, members: Sequence[Subject], rows: Sequence[Mapping[str, Any]], value: str) -> None:
    """A line a run over positions, in per cent, with its band."""
    lowest = 100.0
    for i, s in enumerate(members):
        own = [r for r in rows if r["run"] == s.label]
        x, y = [r["position"] for r in own], [100 * r[value] for r in own]
        known = [r for r in own if r["low"] is not None]
        if known:
            low, high = [100 * r["low"] for r in known], [100 * r["high"] for r in known]
            ax.fill_between([r["position"] for r in known], low, high, color=svg.series(i)["color"], alpha=0.16,
                            linewidth=0)  # fmt: skip
            lowest = min(lowest, *low)
        ax.plot(x, y, label=name_in(s, members), **svg.series(i))
        lowest = min(lowest, *y)
    ax.set_xticks(sorted({r["position"] for r in rows}))
    ax.set_ylim(0 if lowest < 50 else 10 * int((lowest - 1) // 10), 100.8)


def golden_marks(ax: Axes, points: Sequence[tuple[float, float]], label: str | None) -> None:
    """The golden at (x, per cent)."""
    if points:
        ax.plot(*zip(*points, strict=True), linestyle="", marker="D", color=svg.GOLDEN, markersize=4.2,
                markerfacecolor=svg.BACK, markeredgewidth=1.3, label=label, zorder=3)  # fmt: skip

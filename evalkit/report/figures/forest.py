"""What plots of one row a run share: the rows of a check, point and interval, the rules of baseline and margin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalkit.report import svg
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_LABEL = 1.7  # inches of a row's label


def judged_rows(found: Sequence[Subject], check: str, figure: str) -> tuple[list[dict[str, Any]], float | None]:
    """A row for each run whose `check` holds `figure` with an interval, and the margin of the last of them."""
    rows: list[dict[str, Any]] = []
    margin = None
    for s in found:
        x = s.check(check)
        if x.get(figure) is not None and x.get("interval"):
            low, high = x["interval"]
            margin = x.get("margin", margin)
            rows.append({"run": s.label, figure: x[figure], "low": low, "high": high, "level": x["level"],
                         "margin": margin})  # fmt: skip
    return rows, margin


def left_out(found: Sequence[Subject], rows: Sequence[Mapping[str, Any]], why: Callable[[Subject], str]) -> str:
    """Names the runs that a picture of all runs does not have, by reason: what is missing is no pass."""
    there = {r["run"] for r in rows}
    reasons: dict[str, list[str]] = {}
    for s in found:
        if s.label not in there:
            reasons.setdefault(why(s), []).append(s.label)
    return "".join(f"Not shown: {', '.join(labels)} ({reason}). " for reason, labels in reasons.items()).strip()


def _row_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [svg.wrapped(r["run"], ROW_LABEL) for r in rows]


def rows_height(rows: Sequence[Mapping[str, Any]]) -> float:
    """Inches of a plot of so many rows."""
    lines = max(label.count("\n") + 1 for label in _row_labels(rows))
    return max(1.25, 0.85 + (0.11 + 0.16 * lines) * len(rows))


def label_room(rows: Sequence[Mapping[str, Any]]) -> float:
    """Inches beside the axes for the longest label."""
    return 0.2 + max(svg.width_of(line) for label in _row_labels(rows) for line in label.split("\n"))


def forest(ax: Axes, rows: Sequence[tuple[str, float, float, float]], hollow: int = 0) -> None:
    """Point and interval a row, top to bottom; the last `hollow` rows are not ours."""
    solid = len(rows) - hollow
    at, values = range(len(rows)), [r[1] for r in rows]
    ax.hlines(at, [r[2] for r in rows], [r[3] for r in rows], color=svg.SERIES[0], linewidth=2)
    for part, marker, face in ((slice(solid), "o", svg.SERIES[0]), (slice(solid, None), "D", svg.BACK)):
        ax.plot(values[part], at[part], linestyle="", marker=marker, color=svg.SERIES[0], markerfacecolor=face,
                markersize=6)  # fmt: skip
    ax.set_yticks(range(len(rows)), [svg.wrapped(r[0], ROW_LABEL) for r in rows], linespacing=1.0)
    ax.set_ylim(len(rows) - 0.4, -0.9)
    ax.tick_params(axis="y", labelcolor=svg.INK)
    ax.grid(axis="y", visible=False)


def rule(ax: Axes, x: float, name: str, colour: str, style: str = "-") -> None:
    """A named vertical line."""
    ax.axvline(x, color=colour, linewidth=1.1, linestyle=style, zorder=0.9)
    ax.annotate(name, (x, 1), xycoords=("data", "axes fraction"), xytext=(-3 if name == "margin" else 3, 0),
                textcoords="offset points", color=colour, fontsize=9.5, va="bottom",
                ha="right" if name == "margin" else "left")  # fmt: skip

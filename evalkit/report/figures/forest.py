"""What plots of one row a run share: the rows of a check, point and interval, the rules of baseline and margin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named vertical line. `left`: its name stands left of it, as that of a margin, whose line is dashed."""

    x: float
    name: str
    colour: str
    left: bool = False


def margin_rule(x: float) -> Rule:
    return Rule(x=x, name="margin", colour=svg.BAD, left=True)


def rules(ax: Axes, lines: Sequence[Rule], most: float | None = None) -> None:
    """The lines with their names over them, and an axis that has room for these. Call it when all else is drawn.
    `most`: the largest value there can be, past which no tick stands."""
    for line in lines:
        ax.axvline(line.x, color=line.colour, linewidth=1.1, linestyle="--" if line.left else "-", zorder=0.9)
    low, high = ax.get_xlim()
    inches = ax.get_position().width * svg.WIDTH
    for line in (x for x in lines if not x.left):  # an axis ends 0.12 inches before the picture does
        free = inches + svg.RIGHT - svg.width_of(line.name) - 0.06
        high = max(high, low + (line.x - low) * inches / free)
    ticks = ax.get_xticks()
    ax.set_xlim(low, high)
    if most is not None and high > most:
        ax.set_xticks([t for t in ticks if low <= t <= most])
    for line in lines:
        ax.annotate(line.name, (line.x, 1), xycoords=("data", "axes fraction"), xytext=(-3 if line.left else 3, 0),
                    textcoords="offset points", color=line.colour, fontsize=9.5, va="bottom",
                    ha="right" if line.left else "left")  # fmt: skip


def own_rules(ax: Axes, rows: Sequence[tuple[float | None, float | None]]) -> None:
    """(baseline, margin) of each row on its own row only, named once above: rows of other questions share none."""
    half = 0.32
    for i, (base, margin) in enumerate(rows):
        for x, colour, style in ((base, svg.INK, "-"), (margin, svg.BAD, (0, (3, 1.5)))):
            if x is not None:
                ax.vlines(x, i - half, i + half, color=colour, linewidth=1.3, linestyle=style, zorder=0.9)
    names = [("baseline", svg.INK, "-"), ("margin", svg.BAD, "--")]
    shown = [n for n, there in zip(names, zip(*rows, strict=True), strict=True) if any(x is not None for x in there)]
    for place, (name, colour, style) in zip((0.0, 1.05), shown, strict=False):
        left, width = ax.get_position().x0 * svg.WIDTH, ax.get_position().width * svg.WIDTH
        at = (min(left, svg.WIDTH - 2.2) + place - left) / width
        ax.plot([at, at + 0.22 / width], [1.0, 1.0], transform=_above(ax), color=colour, linestyle=style,
                linewidth=1.3, clip_on=False)  # fmt: skip
        ax.annotate(name, (at + 0.27 / width, 1), xycoords="axes fraction", color=colour, fontsize=9.5, va="bottom")


def _above(ax: Axes) -> Any:
    from matplotlib.transforms import ScaledTranslation

    return ax.transAxes + ScaledTranslation(0, 0.07, ax.figure.dpi_scale_trans)

"""Does the draft still pay?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.report import svg
from evalkit.report.figures.forest import (
    Rule,
    forest,
    judged_rows,
    label_room,
    left_out,
    margin_rule,
    rows_height,
    rules,
)
from evalkit.report.figures.plot import Plot
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(found: Sequence[Subject]) -> Plot | None:
    """Accepted length over golden with the gate's interval, and the margin."""
    rows, margin = judged_rows(found, "accepted length", "ratio")
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        forest(ax, [(r["run"], 100 * r["ratio"], 100 * r["low"], 100 * r["high"]) for r in rows])
        lines = [Rule(x=100, name="golden", colour=svg.GOLDEN)]
        rules(ax, lines if margin is None else [*lines, margin_rule(100 * (1 - float(margin)))])
        ax.set_xlabel(f"accepted length, % of the golden ({100 * rows[0]['level']:g} % interval)")

    inside = sum(r["low"] >= 1 - (r["margin"] or 0) for r in rows)
    return Plot(name="lengths", question="Does the draft still pay?", data=tuple(rows), draw=picture,
                height=rows_height(rows), left=label_room(rows), note=left_out(found, rows, _no_ratio),
                alt=f"{inside} of {len(rows)} intervals of the ratio to golden lie above it.")  # fmt: skip


def _no_ratio(s: Subject) -> str:
    if s.k == 0:
        return "K=0, nothing was drafted"
    if s.verdict is None:
        return "not judged"
    if s.run.forced:
        return "acceptance was forced"
    if s.acceptance.accepted_length is None:
        return "no verify step was counted"
    if s.golden_differs:
        return f"its golden differs in {s.golden_differs}"
    return "no interval for its ratio" if s.view.value is not None else "no golden at its K"

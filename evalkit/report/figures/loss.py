"""Does a run lose more than the margin?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.gate.accuracy import is_own_baseline
from evalkit.report import svg, text
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
    """Paired difference to the baseline with the gate's own interval, and the margin."""
    rows, margin = judged_rows(found, "accuracy", "difference")
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        forest(ax, [(r["run"], 100 * r["difference"], 100 * r["low"], 100 * r["high"]) for r in rows])
        lines = [Rule(x=0, name="baseline", colour=svg.INK)]
        rules(ax, lines if margin is None else [*lines, margin_rule(-100 * float(margin))])
        ax.set_xlabel(f"difference to the baseline, points ({100 * rows[0]['level']:g} % interval)")

    inside = sum(r["low"] >= -(r["margin"] or 0) for r in rows)
    who = "any run" if len(found) > 1 else "it"
    return Plot(name="loss", question=f"Does {who} lose more than the margin?", data=tuple(rows), draw=picture,
                height=rows_height(rows), left=label_room(rows), note=left_out(found, rows, _no_difference),
                alt=f"{inside} of {len(rows)} intervals of the difference lie above the margin.")  # fmt: skip


def _no_difference(s: Subject) -> str:
    if s.verdict is None:
        return "not judged"
    if is_own_baseline(s.run, s.baseline):
        return "it is the baseline"
    if not s.scored[1]:
        return "no scored answer"
    if s.baseline is None:
        return "no baseline"
    if s.differences:
        return f"its baseline differs in {text.names([d.name for d in s.differences], most=3)}"
    return "no judged difference to its baseline"

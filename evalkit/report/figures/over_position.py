"""Does the draft hold up along the answer?"""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.report import curves
from evalkit.report.figures.binned import binned, spread, tick_room
from evalkit.report.figures.lines import foot
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Accepted length by the token of the answer at which a step starts."""
    rows = [
        {"run": s.label, "from_token": int(p.low), "to_token": int(p.high) - 1, "steps": p.steps,
         "accepted_length": p.value, "low": p.interval and p.interval.low, "high": p.interval and p.interval.high}
        for s in members for p in curves.by_position(s.steps)
    ]  # fmt: skip
    if not rows:
        return None
    return Plot(
        name=plot_id("position", group), question="Does the draft hold up along the answer?",
        alt=spread(members, rows), data=tuple(rows),
        draw=binned(members, rows, "token of the answer at which the step starts"), bottom=tick_room(rows),
        foot=foot(members),
    )  # fmt: skip

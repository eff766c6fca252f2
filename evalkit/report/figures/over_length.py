"""Does the draft hold up in long answers?"""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.report.figures.binned import binned, spread, tick_room
from evalkit.report.figures.lines import foot
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Accepted length by the length of the whole answer."""
    from evalkit.report.drafts import bin_ends

    rows = []
    for s in members:
        for g in s.by_length:
            if g.accepted_length is not None:
                low, high = bin_ends(g.label)
                half = None if g.se is None else 1.96 * g.se
                rows.append({"run": s.label, "from_token": low, "to_token": high, "steps": g.steps,
                             "accepted_length": g.accepted_length, "low": half and g.accepted_length - half,
                             "high": half and g.accepted_length + half})  # fmt: skip
    if not rows:
        return None
    return Plot(
        name=plot_id("length", group), question="Does it hold up in long answers?", alt=spread(members, rows),
        data=tuple(rows), draw=binned(members, rows, "tokens of the whole answer"), bottom=tick_room(rows),
        foot=foot(members),
    )  # fmt: skip

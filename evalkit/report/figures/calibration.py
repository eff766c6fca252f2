"""Does the confidence head know?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.report import curves, svg
from evalkit.report.figures.lines import foot, legend, name_in, spans_of
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Share of drafts kept, by the confidence that the draft gave them."""
    rows = [
        {"run": s.label, "confidence": p.low, "accepted": p.value, "low": p.interval and p.interval.low,
         "high": p.interval and p.interval.high, "drafts": p.steps}
        for s in members for p in curves.reliability(s.steps)
    ]  # fmt: skip
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        ax.plot([0, 100], [0, 100], color=svg.DIM, linewidth=1, linestyle=":", label="calibrated")
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            ax.plot([100 * r["confidence"] for r in own], [100 * r["accepted"] for r in own],
                    label=name_in(s, members), **svg.series(i))  # fmt: skip
            spans_of(ax, i, [(100 * r["confidence"], 100 * r["low"], 100 * r["high"]) for r in own
                           if r["low"] is not None])  # fmt: skip
        ax.set_xlim(0, 101)
        ax.set_ylim(0, 101)
        ax.set_xlabel("confidence of the draft, %")
        ax.set_ylabel("kept, %")
        legend(ax, loc="upper left")

    gaps = [abs(r["confidence"] - r["accepted"]) for r in rows]
    return Plot(name=plot_id("calibration", group), question="Does the confidence head know?", data=tuple(rows),
                draw=picture, foot=foot(members),
                alt=f"Confidence and share kept differ by at most {100 * max(gaps):.0f} points in a bin.",
                note="Drafts whose earlier ones were all kept; those past a stop and bins of under 30 are left out.",
                )  # fmt: skip

"""Which position is the weakest?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.report import text
from evalkit.report.figures.lines import BANDS, bands, foot, legend
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Share of drafts kept, of those whose earlier ones were, at each position of a block."""
    rows = [
        {"run": s.label, "position": int(p.low), "rate": p.value, "low": p.interval and p.interval.low,
         "high": p.interval and p.interval.high, "drafts": p.steps}
        for s in members for p in s.by_draft
    ]  # fmt: skip

    def picture(ax: Axes) -> None:
        bands(ax, members, rows, "rate")
        ax.set_xlabel("position i in the block")
        ax.set_ylabel("kept, given those before, %")
        legend(ax, loc="lower left")

    if not rows:
        return None
    weakest = [(s.label, min(s.by_draft, key=lambda p: p.value)) for s in members if s.by_draft]
    alt = "; ".join(f"{name}: {100 * p.value:.0f} % at position {int(p.low)}, the lowest" for name, p in weakest)
    stopped = sum(s.acceptance.cut_at_stop for s in members)
    cut = f"{text.count(stopped)} of {text.count(sum(s.acceptance.steps for s in members))} blocks ended by a stop"
    return Plot(name=plot_id("conditional", group), question="Which position is the weakest?", alt=alt,
                data=tuple(rows), draw=picture, foot=foot(members),
                note=f"Drafts past a stop are left out ({cut}). {BANDS}")  # fmt: skip

"""How far into the block do drafts survive?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.report.figures.lines import BANDS, bands, foot, golden_marks, legend
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Accept rate at each position of a block, with its band and the golden's."""
    rows = [
        {"run": s.label, "position": p.position, "share": p.survival, "low": p.survival_band and p.survival_band.low,
         "high": p.survival_band and p.survival_band.high,
         "golden": s.view.survival[p.position - 1] if s.view.survival else None}
        for s in members for p in s.curve
    ]  # fmt: skip

    implied = any(s.view.survival_from == "implied" for s in members)
    source = "implied by the golden curve" if implied else "golden"

    def picture(ax: Axes) -> None:
        bands(ax, members, rows, "share")
        golden_marks(ax, [(r["position"], 100 * r["golden"]) for r in rows if r["golden"] is not None], source)
        ax.set_xlabel("position i in the block")
        ax.set_ylabel("accept rate at i, %")
        legend(ax, loc="lower left")

    if not rows:
        return None
    ends = [(s.label, s.curve[0], s.curve[-1]) for s in members if s.curve]
    alt = "; ".join(f"{name}: {100 * a.survival:.0f} % at position 1, {100 * z.survival:.0f} % at {z.position}"
                    for name, a, z in ends)  # fmt: skip
    return Plot(name=plot_id("survival", group), question="How far into the block do drafts survive?", alt=alt,
                data=tuple(rows), draw=picture, foot=foot(members),
                note=f"Accept rate at i: steps whose first i drafts were all kept; blocks cut by a stop are included. "
                     f"{BANDS}")  # fmt: skip

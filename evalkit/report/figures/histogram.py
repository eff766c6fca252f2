"""How many drafts does a step keep?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit.report import svg
from evalkit.report.figures.lines import foot, golden_marks, legend, name_in
from evalkit.report.figures.plot import Plot, plot_id
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(group: str, members: Sequence[Subject]) -> Plot | None:
    """Share of verify steps by how many drafts they keep, and the golden's."""
    rows = [
        {"run": s.label, "accepted": a, "share": n / s.acceptance.steps, "steps": n,
         "golden": s.view.histogram[a] if s.view.histogram else None}
        for s in members for a, n in enumerate(s.acceptance.histogram)
    ]  # fmt: skip

    def picture(ax: Axes) -> None:
        width = 0.8 / len(members)
        top = max(r["share"] for r in rows)
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            at = [r["accepted"] + (i - (len(members) - 1) / 2) * width for r in own]
            ax.bar(at, [100 * r["share"] for r in own], width * 0.94, color=svg.SERIES[i], label=name_in(s, members))
            golden = [(x, 100 * r["golden"]) for x, r in zip(at, own, strict=True) if r["golden"] is not None]
            golden_marks(ax, golden, "golden" if i == len(members) - 1 else None)
        ax.set_xticks(range(max(r["accepted"] for r in rows) + 1))
        ax.set_ylim(0, 100 * top * 1.12)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel("drafts accepted in a step")
        ax.set_ylabel("verify steps, %")
        legend(ax, loc="upper left")

    if not rows:
        return None
    alt = "; ".join(f"{s.label}: {100 * s.acceptance.histogram[-1] / s.acceptance.steps:.0f} % of the steps keep all "
                    f"{len(s.acceptance.histogram) - 1}" for s in members)  # fmt: skip
    return Plot(name=plot_id("histogram", group), question="How many drafts does a step keep?", alt=alt,
                data=tuple(rows), draw=picture, foot=foot(members))  # fmt: skip

"""How small a loss could a run of so many questions have shown?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalkit import stats
from evalkit.report import curves, svg, text
from evalkit.report.figures.plot import Plot
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(found: Sequence[Subject]) -> Plot | None:
    """What a run of so many questions could have shown, at the discordance seen."""
    with_pairs = [(s, s.pairs) for s in found if s.pairs is not None and "level" in s.check("accuracy")]
    if not with_pairs:
        return None
    worst, pairs = max(with_pairs, key=lambda x: (x[1].up + x[1].down) / x[1].n)
    numbers = worst.check("accuracy")
    margin, alpha = float(numbers["margin"]), (1 - float(numbers["level"])) / 2
    share = stats.discordant_at(pairs.up, pairs.down, pairs.n, -margin)
    rows = [{"pairs": n, "loss": loss_} for n, loss_ in curves.mde(worst.run, share, alpha)]
    here = stats.mde_paired(pairs.n, share, alpha)

    of, here_words = "this run", "this run: "
    if len(found) > 1:
        of, here_words = f"{worst.label}, the run that differs most,", ""

    def picture(ax: Axes) -> None:
        ax.plot([r["pairs"] for r in rows], [100 * r["loss"] for r in rows], color=svg.SERIES[0])
        ax.plot([pairs.n], [100 * here], marker="o", color=svg.SERIES[0], markersize=7)
        few = pairs.n**2 < rows[0]["pairs"] * rows[-1]["pairs"]  # the left half of the logarithmic axis
        ax.annotate(f"{here_words}{100 * here:.2f} pt", (pairs.n, 100 * here), xytext=(7, 3) if few else (-6, -13),
                    ha="left" if few else "right", color=svg.INK, textcoords="offset points",
                    fontsize=10, bbox={"facecolor": svg.BACK, "edgecolor": "none", "pad": 0.5})  # fmt: skip
        ax.axhline(100 * margin, color=svg.BAD, linewidth=1.1, linestyle="--")
        ax.annotate("margin", (0, 100 * margin), xycoords=("axes fraction", "data"), xytext=(3, 3), ha="left",
                    textcoords="offset points", color=svg.BAD, fontsize=9.5)  # fmt: skip
        ax.set_xscale("log")
        ticks = [n for n in (50, 200, 1319, 5276) if n in {r["pairs"] for r in rows}]
        ax.set_xticks(ticks, [text.count(n) for n in ticks])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("questions paired with the baseline")
        ax.set_ylabel("loss shown with 80 % power, pt")

    return Plot(name="mde", question="How small a loss could this have shown?", data=tuple(rows), draw=picture,
                alt=f"{pairs.n} pairs show a loss of {100 * here:.2f} points with 80 % power; the margin is "
                    f"{100 * margin:g} points.",
                note=f"Reckoned for {100 * share:.1f} % of answers flipping, both ways together: the most likely share "
                     f"if the true loss of {of} were just the margin.")  # fmt: skip

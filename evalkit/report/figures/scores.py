"""How do the scores compare?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.report import svg
from evalkit.report.figures.forest import forest, label_room, left_out, rows_height, rule
from evalkit.report.figures.plot import Plot
from evalkit.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(found: Sequence[Subject]) -> Plot | None:
    """Strict-match of each run with Wilson's interval, the baseline, its margin, and published scores."""
    rows: list[dict[str, Any]] = []
    for s in found:
        correct, n = s.scored
        if n:
            span = stats.wilson(correct, n)
            rows.append({"run": s.label, "score": correct / n, "low": span.low, "high": span.high, "n": n})
    if not rows:
        return None
    line = next(((s.pairs.baseline_correct / s.pairs.n) for s in found if s.pairs is not None), None)
    margin = next((float(x["margin"]) for s in found if "margin" in (x := s.check("accuracy"))), None)
    published = {r.name: r for s in found for r in s.references if not r.not_comparable(s.run) and r.metric == STRICT}
    for ref in published.values():
        span = stats.wilson(ref.correct, ref.n)
        rows.append({"run": f"{ref.name} (published)", "score": ref.score, "low": span.low, "high": span.high,
                     "n": ref.n})  # fmt: skip

    def picture(ax: Axes) -> None:
        forest(ax, [(r["run"], 100 * r["score"], 100 * r["low"], 100 * r["high"]) for r in rows],
                hollow=len(published))  # fmt: skip
        if line is not None:
            rule(ax, 100 * line, "baseline", svg.INK)
            if margin is not None:
                rule(ax, 100 * (line - margin), "margin", svg.BAD, "--")
        ax.set_xlabel(f"{STRICT}, % (95 % Wilson)")

    best = max(rows, key=lambda r: r["score"])
    alt = f"Strict-match from {100 * min(r['score'] for r in rows):.1f} to {100 * best['score']:.1f} %."
    note = "" if published else "No published score is comparable with these runs; the table of references says why. "
    note = (note + left_out(found, rows, lambda _: "no scored answer")).strip()
    return Plot(name="scores", question="How do the scores compare?", data=tuple(rows), draw=picture, alt=alt,
                height=rows_height(rows), left=label_room(rows), note=note)  # fmt: skip

"""How do the scores compare?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.report import svg
from evalkit.report.figures.forest import Rule, forest, label_room, left_out, margin_rule, own_rules, rows_height, rules
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
            rows.append({"run": s.label, "score": correct / n, "low": span.low, "high": span.high, "n": n,
                         **_compared(s)})  # fmt: skip
    if not rows:
        return None
    common = _common(found, rows)
    published = {r.name: r for s in found for r in s.references if not r.not_comparable(s.run) and r.metric == STRICT}
    for ref in published.values():
        span = stats.wilson(ref.correct, ref.n)
        rows.append({"run": f"{ref.name} (published)", "score": ref.score, "low": span.low, "high": span.high,
                     "n": ref.n, "baseline": None, "margin_at": None})  # fmt: skip

    def picture(ax: Axes) -> None:
        forest(ax, [(r["run"], 100 * r["score"], 100 * r["low"], 100 * r["high"]) for r in rows],
                hollow=len(published))  # fmt: skip
        if common:
            rules(ax, _lines(rows[0]), most=100)
        else:
            own_rules(ax, [(_hundred(r["baseline"]), _hundred(r["margin_at"])) for r in rows])
        ax.set_xlabel(f"{STRICT}, % (95 % Wilson)")

    best = max(rows, key=lambda r: r["score"])
    alt = f"Strict-match from {100 * min(r['score'] for r in rows):.1f} to {100 * best['score']:.1f} %."
    note = "" if published else "No published score is comparable with these runs; the table of references says why. "
    if not common and any(r["baseline"] is not None for r in rows):
        note += "The runs have other questions or other baselines, so each has its own baseline and margin. "
    note = (note + left_out(found, rows, lambda _: "no scored answer")).strip()
    return Plot(name="scores", question="How do the scores compare?", data=tuple(rows), draw=picture, alt=alt,
                height=rows_height(rows), left=label_room(rows), note=note)  # fmt: skip


def _compared(s: Subject) -> dict[str, Any]:
    """The score of the run's baseline on the run's own questions, and where the margin below it lies."""
    pairs, margin = s.pairs, s.check("accuracy").get("margin")
    base = None if pairs is None else pairs.baseline_correct / pairs.n
    return {"baseline": base, "margin_at": None if base is None or margin is None else base - float(margin)}


def _common(found: Sequence[Subject], rows: Sequence[dict[str, Any]]) -> bool:
    """Whether one line is the baseline of every run here: all of the same questions and the same margin."""
    of = [s.pairs for s in found if s.scored[1]]
    asked = {frozenset(x.doc_hash for x in s.run.samples) for s in found if s.scored[1]}
    marks = {(r["baseline"], r["margin_at"]) for r in rows[: len(of)]}
    return None not in of and len(asked) == 1 and len(marks) == 1


def _lines(row: dict[str, Any]) -> list[Rule]:
    lines = [Rule(x=100 * row["baseline"], name="baseline", colour=svg.INK)]
    return lines if row["margin_at"] is None else [*lines, margin_rule(100 * row["margin_at"])]


def _hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share

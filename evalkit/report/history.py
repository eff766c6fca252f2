"""A cell over time: what its runs scored, and whether the newest is still like those before it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.acceptance import of_run
from evalkit.baseline import STRICT
from evalkit.records import Run
from evalkit.report import svg, text
from evalkit.report.samples import scored
from evalkit.report.text import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_KEYS = ("task", "target", "draft", "k", "quant", "draft_width", "shots", "temperature", "top_p", "top_k",
             "max_tokens", "limit", "engine")  # fmt: skip
CHANGE_ALPHA = 0.01  # of calling a level's change one; many settings are looked at every day
MIN_EARLIER = 3  # runs before the newest; fewer show no run-to-run variation worth a band


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What the index and the history keep of a run."""

    id: str
    cell: str  # key of its setting
    name: str
    started: str
    complete: bool
    samples: int
    task_size: int
    correct: int
    scored: int
    length: float | None
    length_interval: stats.Interval | None
    length_se: float | None

    @property
    def score(self) -> float | None:
        return self.correct / self.scored if self.scored else None


def brief(run: Run) -> Brief:
    correct, n = scored(run.samples, STRICT)
    found = of_run(run)
    return Brief(
        id=run.id, cell=cell_key(run.cell), name=cell_name(run.cell), started=str(run.provenance.get("started", "")),
        complete=run.complete, samples=len(run.samples), task_size=run.task_size, correct=correct, scored=n,
        length=found.accepted_length, length_interval=found.interval, length_se=found.se,
    )  # fmt: skip


def cell_key(cell: Mapping[str, Any]) -> str:
    """A short name of a setting for an address: the same for every run of it, whatever its seed, machine or batch."""
    told = json.dumps([str(cell.get(key)) for key in CELL_KEYS])
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def cell_name(cell: Mapping[str, Any]) -> str:
    words = [str(cell.get("task", "")), str(cell.get("target", ""))]
    words += [str(cell.get("draft", ""))] if cell.get("k") else []
    words += [f"K={cell.get('k')}", str(cell.get("quant", ""))]
    words += [f"{key.replace('_', ' ')} {cell[key]}" for key in ("temperature", "limit") if cell.get(key)]
    return " \u00b7 ".join(w for w in words if w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The newest run against the earlier ones of its cell, for one figure."""

    what: str
    words: str
    odd: bool  # outside of what one more run would give
    band: tuple[float, float] | None  # where one more run falls (95 %), nothing having changed


def drift(
    what: str, values: Sequence[float], errors: Sequence[float | None], limits: tuple[float, float] = (0.0, math.inf)
) -> Drift:
    """A run's own sampling error is in the band as well as the variation between runs: the larger of the two, since
    runs on the same questions vary by less than independent draws would, and greedy repeats by nothing at all. The
    figure can't leave `limits`, so the band doesn't either."""
    earlier = values[:-1]
    if len(earlier) < MIN_EARLIER:
        return Drift(what=what, words=f"{what}: {len(values)} runs, too few to tell a drift.", odd=False, band=None)
    variation = stats.run_variation(earlier)
    found = stats.next_run_interval(variation)
    own = errors[-1] or 0.0
    low, high = min(found.low, variation.mean - 1.96 * own), max(found.high, variation.mean + 1.96 * own)
    low, high = max(low, limits[0]), min(high, limits[1])
    odd = not low <= values[-1] <= high
    said = "outside" if odd else "within"
    words = (
        f"{what}: the newest run has {values[-1]:.4f}, {said} {low:.4f} .. {high:.4f}, where 95 % of further runs fall."
    )
    return Drift(what=what, words=words, odd=odd, band=(low, high))


def change(what: str, values: Sequence[float], errors: Sequence[float | None], names: Sequence[str]) -> Drift | None:
    """Where a figure went to another level and stayed there (C53), which the band of the newest run can't see once the
    earlier ones have it too. None where it did not.

    Of all cuts into runs before and after the one with the largest difference over its error (of both means, from the
    runs' own sampling errors), two-sided, Bonferroni over the cuts. Runs on the same questions have errors in common,
    which makes the test cautious.
    """
    if len(values) <= MIN_EARLIER or any(not e for e in errors):
        return None
    x, variance = np.array(values), np.array([e or 0.0 for e in errors]) ** 2
    cuts = range(1, len(x))
    se = [math.sqrt(variance[:i].sum() / i**2 + variance[i:].sum() / (len(x) - i) ** 2) for i in cuts]
    gaps = [float(x[i:].mean() - x[:i].mean()) for i in cuts]
    z, at = max((abs(gap) / e, i) for gap, e, i in zip(gaps, se, cuts, strict=True))
    p = min(1.0, 2 * float(special.ndtr(-z)) * len(cuts))
    if p > CHANGE_ALPHA or at == len(x) - 1:  # the newest run alone has its band
        return None
    words = f"{what}: {x[at:].mean():.4f} since run {at + 1} ({names[at]}), {x[:at].mean():.4f} before (p {p:.1g})."
    return Drift(what=what, words=words, odd=True, band=None)


def drifts(runs: Sequence[Brief]) -> list[Drift]:
    """Of score and accepted length, over the whole runs in the order of time."""
    whole = [r for r in runs if r.complete and r.samples == r.task_size]
    out: list[Drift | None] = []
    with_score = [r for r in whole if r.score is not None]
    if with_score:
        errors = [stats.proportion_se(r.correct, r.scored) for r in with_score]
        scores = [r.score or 0.0 for r in with_score]
        out += [drift(STRICT, scores, errors, (0.0, 1.0)), change(STRICT, scores, errors, _when(with_score))]
    with_length = [r for r in whole if r.length is not None]
    if with_length:
        spread = [r.length_se for r in with_length]
        lengths, name = [r.length or 0.0 for r in with_length], "accepted length"
        out += [drift(name, lengths, spread, (1.0, math.inf)), change(name, lengths, spread, _when(with_length))]
    return [d for d in out if d is not None]


def _when(runs: Sequence[Brief]) -> list[str]:
    return [r.started[:10] or r.id for r in runs]


def plots(runs: Sequence[Brief], found: Sequence[Drift]) -> list[tuple[str, str, Table]]:
    """(question, markup, numbers) of score and accepted length over the runs."""
    bands = {d.what: d.band for d in found if d.band is not None}
    score_rows = []
    for r in runs:
        if r.scored:
            span = stats.wilson(r.correct, r.scored)
            score_rows.append((r, 100 * r.correct / r.scored, 100 * span.low, 100 * span.high))
    length_rows = []
    for r in runs:
        if r.length is not None:
            limits = r.length_interval or stats.Interval(r.length, r.length)
            length_rows.append((r, r.length, limits.low, limits.high))
    score_band = bands.get(STRICT)
    wide = score_band and (100 * score_band[0], 100 * score_band[1])
    length_band = bands.get("accepted length")
    made = [("score", "Does the score drift?", f"{STRICT}, %", score_rows, wide),
            ("length", "Does the accepted length drift?", "accepted length", length_rows, length_band)]  # fmt: skip
    return [
        (question, svg.draw(name, question, _over_time(rows, axis, band)), _numbers(name, axis, rows))
        for name, question, axis, rows, band in made
        if rows
    ]


def _over_time(rows: Sequence[Any], axis: str, band: tuple[float, float] | None) -> Any:
    def picture(ax: Axes) -> None:
        if band is not None:
            ax.axhspan(*band, color=svg.SERIES[0], alpha=0.12, linewidth=0)
        x = range(1, len(rows) + 1)
        ax.plot(x, [r[1] for r in rows], **svg.series(0))
        ax.vlines(x, [r[2] for r in rows], [r[3] for r in rows], color=svg.SERIES[0], linewidth=1.2)
        for i, (run, _, _, _) in enumerate(rows, start=1):
            if not run.complete or run.samples < run.task_size:
                ax.plot([i], [rows[i - 1][1]], marker="o", color=svg.SERIES[0], markerfacecolor=svg.BACK, markersize=7)
        step = max(1, -(-len(rows) // 8))
        ax.set_xticks(range(1, len(rows) + 1, step))
        ax.set_xlim(0.5, len(rows) + 0.5)
        ax.margins(y=0.15)
        ax.set_xlabel("runs in the order of time; hollow: not the whole task")
        ax.set_ylabel(axis)

    return picture


def _numbers(name: str, axis: str, rows: Sequence[Any]) -> Table:
    cells = tuple(
        (str(i), r.started or "not recorded", r.id, f"{value:.4f}", text.interval(low, high), text.count(r.samples))
        for i, (r, value, low, high) in enumerate(rows, start=1)
    )
    return Table(name=name, caption=axis, columns=("", "started", "run", axis, "95 %", "samples"), align="rllrrr",
                 rows=cells)  # fmt: skip

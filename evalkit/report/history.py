"""A cell over time: what its runs scored, and whether the newest is still like those before it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from evalkit import stats
from evalkit.acceptance import of_run
from evalkit.baseline import STRICT
from evalkit.fingerprint import accuracy_fingerprint, verify_facts
from evalkit.online_quant import quant_name
from evalkit.records import Run
from evalkit.report import svg, text
from evalkit.report.drift import Drift, breaks
from evalkit.report.samples import scored
from evalkit.report.text import Table
from evalkit.sameness import samples_sha

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_KEYS = ("task", "target", "draft", "k", "quant", "draft_width", "shots", "temperature", "top_p", "top_k",
             "max_tokens", "limit", "engine", "online_quant_config")  # fmt: skip
WEIGHTS = ("target_sha", "tokenizer_sha", "draft_sha")  # of a setting that stays: their change is marked in its history


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
    result: str = ""  # hash of what was found; the same for bit-identical repeats
    weights: tuple[str | None, ...] = ()  # hashes of WEIGHTS; None where not recorded

    @property
    def score(self) -> float | None:
        return self.correct / self.scored if self.scored else None


def brief(run: Run) -> Brief:
    correct, n = scored(run.samples, STRICT)
    found = of_run(run)
    return Brief(
        id=run.id, cell=cell_key(run), name=cell_name(run), started=str(run.provenance.get("started", "")),
        complete=run.complete, samples=len(run.samples), task_size=run.task_size, correct=correct, scored=n,
        length=found.accepted_length, length_interval=found.interval, length_se=found.se,
        result=samples_sha(run.samples), weights=_weights(run),
    )  # fmt: skip


def _weights(run: Run) -> tuple[str | None, ...]:
    names = WEIGHTS if run.cell.get("k") else [n for n in WEIGHTS if n != "draft_sha"]
    return tuple(run.fingerprint.get(name) for name in names)


def cell_key(run: Run) -> str:
    """A short name of a setting for an address: the same for every run of it, whatever its seed, machine, batch or
    weights. What is asked (task, prompts, documents) and how drafts are accepted are parts of it."""
    cell = run.cell
    asked = {n: v for n, v in accuracy_fingerprint(run).fields.items() if n not in WEIGHTS}
    told = [[str(cell.get(key) or "") for key in CELL_KEYS], asked, verify_facts(cell), run.forced, _data(run)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _data(run: Run) -> list[str]:
    """What the documents are, by their content where it is recorded: a path says where they lie on one machine."""
    files = run.provenance.get("data")
    known = (
        [str(f.get("sha256")) for f in files.values() if isinstance(f, Mapping)] if isinstance(files, Mapping) else []
    )
    return sorted(known) or [str(run.cell.get("data") or "")]


def cell_name(run: Run) -> str:
    cell = run.cell
    words = [str(cell.get("task", "")), str(cell.get("target", ""))]
    words += [str(cell.get("draft", ""))] if cell.get("k") else []
    words += [f"K={cell.get('k')}", quant_name(cell, run.provenance)]
    words += [f"{key.replace('_', ' ')} {cell[key]}" for key in ("temperature", "limit") if cell.get(key)]
    facts = verify_facts(cell)
    words += ["forced"] if run.forced else []
    words += [f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if value != "forced"]
    words += [f"data {PurePath(str(cell['data'])).name}"] if cell.get("data") else []
    return " \u00b7 ".join(w for w in words if w)


def plots(runs: Sequence[Brief], found: Sequence[Drift]) -> list[tuple[str, str, Table]]:
    """(question, markup, numbers) of score and accepted length over the runs."""
    bands = {d.what: d.band for d in found if d.band is not None}
    cuts = [i + 1 for i in breaks(runs)]
    score_rows, length_rows = [], []
    for number, r in enumerate(runs, start=1):
        if r.scored:
            span = stats.wilson(r.correct, r.scored)
            score_rows.append((number, r, 100 * r.correct / r.scored, 100 * span.low, 100 * span.high))
        if r.length is not None:
            limits = r.length_interval or stats.Interval(r.length, r.length)
            length_rows.append((number, r, r.length, limits.low, limits.high))
    score_band = bands.get(STRICT)
    wide = score_band and (100 * score_band[0], 100 * score_band[1])
    length_band = bands.get("accepted length")
    made = [("score", "Does the score drift?", f"{STRICT}, %", score_rows, wide),
            ("length", "Does the accepted length drift?", "accepted length", length_rows, length_band)]  # fmt: skip
    return [
        (question, svg.draw(name, question, _over_time(rows, axis, band, cuts, len(runs))), _numbers(name, axis, rows))
        for name, question, axis, rows, band in made
        if rows
    ]


def _over_time(
    rows: Sequence[Any], axis: str, band: tuple[float, float] | None, cuts: Sequence[int], total: int
) -> Any:
    def picture(ax: Axes) -> None:
        if band is not None:
            start = (cuts[-1] if cuts else 1) - 0.5
            ax.fill_between([start, total + 0.5], *band, color=svg.SERIES[0], alpha=0.12, linewidth=0)
        for part in _between(rows, cuts):
            ax.plot([r[0] for r in part], [r[2] for r in part], **svg.series(0))
        ax.vlines([r[0] for r in rows], [r[3] for r in rows], [r[4] for r in rows], color=svg.SERIES[0], linewidth=1.2)
        for number, run, value, _, _ in rows:
            if not run.complete or run.samples < run.task_size:
                ax.plot([number], [value], marker="o", color=svg.SERIES[0], markerfacecolor=svg.BACK, markersize=7)
        for cut in cuts:
            ax.axvline(cut - 0.5, color=svg.INK, linewidth=1, linestyle="--")
        step = max(1, -(-total // 8))
        ax.set_xticks(range(1, total + 1, step))
        ax.set_xlim(0.5, total + 0.5)
        ax.margins(y=0.15)
        broken = "; dashed: the weights changed" if cuts else ""
        ax.set_xlabel(f"runs in the order of time; hollow: not the whole task{broken}")
        ax.set_ylabel(axis)

    return picture


def _between(rows: Sequence[Any], cuts: Sequence[int]) -> list[list[Any]]:
    """The rows between changes of the weights: no line goes across one."""
    edges = [0, *cuts, math.inf]
    parts = [[r for r in rows if low <= r[0] < high] for low, high in pairwise(edges)]
    return [part for part in parts if part]


def _numbers(name: str, axis: str, rows: Sequence[Any]) -> Table:
    cells = tuple(
        (str(i), r.started or "not recorded", r.id, f"{value:.4f}", text.interval(low, high), text.count(r.samples))
        for i, r, value, low, high in rows
    )
    return Table(name=name, caption=axis, columns=("", "started", "run", axis, "95 %", "samples"), align="rllrrr",
                 rows=cells)  # fmt: skip

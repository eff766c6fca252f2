"""The server's own pages: the index of all runs, one cell over time, and short messages."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from evalkit import stats
from evalkit.report import drift, history, text
from evalkit.report.history import Brief
from evalkit.report.render import page_parts, template


def index_page(runs: Sequence[Brief], broken: Sequence[str], folder: str) -> str:
    """All runs, newest first; settings with several runs lead to their history, one that drifts says so."""
    cells: dict[str, list[Brief]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    odd = [f"{group[0].name}: {d.words}" for group in cells.values() for d in drift.drifts(group) if d.odd]
    rows = [
        {**_row(run), "setting": run.name, "key": run.cell, "siblings": len(cells[run.cell])} for run in reversed(runs)
    ]
    return template("index.html.j2").render(
        **page_parts(), runs=rows, settings=len(cells), odd=odd, broken=broken, folder=folder
    )


def cell_page(runs: Sequence[Brief]) -> str:
    """One setting over time."""
    found = drift.drifts(runs)
    plots = [(question, Markup(markup), table) for question, markup, table in history.plots(runs, found)]
    return template("cell.html.j2").render(
        **page_parts(), name=runs[0].name, runs=[_row(r) for r in reversed(runs)], drifts=found, plots=plots
    )


def message_page(title: str, what: str, fix: str) -> str:
    return template("message.html.j2").render(**page_parts(), title=title, what=what, fix=fix)


def _row(run: Brief) -> dict[str, object]:
    span = stats.wilson(run.correct, run.scored) if run.scored else None
    length = run.length_interval
    return {
        "id": run.id,
        "started": run.started or "not recorded",
        "score": "no score" if run.score is None else text.share(run.score),
        "score_sort": "" if run.score is None else run.score,
        "score_note": "" if span is None else text.interval(span.low, span.high),
        "length": "none" if run.length is None else text.length(run.length),
        "length_sort": "" if run.length is None else run.length,
        "length_note": "" if length is None else text.interval(length.low, length.high, 3),
        "samples": f"{text.count(run.samples)} of {text.count(run.task_size)}",
        "samples_sort": run.samples,
        "complete": run.complete,
    }

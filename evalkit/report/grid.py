"""A sweep on one screen: K against quant mode, and a row a run that can be sorted by any column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.gate.accuracy import is_own_baseline
from evalkit.online_quant import quant_name
from evalkit.report import cards, text
from evalkit.report.best import Best, mentions
from evalkit.report.subject import Subject

MONO_KEYS = ("mono_share", "mono_fraction")  # what engines call the share of steps that their one-launch path served


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cell of the sorted table: text, what it sorts by ("" last), a note under it."""

    text: str
    sort: float | str = ""
    note: str = ""
    span: tuple[float, float] | None = None  # the interval in the unit of `sort`


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    subject: Subject
    outcome: str
    best: str
    entries: tuple[Entry, ...]
    score: str  # the two figures of the small matrix
    length: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Runs of one engine, target and draft: `cells[k][quant]` are those of that setting."""

    name: str
    ks: tuple[int, ...]
    quants: tuple[str, ...]
    cells: dict[tuple[int, str], tuple[Row, ...]]


def columns(found: Sequence[Subject]) -> tuple[tuple[str, str], ...]:
    """(name, alignment) of the columns that the runs have something for."""
    out = [("run", "l"), ("K", "r"), ("quant mode", "l")]
    out += [("engine", "l")] if len({s.engine for s in found}) > 1 else []
    out += [("verdict", "l"), (STRICT, "r"), ("difference to baseline, pt", "r"), ("accepted length", "r"),
            ("of the golden, %", "r")]  # fmt: skip
    out += [("Mono share", "r")] if any(mono(s) is not None for s in found) else []
    out += [("KV bytes a token", "r")] if any(memory(s) for s in found) else []
    return (*out, ("samples", "r"))


def rows(found: Sequence[Subject], best: Sequence[Best]) -> tuple[Row, ...]:
    names = [name for name, _ in columns(found)]
    out = []
    for s in found:
        made = _entries(s)
        judged = cards.NOT_JUDGED if s.verdict is None else s.verdict.outcome.value
        made["verdict"] = Entry(text=judged, sort=judged)
        out.append(Row(subject=s, outcome=judged, best=mentions(best, s.index),
                       entries=tuple(made[name] for name in names), score=made[STRICT].text,
                       length=made["accepted length"].text))  # fmt: skip
    return tuple(out)


def mono(s: Subject) -> float | None:
    value = next((s.run.counters[k] for k in MONO_KEYS if k in s.run.counters), None)
    return float(value) if isinstance(value, int | float) else None


def memory(s: Subject) -> int:
    value = s.run.counters.get("kv_bytes_per_token")
    return value if isinstance(value, int) else 0


def _entries(s: Subject) -> dict[str, Entry]:
    run, found = s.run, s.acceptance
    out = {"run": Entry(text=s.label, sort=s.label), "K": Entry(text=str(s.k), sort=s.k),
           "quant mode": Entry(text=quant_name(run.cell, run.provenance), sort=quant_name(run.cell, run.provenance)),
           "engine": Entry(text=s.engine, sort=s.engine),
           "samples": Entry(text=text.count(len(run.samples)), sort=len(run.samples))}  # fmt: skip
    correct, n = s.scored
    out[STRICT] = Entry(text="no score")
    if n:
        span = stats.wilson(correct, n)
        out[STRICT] = Entry(text=f"{correct / n:.4f}", sort=correct / n, note=text.wilson(correct, n),
                            span=(span.low, span.high))  # fmt: skip
    out["difference to baseline, pt"] = _difference(s)
    out["accepted length"] = Entry(text="none at K=0" if s.k == 0 else "not counted")
    if found.accepted_length is not None:
        note = "" if found.interval is None else text.interval(found.interval.low, found.interval.high, 3)
        note = "forced: drawn, not verified" if run.forced else note
        shown = f"{found.accepted_length:.3f}{' forced' if run.forced else ''}"
        within = None if found.interval is None or run.forced else (found.interval.low, found.interval.high)
        out["accepted length"] = Entry(text=shown, sort=found.accepted_length, note=note, span=within)
    out["of the golden, %"] = _share(s)
    share = mono(s)
    out["Mono share"] = Entry(text="not recorded" if share is None else text.percent(share),
                              sort="" if share is None else share)  # fmt: skip
    size = memory(s)
    out["KV bytes a token"] = Entry(text=text.count(size) if size else "not recorded", sort=size or "")
    return out


def _difference(s: Subject) -> Entry:
    pairs = s.pairs
    if pairs is None:
        if s.baseline is None:
            return Entry(text="no baseline")
        if is_own_baseline(s.run, s.baseline):
            return Entry(text="is the baseline")
        if s.differences:
            names = text.names([d.name for d in s.differences], most=2)
            return Entry(text="not comparable", note=f"baseline differs in {names}")
        return Entry(text="not comparable", note="no question in common" if s.scored[1] else "no scored answer")
    if is_own_baseline(s.run, s.baseline):
        return Entry(text="is the baseline")
    difference = (pairs.up - pairs.down) / pairs.n
    span = stats.tango_interval(pairs.up, pairs.down, pairs.n)
    note = text.points_interval(span.low, span.high).removesuffix(" pt")  # the column says it
    shown = text.signed(100 * difference, 1)
    return Entry(text=shown, sort=difference, note=note, span=(span.low, span.high))


def _share(s: Subject) -> Entry:
    x, value = s.check("accepted length"), s.view.value
    if x.get("ratio") is not None:
        note = "{:.1f} .. {:.1f}".format(*(100 * v for v in x["interval"])) if x.get("interval") else ""
        span = (float(x["interval"][0]), float(x["interval"][1])) if x.get("interval") else None
        return Entry(text=f"{100 * float(x['ratio']):.1f}", sort=float(x["ratio"]), note=note, span=span)
    if s.golden_differs:
        return Entry(text="not comparable", note=f"golden differs in {s.golden_differs}")
    if value is None or s.acceptance.accepted_length is None:
        return Entry(text="no golden" if s.k and s.acceptance.steps else "none")
    ratio = s.acceptance.accepted_length / value.accepted_length
    return Entry(text=f"{100 * ratio:.1f}", sort=ratio, note="not judged")


def _worded(key: str, value: object) -> str:
    """A caption's word: a name says itself what it is, a number does not."""
    if key != "temperature":
        return str(value)
    return f"temperature {value:g}" if isinstance(value, int | float) else "temperature not recorded"


def matrices(rows_: Sequence[Row]) -> list[Matrix]:
    """One a combination of engine, target and draft; none where there is a single cell."""
    parts: dict[str, list[Row]] = {}
    keys = ("task", "target", "draft", "engine", "temperature")
    several = [k for k in keys if len({str(r.subject.run.cell.get(k)) for r in rows_ if r.subject.k}) > 1]
    for row in rows_:
        cell = row.subject.run.cell
        words = [_worded(k, cell.get(k)) if row.subject.k or k != "draft" else "no draft" for k in several]
        parts.setdefault(" ".join(words), []).append(row)
    out = []
    for name, members in parts.items():
        cells: dict[tuple[int, str], tuple[Row, ...]] = {}
        for row in members:
            where = (row.subject.k, quant_name(row.subject.run.cell, row.subject.run.provenance))
            cells[where] = (*cells.get(where, ()), row)
        ks = tuple(sorted({k for k, _ in cells}))
        quants = tuple(dict.fromkeys(quant_name(r.subject.run.cell, r.subject.run.provenance) for r in members))
        out.append(Matrix(name=name, ks=ks, quants=quants, cells=cells))
    return out

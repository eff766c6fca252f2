"""A whole specification judged: each cell against its standards, Holm over them, one outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.config import nearest
from evalkit import sweep
from evalkit.baseline import ReferenceScore, load_reference_scores
from evalkit.compared import SCORES, compared
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.gate.common import FAIL, PASS, checked, combine
from evalkit.gate.figures import Published, judge_figures
from evalkit.gate.judge_run import judge
from evalkit.gate.limits import GateSpec
from evalkit.golden import GoldenValue
from evalkit.judging import places
from evalkit.records import Outcome, Run, Verdict
from evalkit.spec.find import find_file, find_setting, find_word
from evalkit.spec.model import CellSpec, Spec
from evalkit.spec.standards import (
    SETTING,
    as_cell,
    golden_value,
    named_files,
    plain_folder,
    published_of,
    standards_of,
    twin_cell,
    twin_folder,
)
from evalkit.spec.waiver import in_force
from evalkit.store import load_run

REFUSAL = "expected refusal"  # name of the check that a cell broken on purpose gets
Maker = Callable[[Cell], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell with its verdict as it counts: Holm's check is in it, and an expected refusal has become a pass.
    `judged` is the verdict before that."""

    cell: CellSpec
    verdict: Verdict
    judged: Verdict
    run: Run | None = None
    folder: Path | None = None  # where the run is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecResult:
    spec: Spec
    cells: tuple[CellResult, ...]
    outcome: Outcome
    references: tuple[ReferenceScore, ...] = ()  # published scores that were compared with

    @property
    def verdicts(self) -> list[Verdict]:
        return [c.verdict for c in self.cells]


def judge_spec(spec: Spec, *, runs_dir: Path, now: str, make: Maker | None = None) -> SpecResult:
    """Judges every cell. `make` runs what is not stored yet; without it such cells are an error that names them.

    `now` is an ISO time with zone, for `max_age_days`.
    """
    references = load_reference_scores(find_file(spec.scores, spec.folder, "file of published scores"))
    _check_names(spec, references)
    runs = find_runs(spec, runs_dir, make)
    found = []
    for cell in spec.cells:
        if cell.name in runs:
            run = runs[cell.name]
            folder = (find_word(cell.run, runs_dir) if cell.run else None) or runs_dir / run.id
            others = {"plain": _plain(spec, cell, runs_dir, make), "twin": _twin(spec, cell, runs_dir, make)}
            verdict = _judge_run(spec, cell, run, others, references, runs_dir, now)
        else:
            figures = published_of(cell, references)
            golden = golden_value(spec, cell, figures)
            run, folder = None, None
            verdict = _waived(cell, partial(_of_figures, figures=figures, golden=golden, references=references), now)
        found.append(CellResult(cell=cell, verdict=verdict, judged=verdict, run=run, folder=folder))
    done = tuple(_refused(c) for c in _adjusted(spec, found))
    named = {a.name for c in spec.cells for a in c.limits.against} | {c.published for c in spec.cells}
    shown = tuple(ref for ref in references if ref.name in named)
    outcome = combine([c.verdict.outcome for c in done])
    return SpecResult(spec=spec, cells=done, outcome=outcome, references=shown)


def find_runs(spec: Spec, runs_dir: Path, make: Maker | None = None) -> dict[str, Run]:
    """The stored run of every cell that has one, by the cell's name; what is missing is made, or told."""
    out, missing = {}, []
    for cell in spec.cells:
        if cell.run:
            folder = find_word(cell.run, runs_dir)
        elif cell.setting or not (cell.published or cell.figures):
            made = as_cell(cell.setting)
            folder = find_setting(made, runs_dir)
            if folder is None and make is not None:
                out[cell.name] = make(made)
                continue
        else:
            continue
        if folder is None:
            missing.append(cell)
        else:
            out[cell.name] = load_run(folder)
    if missing:
        names = ", ".join(c.name for c in missing)
        can = make is None and all(not c.run for c in missing)
        fix = "add --run-missing" if can else f"name runs that are stored below {runs_dir} (evalkit list)"
        what = f"{len(missing)} of {len(spec.cells)} cells have no stored run: {names}"
        raise EvalkitError(f"{spec.path.name}: {what}", fix)
    return out


def _check_names(spec: Spec, references: Sequence[ReferenceScore]) -> None:
    known = tuple(ref.name for ref in references)
    for i, cell in enumerate(spec.cells):
        asked = [*([cell.published] if cell.published else []), *(a.name for a in cell.limits.against)]
        if odd := [name for name in asked if name not in known]:
            hint = f"{nearest(odd[0], known)}use {', '.join(known)}"
            raise EvalkitError(f"{spec.path.name}: cell {i} names no published score {odd[0]!r} of {spec.scores}", hint)


def _plain(spec: Spec, cell: CellSpec, runs_dir: Path, make: Maker | None) -> Run | None:
    if not cell.plain:
        return None
    folder = plain_folder(cell, runs_dir)
    if folder is None and make is not None and cell.plain == SETTING and cell.setting:
        return make(as_cell({**cell.setting, "k": 0}))
    if folder is None:
        fix = "add --run-missing" if cell.plain == SETTING and cell.setting else "name a stored run at K=0"
        if cell.plain == SETTING and not cell.setting:
            fix += " (setting is the plain run of a cell's own setting, and this cell has none)"
        raise EvalkitError(f"{spec.path.name}: cell {cell.name} has no plain run {cell.plain!r}", fix)
    return load_run(folder)


def _twin(spec: Spec, cell: CellSpec, runs_dir: Path, make: Maker | None) -> Run | None:
    if not cell.twin:
        return None
    made, folder = twin_cell(cell), twin_folder(cell, runs_dir)
    if folder is None and make is not None and made is not None:
        return make(made)
    if folder is None:
        fix = "give a stored run of another layout" if made is None or make else "add --run-missing"
        raise EvalkitError(f"{spec.path.name}: cell {cell.name} has no stored twin {cell.twin!r}", fix)
    return load_run(folder)


def _judge_run(
    spec: Spec, cell: CellSpec, run: Run, others: Mapping[str, Run | None], references: Sequence[ReferenceScore],
    runs_dir: Path, now: str,
) -> Verdict:  # fmt: skip
    have = standards_of(spec, cell, run, runs_dir)
    scores = find_file(spec.scores, spec.folder, "file of published scores")
    where = places(run) | named_files(spec, cell, runs_dir) | {SCORES: scores}
    rests = compared(replace(have, references=tuple(references)), where)

    def judged(limits: GateSpec) -> Verdict:
        found = judge(
            run, baseline=have.baseline, golden=have.golden, references=references, spec=limits, now=now, **others
        )
        return replace(found, notes=found.notes + have.missing, standards=rests)

    return _waived(cell, judged, now)


def _waived(cell: CellSpec, judged: Callable[[GateSpec], Verdict], now: str) -> Verdict:
    """The verdict at the cell's limits, or at its waiver's as long as that is in force; both are said."""
    waiver, own = cell.waiver, judged(cell.limits)
    if waiver is None:
        return own
    if not in_force(waiver, now, cell.name):
        return replace(own, notes=(f"warning: {waiver} is over: judged at the cell's own limits", *own.notes))
    found = judged(waiver.limits)
    more = "; not needed: the cell passes at its own limits" if own.outcome is PASS else ""
    return replace(found, notes=(f"{waiver}{more}", *found.notes))


def _of_figures(
    limits: GateSpec, *, figures: Published, golden: GoldenValue | None, references: Sequence[ReferenceScore]
) -> Verdict:
    return judge_figures(figures, golden=golden, references=references, spec=limits)


def _adjusted(spec: Spec, found: Sequence[CellResult]) -> list[CellResult]:
    """The number of cells that are to pass is allowed for; one broken on purpose is no chance for a false pass."""
    judged = [c for c in found if not c.cell.refused_by]
    if not spec.correction or len(judged) < 2:
        return list(found)
    made = sweep.adjust([c.verdict for c in judged], alpha=spec.alpha, in_order=spec.in_order)
    adjusted = dict(zip([c.cell.name for c in judged], made, strict=True))
    return [replace(c, verdict=v, judged=v) if (v := adjusted.get(c.cell.name)) else c for c in found]


def _refused(found: CellResult) -> CellResult:
    """A cell broken on purpose passes where every check that was to refuse it did."""
    by = found.cell.refused_by
    if not by:
        return found
    failed = [c.name for c in found.verdict.checks if c.outcome is FAIL]
    missed = [name for name in by if name not in failed]
    told = f"refused by {', '.join(failed)}" if failed else f"not refused ({found.verdict.outcome.value})"
    words = f"{told}; broken on purpose, expected to be refused by {', '.join(by)}"
    outcome = FAIL if missed else PASS
    check = checked(REFUSAL, outcome, f"refused by {', '.join(by)}", told, words, refused_by=failed)
    messages = tuple(f"{c.name}: {c.message}" for c in found.verdict.checks if c.outcome is FAIL)
    verdict = Verdict(outcome=outcome, checks=(check,), run_id=found.verdict.run_id, notes=messages,
                      standards=found.verdict.standards)  # fmt: skip
    return replace(found, verdict=verdict)


__all__ = ["REFUSAL", "CellResult", "SpecResult", "find_runs", "judge_spec"]

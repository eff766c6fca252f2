"""What a cell is judged against: its baseline, its golden curve, the figures somebody published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalkit.baseline import ReferenceScore
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.gate.figures import Published
from evalkit.golden import GoldenValue, Standards, defaults_for, lookup, read_curve
from evalkit.golden import find_file as find_golden
from evalkit.judging import read_baseline, read_golden
from evalkit.records import Run
from evalkit.spec.find import find_file, find_setting, find_word
from evalkit.spec.model import CellSpec, Spec

LAYOUTS = ("batch", "tp")  # of a setting, that `twin` may change
SETTING = "setting"  # the word that asks for the cell's own plain run


def standards_of(spec: Spec, cell: CellSpec, run: Run, runs_dir: Path) -> Standards:
    """The standards that the cell names; those it does not name are looked up in golden/."""
    found = defaults_for(run)
    if cell.baseline:
        folder = find_word(cell.baseline, runs_dir)
        baseline = read_baseline(folder or find_file(cell.baseline, spec.folder, "baseline or stored run"))
        found = replace(found, baseline=baseline, missing=_without(found.missing, "baseline"))
    if cell.golden:
        golden = read_golden(golden_place(spec, cell.golden, runs_dir), run)
        found = replace(found, golden=golden, missing=_without(found.missing, "curve"))
    return found


def named_files(spec: Spec, cell: CellSpec, runs_dir: Path) -> dict[str, Path]:
    """The files and runs that a cell names, by role, and the published scores it asks for."""
    out: dict[str, Path] = {}
    if cell.baseline:
        folder = find_word(cell.baseline, runs_dir)
        out["baseline"] = folder or find_file(cell.baseline, spec.folder, "baseline or stored run")
    if cell.golden:
        out["golden"] = golden_place(spec, cell.golden, runs_dir)
    if cell.plain and (folder := plain_folder(cell, runs_dir)) is not None:
        out["plain"] = folder
    if cell.twin and (folder := twin_folder(cell, runs_dir)) is not None:
        out["twin"] = folder
    if cell.limits.against:
        out["scores"] = find_file(spec.scores, spec.folder, "file of published scores")
    return out


def plain_folder(cell: CellSpec, runs_dir: Path) -> Path | None:
    """The stored run at K=0 that a cell names: by word, or that of its own setting."""
    if cell.plain == SETTING and cell.setting:
        return find_setting(as_cell({**cell.setting, "k": 0}), runs_dir)
    return find_word(cell.plain, runs_dir)


def twin_cell(cell: CellSpec) -> Cell | None:
    """The cell's own setting in the layout that its `twin` asks for; None where that names a stored run."""
    name, told, number = cell.twin.partition("=")
    if not told or name not in LAYOUTS:
        return None
    if not cell.setting or not number.isdecimal() or not int(number):
        what = f"cell {cell.name} has the twin {cell.twin!r}"
        raise EvalkitError(what, "give batch=N or tp=N to a cell with a setting, and a stored run to any other")
    return as_cell({**cell.setting, name: int(number)})


def twin_folder(cell: CellSpec, runs_dir: Path) -> Path | None:
    """The stored run in another layout that a cell names: by word, or that of its own setting."""
    made = twin_cell(cell)
    return find_word(cell.twin, runs_dir) if made is None else find_setting(made, runs_dir, batch=True)


def as_cell(setting: Any) -> Cell:
    """A setting in the words of a specification as a Cell."""
    words = {("model" if key == "target" else key): value for key, value in setting.items()}
    return Cell.make(**words)


def golden_place(spec: Spec, word: str, runs_dir: Path) -> Path:
    """A golden curve's file, or the folder of a stored run that is taken as one, or of curves."""
    if not word.endswith((".yaml", ".yml")) and (folder := find_word(word, runs_dir)) is not None:
        return folder
    return next((p for p in (Path(word), spec.folder / word) if p.is_dir()), None) or golden_file(spec, word)


def golden_file(spec: Spec, word: str) -> Path:
    """A golden curve's file, by path or by its name in golden/."""
    try:
        return find_file(word, spec.folder, "golden curve")
    except EvalkitError:
        return find_golden(word)


def published_of(cell: CellSpec, references: Sequence[ReferenceScore]) -> Published:
    """The figures of a cell without a run: its own, or those of the published score it names."""
    if cell.figures is not None:
        return replace(cell.figures, name=cell.name)
    ref = next(r for r in references if r.name == cell.published)
    return Published(
        name=cell.name, target=ref.target, task=ref.task, shots=ref.shots, correct=ref.correct, n=ref.n,
        stderr=ref.stderr, k=ref.k,
    )  # fmt: skip


def golden_value(spec: Spec, cell: CellSpec, found: Published) -> GoldenValue | None:
    """The golden value at the figures' K; None where the cell names no golden or the figures no K."""
    if not found.k or not cell.golden:
        return None
    return lookup(read_curve(golden_file(spec, cell.golden), found.target or None), found.k)


def _without(missing: Sequence[str], word: str) -> tuple[str, ...]:
    return tuple(m for m in missing if word not in m)

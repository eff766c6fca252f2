"""`make reference` takes a stored run again only where the engine of today would make the same one."""

from __future__ import annotations

import json

import pytest

from evalkit import reference
from evalkit.backends.scripted import Scripted
from evalkit.config import Cell
from evalkit.run import run_cell
from tests.evalkit.places import make_place


@pytest.fixture
def stored(tmp_path):
    """A cell and the folder with its complete run, which the engine of today made."""
    place = make_place(tmp_path, 3)
    where = {"model": str(place / "target"), "draft": str(place / "draft"), "data": place / "test.jsonl"}
    cell = Cell.make(k=7, shots=0, **where)
    made = run_cell(cell, runs_dir=place / "runs", backend=lambda c: Scripted(lambda r: " 1\n#### 1", k=7))
    return cell, place, made


def test_a_run_of_the_same_engine_is_kept_and_named(stored):
    cell, place, made = stored
    found = reference.look_for(cell, place / "runs")
    assert found.run is not None and found.run.id == made.id
    code = made.provenance["code"][:12]
    assert found.words == f"kept {made.id}: same cell, checkpoints, engine code {code} and torch"


@pytest.mark.parametrize("change", ["code", "torch", "target", "draft"])
def test_a_run_of_another_engine_is_measured_anew_and_the_line_says_why(stored, monkeypatch, change):
    cell, place, made = stored
    if change == "code":
        monkeypatch.setattr(reference, "code_hash", lambda: "f" * 64)
        why = f"code {'f' * 12} / {made.provenance['code'][:12]}"
    elif change == "torch":
        monkeypatch.setattr(reference, "versions", lambda: {"torch": "9.9"})
        why = f"torch 9.9 / {made.provenance['versions']['torch']}"
    else:
        (place / change / "model.safetensors").write_text("{ }")
        why = f"{change}_sha "
    found = reference.look_for(cell, place / "runs")
    assert found.run is None
    assert found.words.startswith(f"measuring {cell.stem('gradeschool')}: {made.id} has {why}")


def test_a_changed_engine_is_measured_once_and_kept_from_then_on(stored, monkeypatch):
    """The old run stays beside the new one; the newest that fits is the one that is taken."""
    cell, place, made = stored
    monkeypatch.setattr("evalkit.provenance.code_hash", lambda: "e" * 64)
    monkeypatch.setattr(reference, "code_hash", lambda: "e" * 64)
    assert reference.look_for(cell, place / "runs").run is None
    new = run_cell(cell, runs_dir=place / "runs", backend=lambda c: Scripted(lambda r: " 1\n#### 1", k=7))
    found = reference.look_for(cell, place / "runs")
    assert new.id != made.id and found.run is not None and found.run.id == new.id


def test_what_is_not_there_or_not_complete_is_measured(stored):
    cell, place, made = stored
    other = Cell.make(k=3, shots=0, model=str(cell.engine.model), draft=str(cell.engine.draft_path), data=cell.data)
    assert reference.look_for(other, place / "runs").words.endswith("no stored run of it")
    assert reference.look_for(cell, place / "nowhere").run is None
    path = place / "runs" / made.id / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False}))
    found = reference.look_for(cell, place / "runs")
    assert found.run is None and found.words.endswith(f"{made.id} is not complete")

"""The command line's place to run in: see `places.RUN`."""

from dataclasses import replace
from functools import partial

import pytest

from evalkit import run as run_module
from evalkit.backends.scripted import Scripted
from evalkit.records import Check, Verdict
from tests.evalkit.places import CLI_QUESTIONS, make_place


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, with a tiny target, draft and task, and a scripted engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def backend(cell):
        return Scripted(lambda r: f" that is , I think\n#### {int(r.id) + 1}", k=cell.k)

    monkeypatch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
    return make_place(tmp_path, CLI_QUESTIONS, answer="#### {n}")


@pytest.fixture
def verdict(monkeypatch):
    """Lets a test say what the gate finds."""

    def set_to(outcome):
        check = Check(name="accuracy", outcome=outcome, expected="e", found="f", message="all of it", numbers={"n": 1})
        made = Verdict(outcome=outcome, checks=(check,), run_id="r", notes=("a note",))
        monkeypatch.setattr("evalkit.judging.judge", lambda run, **words: replace(made, run_id=run.id))

    return set_to

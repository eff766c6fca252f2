"""Runs of several sessions: counters are summed where they are known, and judged as unknown where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalkit.certificate import refuse
from evalkit.config import Cell
from evalkit.console import run_table
from evalkit.errors import EvalkitError
from evalkit.gate.limits import PathShare
from evalkit.gate.served import path_check
from evalkit.interrupts import Interrupted
from evalkit.records import Outcome, Run
from evalkit.run import run_cell
from evalkit.runfile import load_run
from evalkit.session import Silent
from evalkit.sessions import add_counters, parts, uncounted, words
from evalkit.show import run_text
from tests.evalkit.goldens import make_run
from tests.evalkit.verdicts import make_check, make_verdict

MONO = PathShare(name="mono", share=0.9)
COUNTERS = {"mono_steps": 100, "ordinary_steps": 0, "decode_ticks": 100, "mono_share": 1.0}


def of_sessions(*sessions: dict[str, Any], **more: Any) -> Run:
    return make_run(7, provenance={"sessions": list(sessions)}, counters=COUNTERS, **more)


KILLED = of_sessions({"kept": 0}, {"kept": 40, "counted": True})
ORDERLY = of_sessions({"kept": 0, "counted": True}, {"kept": 40, "counted": True})


@pytest.mark.parametrize(("run", "lost", "n"), [
    (make_run(7), 0, 0), (of_sessions({"kept": 0}), 0, 1), (KILLED, 40, 2), (ORDERLY, 0, 2),
    (of_sessions({"kept": 0}, {"kept": 0}, {"kept": 0}), 0, 1),  # killed before their first answer
    (of_sessions({"kept": 0, "counted": True}, {"kept": 10}, {"kept": 30}), 20, 3),
    (of_sessions({"kept": 0}, {"kept": 60, "counted": True}), 60, 1),  # all answers were there when it was killed
    (of_sessions({"kept": "?"}, {"kept": 40}), 40, 2),
])  # fmt: skip
def test_answers_of_killed_sessions_are_counted(run: Run, lost: int, n: int) -> None:
    assert uncounted(run) == lost and len(parts(run)) == n


def test_a_path_is_not_shown_by_counters_that_leave_answers_out() -> None:
    found = path_check(KILLED, MONO)
    assert found.outcome is Outcome.INCONCLUSIVE and "40 of 60 answers" in found.message
    assert path_check(ORDERLY, MONO).outcome is path_check(make_run(7, counters=COUNTERS), MONO).outcome is Outcome.PASS


def test_no_certificate_where_counters_leave_answers_out() -> None:
    with pytest.raises(EvalkitError, match="counters of 40 of 60 answers"):
        refuse(make_verdict(make_check(), run_id=KILLED.id), KILLED)
    refuse(make_verdict(make_check(), run_id=ORDERLY.id), ORDERLY)


def test_people_see_how_many_sessions_there_were() -> None:
    assert words(make_run(7)) == "" and words(ORDERLY) == "2  (counters are summed)"
    for shown in (run_table(KILLED).plain, run_text(KILLED)):
        assert "2  (counters of 40 of 60 answers are lost: a session was killed)" in shown


def test_counters_are_added_and_shares_are_those_of_the_sums() -> None:
    one = {"mono_steps": 1, "ordinary_steps": 9, "decode_ticks": 10, "mono_share": 0.1, "peak_pages": 5,
           "weight_bytes": 7, "mono_refused": {"batch": 9}, "kernels": {"triton": ["draw"], "twin": []},
           "prefill_delayer": {"interval": 8, "ticks": 10, "hold_decode_interval": 1, "held_share": 0.1}}  # fmt: skip
    two = {"mono_steps": 30, "ordinary_steps": 0, "decode_ticks": 30, "mono_share": 1.0, "peak_pages": 4,
           "weight_bytes": 7, "mono_refused": {"k": 1}, "kernels": {"triton": [], "twin": ["store"]},
           "prefill_delayer": {"interval": 8, "ticks": 30, "hold_decode_interval": 9, "held_share": 0.3}}  # fmt: skip
    assert add_counters(one, two) == {
        "mono_steps": 31, "ordinary_steps": 9, "decode_ticks": 40, "mono_share": 31 / 40, "peak_pages": 5,
        "weight_bytes": 7, "mono_refused": {"batch": 9, "k": 1}, "kernels": {"triton": ["draw"], "twin": ["store"]},
        "prefill_delayer": {"interval": 8, "ticks": 40, "hold_decode_interval": 10, "held_share": 0.25},
    }  # fmt: skip
    assert add_counters({}, two) == two


class StopsAfter(Silent):
    """Ctrl-C when so many answers are there."""

    def __init__(self, n: int) -> None:
        self.left = n

    def sample(self, sample: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def setting(**more: Any) -> Cell:
    return Cell.make(**{"k": 7, "limit": 6, "max_tokens": 24, "threads": 1, "quant": "fp8", "batch": 2, **more})


def test_an_interrupted_run_of_the_engine_has_the_counters_of_both_sessions(tmp_path: Path) -> None:
    """And another setting does not continue it."""
    with pytest.raises(Interrupted):
        run_cell(setting(), runs_dir=tmp_path, watcher=StopsAfter(3))
    (folder,) = tmp_path.iterdir()
    before = json.loads((folder / "run.json").read_text())["counters"]
    other = run_cell(setting(mono="require"), runs_dir=tmp_path)
    assert other.id == f"{folder.name}-2" and len(parts(other)) == 1 and other.counters["mono_share"] == 1.0
    made = run_cell(setting(threads=2), runs_dir=tmp_path)
    assert made.id == folder.name and not uncounted(made) and len(parts(made)) == 2
    stored = sum(step.k > 0 for s in made.samples for step in s.steps)
    assert before["verify_steps"] > 0 and made.counters["verify_steps"] >= stored
    assert made.counters["verify_steps"] - before["verify_steps"] <= stored, "the second session gave up nothing"
    assert path_check(made, MONO).outcome is Outcome.FAIL and path_check(other, MONO).outcome is Outcome.PASS
    assert load_run(folder) == made

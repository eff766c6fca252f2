"""What the command line prints, where the screen is narrow and where a text has brackets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.console import console, run_rows, run_table, runs_table, sweep_reason, verdict_text
from evalkit.records import Check, Outcome, Verdict
from tests.evalkit.test_gate import make_run

ROOT = Path(__file__).parents[2]
CONSOLES = ["evalkit/console.py", "evalkit/progress.py"]  # the second draws a bar, its text without markup


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_screen_breaks_a_verdict_between_words(width: int) -> None:
    message = "strict-match 0.9363 (1235/1319) against baseline 0.9409 (1241/1319), 1319 paired, 14 lost and 8 won"
    check = Check(name="accuracy", outcome=Outcome.INCONCLUSIVE, expected="x", found="y", message=message)
    verdict = Verdict(outcome=Outcome.INCONCLUSIVE, checks=(check,), run_id="r", notes=("one note " * 12,))
    lines = verdict_text(verdict, width).plain.splitlines()
    assert all(len(line) <= width for line in lines)
    assert set(message.split()) <= {word for line in lines for word in line.split()}
    assert len(verdict_text(verdict).plain.splitlines()) == 3  # a pipe gets one line a check


@pytest.mark.parametrize("quant", ["kv=fp8 kv[dense]=bf16", "w=ptpc_fp8 kv[/dense]=bf16", ":smile: [red]"])
def test_brackets_and_colons_of_a_run_are_printed_as_they_are(quant: str) -> None:
    run = make_run(4)
    run = replace(run, id=f"r {quant}", cell={**run.cell, "quant": quant}, stopped=quant)
    out = console()
    verdict = Verdict(outcome=Outcome.FAIL, checks=(), run_id=quant, notes=(quant,))
    said: list[Any] = [run_table(run), runs_table([run]), f"run: {quant}", verdict_text(verdict), sweep_reason(verdict)]
    for one in said:
        with out.capture() as got:
            out.print(one)
        assert quant in got.get()


def test_a_run_that_stopped_early_says_what_that_saved() -> None:
    run = make_run(10, seconds=20.0, stopped="failure after 10 of 40 questions", expected=40, task_size=40)
    assert dict(run_rows(run))["stopped early"] == "failure after 10 of 40 questions; about 60 s not spent"
    assert dict(run_rows(replace(run, samples=())))["stopped early"] == "failure after 10 of 40 questions"


def test_every_console_of_the_product_is_one_that_prints_text_as_it_is() -> None:
    made = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in ("evalkit", "engine", "tools")
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    assert [name for name, text in made.items() if re.search(r"\bConsole\(", text)] == CONSOLES
    assert not [name for name, text in made.items() if "from rich import print" in text or "from_markup" in text]
    bare = [name for name, text in made.items() for args in re.findall(r"TextColumn\((.*)\)", text)
            if "markup=False" not in args]  # fmt: skip
    assert bare == []


def test_a_run_on_gpus_says_what_it_spent() -> None:
    run = replace(make_run(), seconds=90.0)
    on_gpus = replace(run, cell={**run.cell, "tp": 4}, fingerprint={**run.fingerprint, "device": "cuda"})
    assert dict(run_rows(on_gpus))["time"] == "90.0 s  (6.0 GPU-minutes on 4 GPUs)"
    assert dict(run_rows(run))["time"] == "90.0 s"

"""The command that makes a run again: of every setting, a server's too, the same setting comes of it."""

from __future__ import annotations

import inspect
import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.cli import main
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.records import Run, Stopping
from evalkit.report import again
from evalkit.servers.spec import ServerSpec
from tests.evalkit.report.makers import make_run


def cell_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Cell:
    """The setting that `evalkit run` makes of these words."""
    found: list[Cell] = []

    def stop(cell: Cell, *args: Any, **more: Any) -> Run:
        found.append(cell)
        raise EvalkitError("stop", "here")

    monkeypatch.setattr("evalkit.commands.run.run_with_progress", stop)
    assert main(words) == 2
    return found[0]


@pytest.mark.parametrize(
    "words",
    [
        "--k 3 --quant fp8 --mono require --batch 2 --graphs atom --kernels twin --tp 2 --max-tokens 50 --seed 4",
        "--quant m31flash-c1-4 --batch 64 --mono off",
        "--quant m31flash-c1-4 --prefill-decode-interval 0",
        "--prefill-decode-interval 8",
        "--quant m31flash-c8-16",
        "--engine vllm --model org/name --k 7 --quant fp8 --tp 4 --draft-model org/draft --server-arg=--a=b c "
        "--server-arg --enforce-eager --server-env X=1 --graph-sizes 1,2 --trust-remote-code --start-timeout 9",
        "--base-url http://h:8000/v1 --model org/name --k 0 --stream --concurrency 3 --thinking off --no-smoke "
        "--endpoint chat --revision r1 --served-name n --retries 0 --request-timeout 5 --extra-body {}",
        "--engine sglang --model org/name --draft FOLDER --k 5",
    ],
)
def test_the_command_of_any_setting_makes_that_setting(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server's as of our own engine's: without its options the command would run the built-in engine."""
    (tmp_path / "mine").mkdir()
    parts = shlex.split(words.replace("FOLDER", str(tmp_path / "mine")).replace("--a=b c", "'--a=b c'"))
    cell = cell_of(["run", *parts], monkeypatch)
    run = make_run(3, cell=json.loads(json.dumps(cell.to_json())))
    line = shlex.split(again.command(run))
    assert line[:2] == ["evalkit", "run"]
    made, asked = (json.dumps(c.to_json()) for c in (cell_of(line[1:], monkeypatch), cell))
    assert made.replace('"draft": "mine"', "") == asked.replace('"draft": "mine"', "")


def test_a_run_that_stops_early_and_one_with_a_secret_say_so_in_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(3)
    told = Stopping(margin=0.02, alpha=0.05, beta=0.1, final_share=0.1, planned=9, seed=0, baseline="b",
                    baseline_sha="s")  # fmt: skip
    early = again.command(replace(run, cell={**run.cell, "stop_early": True}, stopping=told))
    assert early.endswith("--stop-early --margin 0.02")
    words = ["run", "--engine", "vllm", "--model", "org/name", "--server-arg=--api-key=s3", "--server-env=A_TOKEN=s4"]
    secret = replace(run, cell=cell_of(words, monkeypatch).to_json())
    assert "s3" not in again.reproduce(secret) and "s4" not in again.reproduce(secret)
    assert "# *** stands for a value that is secret and not stored: put it in" in again.reproduce(secret)


def test_a_task_of_one_s_own_is_given_by_its_file() -> None:
    run = make_run(3)
    made = replace(run, cell={**run.cell, "task": "mine"}, provenance={**run.provenance, "task_path": "/t/mine.yaml"})
    assert "--task /t/mine.yaml " in again.command(made)
    assert "# /t/mine.yaml is a path of the machine that ran this" in again.reproduce(made).splitlines()


def test_every_part_of_a_setting_has_its_option_here() -> None:
    """A new one that is forgotten would be dropped from the command in silence."""
    asked = set(inspect.signature(Cell.make).parameters)
    assert asked - set(again.FLAGS) == {"prefix_cache", "stop_early", "server"}, "these have their own lines"
    known = {f.name for f in fields(ServerSpec)}
    assert set(again.SERVER) | set(again.NO_OPTION) <= known

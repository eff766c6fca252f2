"""Every command in windows of 60, 80 and 120 columns, under a real pseudo-terminal, and in a pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import evalkit.run as run_module
from evalkit.backends.scripted import Scripted
from evalkit.cli import main
from evalkit.config import ROOT
from evalkit.layout import fold_lines
from evalkit.store import load_run
from tests.evalkit.places import make_place

pty = pytest.importorskip("pty")  # of POSIX
WIDTHS = [60, 80, 120]
N = 12
CHILD = """
import json, sys
from evalkit.cli import main
for words in json.loads(sys.argv[1]):
    print("=====", len(words)); print("exit", main(words)); sys.stdout.flush()
"""
NAMES = re.compile(r"gradeschool-target-draft-k\d-\w+-[0-9a-f]{8}")
NUMBER = re.compile(r"[+-]?\d[\w./+-]*\d|\d")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stored runs of a scripted engine, and what the commands read."""
    folder = make_place(tmp_path_factory.mktemp("windows"), N, answer="#### {n}")

    def backend(cell: Any) -> Scripted:
        return Scripted(lambda r: f" that is , I think\\n#### {int(r.id) + 1}", k=cell.k)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
        for k in ("3", "7"):
            words = ["run", "--model", "target", "--draft", "draft", "--data", "test.jsonl", "--device", "cpu"]
            assert main([*words, "--no-gate", "--k", k, "--no-report", "--runs-dir", "runs"]) == 0
    return folder


@pytest.fixture(scope="module")
def commands(place: Path) -> list[list[str]]:
    """A line of each command that prints for people and waits for nobody."""
    runs = sorted(p.name for p in (place / "runs").iterdir())
    event = place / "event.json"
    event.write_text(json.dumps({"zen": "ping"}))
    golden = "gradeschool-m3_dspark"
    spec = str(ROOT / "docs/examples/m31flash.yaml")
    return [
        ["list"], ["show", runs[1]], ["gate", runs[1]], ["gate", *runs], ["gate", spec],
        ["gate", spec, "--audit", "--draws", "10"], ["report", runs[1]], ["report", runs[0], "-o", "."],
        ["golden", "show", golden], ["golden", "show", "minimaxm31flash_dspark"], ["golden", "diff", golden, golden],
        ["golden", "check", str(ROOT / "golden" / f"{golden}.yaml"), "nothing.yaml"],
        ["golden", "record", runs[0], "-o", "g.yaml", "--yes"],
        ["baseline", "record", runs[0], "-o", "b.json", "--yes"],
        ["certificate", "make", runs[0], "-o", "c.json"], ["ci", "plan", str(event), "--event", "push"],
        ["catalogue", "check", str(event)], ["show", "no-such-run"], ["list", "--runs-dir", "empty"],
        ["gate", "--help"], ["report", "--help"],
    ]  # fmt: skip


def in_a_window(commands: Sequence[Sequence[str]], columns: int, place: Path, code: str = CHILD) -> str:
    """What the commands print on a terminal of so many columns."""
    import fcntl
    import struct
    import termios

    lead, follow = pty.openpty()
    fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen([sys.executable, "-c", code, json.dumps(commands)], cwd=place, env=environment(),
                             stdin=follow, stdout=follow, stderr=follow, close_fds=True)  # fmt: skip
    os.close(follow)
    out = b""
    while True:
        try:
            part = os.read(lead, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        out += part
    os.close(lead)
    assert child.wait() == 0, out.decode()[-2000:]
    return out.decode().replace("\r\n", "\n")


def in_a_pipe(commands: Sequence[Sequence[str]], place: Path) -> str:
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(commands)], cwd=place, env=environment(),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=True)  # fmt: skip
    return done.stdout.decode()


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    return kept | {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def piped(commands: list[list[str]], place: Path) -> str:
    return in_a_pipe(commands, place)


def test_a_pipe_gets_plain_text_at_full_width(piped: str, place: Path) -> None:
    assert "\x1b" not in piped and "\u2212" not in piped and "\u2500" not in piped
    rows = [line for line in piped.split("\n") if NAMES.match(line) and f"{N}/{N}" in line]
    assert len(rows) == 2, "a line a run"
    assert max(map(len, piped.split("\n"))) > 120, "and a line a check"
    for run in (load_run(p) for p in (place / "runs").iterdir()):
        assert run.id in piped


@pytest.mark.parametrize("width", WIDTHS)
def test_a_window_is_never_overrun_and_nothing_is_cut(
    width: int, commands: list[list[str]], piped: str, place: Path
) -> None:
    said = in_a_window(commands, width, place)
    assert "\x1b[" in said, "colours, on a terminal"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    lines = plain.split("\n")
    # a command to copy stays one line; a path that is wider than the window is not broken
    over = [line for line in lines if len(line) > width and not line.startswith("fix: ")]
    assert not [line for line in over if max(map(len, line.split())) + 4 <= width], over
    assert {x for x in NAMES.findall(piped)} <= {x for x in NAMES.findall(plain)}
    lost = set(NUMBER.findall(piped)) - set(NUMBER.findall(plain))
    assert not lost, lost
    whole = {line for line in plain.split("\n") if line.startswith("fix: ")}
    assert whole == {line for line in piped.split("\n") if line.startswith("fix: ")}


BAR = """
import json, sys
from evalkit.progress import Progress
from tests.evalkit.test_golden import make_run
bar, run = Progress(), make_run(7)
bar.start("r", [], 60, ["a note that is longer than a narrow window is wide, so that it has to be folded"])
for sample in run.samples:
    bar.sample(sample)
bar.stop()
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_progress_bar_cuts_no_figure(width: int, place: Path) -> None:
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", in_a_window([], width, place, BAR))
    assert re.search(r"60/60.*strict-match 0\.950", said) and re.search(r"accepted length 5\.\d\d\b", said)
    assert re.search(r"\d tok/s", said) and "\u2026" not in said
    lines = [line for part in said.split("\n") for line in part.split("\r")]
    assert all(len(line) <= width for line in lines), [line for line in lines if len(line) > width]


def test_columns_speaks_before_the_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "environment", partial(_with_columns, environment()))
    said = in_a_window([["list"]], 120, place)
    assert all(len(line) <= 60 for line in re.sub(r"\x1b\[[0-9;]*m", "", said).split("\n"))
    assert "\u001b" not in in_a_pipe([["list"]], place) and f"{N}/{N}  " in in_a_pipe([["list"]], place)


def _with_columns(kept: dict[str, str]) -> dict[str, str]:
    return kept | {"COLUMNS": "60"}


def test_a_long_setting_of_a_run_is_folded_and_kept(place: Path) -> None:
    from evalkit.show import run_text

    run = load_run(next((place / "runs").iterdir()))
    long = "w=ptpc_fp8 kv=nvfp4 " * 6 + "x" * 70
    text = run_text(replace(run, cell={**run.cell, "quant": long}), 60)
    assert set(long.split()) <= set(text.split())
    assert all(len(line) <= 60 or "x" * 70 in line for line in text.split("\n"))
    assert fold_lines(text, 60) == text

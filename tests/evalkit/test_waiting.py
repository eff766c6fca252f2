"""Threads that wait for each other sleep soon, unless the user says otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.cli import main
from evalkit.waiting import SPINS, wait_briefly


@pytest.mark.parametrize("env", [{}, {"GOMP_SPINCOUNT": ""}])
def test_nothing_said_is_a_short_wait(env: dict[str, str]) -> None:
    wait_briefly(env)
    assert env["GOMP_SPINCOUNT"] == SPINS


@pytest.mark.parametrize("env", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_a_user_says_stays(env: dict[str, str]) -> None:
    before = dict(env)
    wait_briefly(env)
    assert env == before


@pytest.mark.parametrize("words", [["run", "--limit", "3"], ["serve", "--port", "0"]])
def test_it_is_said_before_torch_is_loaded(tmp_path: Path, words: list[str]) -> None:
    """A count that comes after torch would change nothing."""
    code = f"""
import sys
import evalkit.commands.common as common, evalkit.commands.serve as serve
class Said(BaseException): pass
def watched(env):
    assert "torch" not in sys.modules, "too late"
    raise Said
common.wait_briefly = serve.wait_briefly = watched
from evalkit.cli import main
try:
    main({words!r})
except Said:
    print("said")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "said"), done.stderr


def test_a_server_s_threads_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(env: object) -> None:
        raise AssertionError("said to a server")

    monkeypatch.setattr("evalkit.commands.common.wait_briefly", never)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--base-url", "http://127.0.0.1:9/v1", "--k", "3", "--limit", "3", "--start-timeout", "1"]) == 2

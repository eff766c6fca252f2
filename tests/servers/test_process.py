"""A server that evalkit starts ends with evalkit, however evalkit ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalkit.config import ROOT
from evalkit.servers.process import start

STARTS = """
import sys, time
from pathlib import Path
from evalkit.servers.process import start
made = start([sys.executable, "-c", "import time; time.sleep(60)"], name="sleeper", log=Path(sys.argv[1]), env={})
print(made.popen.pid, flush=True)
time.sleep(60)
"""


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_key_that_a_server_prints_is_in_no_message(tmp_path, monkeypatch):
    """Servers log their arguments; their last line goes into errors and progress."""
    monkeypatch.setenv("EVALKIT_API_KEY", "sk-of-ours")
    said = "echo 'args: {key: sk-server, other: sk-of-ours}'; exit 3"
    command = ["sh", "-c", said, "--api-key", "sk-server", "--max-tokens", "4096"]
    with start(command, name="x", log=tmp_path / "log", env={}) as process:
        process.popen.wait(timeout=20)
        error = process.died()
    assert "args: {key: ***, other: ***}" in error.what and "4096" not in process.hidden


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has ended")
def test_a_server_ends_when_evalkit_is_killed(tmp_path):
    words = [sys.executable, "-c", STARTS, str(tmp_path / "log")]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as evalkit:
        assert evalkit.stdout is not None
        server = int(evalkit.stdout.readline())
        try:
            assert state(server) not in ("gone", "Z")
            evalkit.send_signal(signal.SIGKILL)
            evalkit.wait()
            end = time.monotonic() + 20
            while state(server) not in ("gone", "Z") and time.monotonic() < end:
                time.sleep(0.05)
            assert state(server) in ("gone", "Z")
        finally:
            evalkit.kill()
            if state(server) not in ("gone", "Z"):
                os.kill(server, signal.SIGKILL)

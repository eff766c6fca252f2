"""`evalkit serve` as a process: it starts, answers, drains on a signal and exits."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engine.tiny import Tiny


@contextmanager
def process(tiny: Tiny, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the tiny model on a free port, and its address."""
    command = [sys.executable, "-m", "evalkit.cli", "serve", "--model", str(tiny.target), "--draft", str(tiny.draft)]
    command += ["--k", "3", "--threads", "1", "--device", "cpu", "--port", "0", *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"} | environment
    child = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stderr is not None
        said = child.stdout.readline()
        found = re.search(r"http://\S+?:\d+", said)
        assert found, said + child.stderr.read()
        yield child, found.group()
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def post(url: str, **body: Any) -> Any:
    raw = json.dumps({"temperature": 0, "ignore_eos": True, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", raw, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_takes_nothing_new(tiny: Tiny, number: signal.Signals) -> None:
    with process(tiny) as (child, url):
        assert json.loads(post(url, prompt="ab", max_tokens=4))["usage"]["completion_tokens"] == 4
        got: list[str] = []
        # 64 prompts of 100 tokens: enough ticks for the signal to come in between
        asked = {"prompt": [[i + 3] for i in range(50)] * 2, "max_tokens": 100, "stream": True}
        running = threading.Thread(target=lambda: got.append(post(url, **asked)))
        running.start()
        deadline = time.monotonic() + 30
        while 'evalkit:running{model_name="target"} 0.0' in page(url) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(number)
        running.join(60)
        assert child.wait(60) == 0
        out, err = child.communicate()
        assert "draining: " in out and "stopped" in out and "draining: 0 " not in out and err == ""
        assert got and got[0].rstrip().endswith("data: [DONE]"), "the running request was cut"
        host, port = url.removeprefix("http://").split(":")
        with pytest.raises(OSError), socket.create_connection((host, int(port)), timeout=5):
            pass


def test_a_band_that_is_not_served_is_told(tiny: Tiny) -> None:
    with process(tiny, "--preset", "m31flash-c32-48", "--batch", "4") as (child, _):
        child.terminate()
        _, err = child.communicate(timeout=60)
        assert err.splitlines()[:2] == [
            "note: m31flash-c32-48: K is 3, the band's is 7",
            "note: m31flash-c32-48: up to 4 decode together, the band is of 32 to 48 at once",
        ]


def page(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        return response.read().decode()


def test_a_drain_that_is_too_short_says_what_was_cut(tiny: Tiny) -> None:
    with process(tiny, "--drain-seconds", "0") as (child, url):
        asked = {"prompt": [[i + 3] for i in range(50)] * 4, "max_tokens": 100}
        told: list[tuple[int, str]] = []

        def ask() -> None:
            with pytest.raises(urllib.error.HTTPError) as e:
                post(url, **asked)
            told.append((e.value.code, json.loads(e.value.read())["error"]["code"]))
            e.value.close()

        running = threading.Thread(target=ask)
        running.start()
        while 'evalkit:running{model_name="target"} 0.0' in page(url):
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 2
        running.join(60)
        assert told == [(503, "cut")]
        assert re.search(r"error: [1-9]\d* prompts were cut after 0 s", child.communicate()[1])


def test_a_port_in_use_is_said_in_one_line(tiny: Tiny) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = ["serve", "--model", str(tiny.target), "--k", "0", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            [sys.executable, "-m", "evalkit.cli", *words], capture_output=True, text=True, timeout=60,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    assert done.returncode == 2 and "cannot listen on 127.0.0.1:" in done.stderr and "fix: " in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_key_of_a_process_is_asked_for_and_not_printed(tiny: Tiny) -> None:
    with process(tiny, "--api-key-env", "MY_KEY", MY_KEY="sk-test-3141") as (child, url):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(url, prompt="a")
        assert refused.value.code == 401
        refused.value.close()
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 0 and "sk-test" not in out + err


def test_help_loads_neither_torch_nor_a_web_framework() -> None:
    code = ("import sys; from evalkit.cli import main; code = main(['serve', '--help']); "
            "print(code, sorted({'torch', 'fastapi', 'uvicorn', 'lm_eval'} & set(sys.modules)))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout.rstrip().endswith("0 []") and "--drain-seconds" in done.stdout

"""A fault-injecting server in a process of its own, and a task of sums to ask it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalkit.config import Cell
from evalkit.servers.spec import ServerSpec

SCRIPT = Path(__file__).parent / "faulty.py"


class Faulty:
    """A running server. `tell` changes its state and gives what it counted."""

    def __init__(self, **state: Any) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--state", json.dumps(state)], stdout=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())
        self.url = f"http{'s' if state.get('tls') else ''}://127.0.0.1:{self.port}/v1"

    def tell(self, **words: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/_control", data=json.dumps(words).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)

    def stop(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


@pytest.fixture
def faulty() -> Iterator[Any]:
    """Starts servers; all of them end with the test."""
    made: list[Faulty] = []

    def start(**state: Any) -> Faulty:
        made.append(Faulty(**state))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.fixture
def sums(tmp_path: Path) -> Any:
    """A data file of n sums."""

    def write(n: int) -> Path:
        rows = [{"question": f"{i} + 1?", "answer": f"It is {i} + 1 = {i + 1} .\n#### {i + 1}"} for i in range(n)]
        path = tmp_path / f"sums{n}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def cell_of(
    server: Faulty,
    data: Path,
    *,
    k: int = 4,
    engine: str = "vllm",
    draft: str = "dspark",
    model: str = "faulty",
    **words: Any,
) -> Cell:
    """The Cell of a server that runs."""
    limits = {"request_timeout": 2.0, "stall_timeout": 1.0, "grace": 2.0}
    spec = ServerSpec(engine=engine, base_url=server.url, **{**limits, **words})
    return Cell.make(model=model, k=k, draft=draft, data=data, server=spec)

"""Starting a real server, and ending all of its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.realservers.install import Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server is started, and what evalkit is told of it: --engine, --served-name."""

    label: str
    profile: str
    name: str
    port: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def started(server: Server, log: Path, seconds: float = 420.0) -> Iterator[float]:
    """The server, healthy, with the seconds that took; its whole process group is stopped at the end."""
    with log.open("w") as out:
        child = subprocess.Popen(
            server.command, env=os.environ | server.environment, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        began = time.monotonic()
        while not healthy(server.url):
            if child.poll() is not None:
                raise Failed(f"{server.label} ended while it started (exit {child.returncode}); see {log.name}")
            if time.monotonic() - began > seconds:
                raise Failed(f"{server.label} was not ready after {seconds:.0f} s; see {log.name}")
            time.sleep(1)
        yield time.monotonic() - began
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False

"""A server that evalkit starts: its own process group, its log, and the end of all of it, however the run ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.errors import EvalkitError
from evalkit.servers.spec import HIDDEN, redact_args, secret_name

DRAIN = 30.0  # seconds from SIGTERM to SIGKILL
SAY_EVERY = 15.0
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


@dataclass(slots=True)
class Process:
    """A running server. `stop` ends the whole group; leaving the `with` does, too."""

    popen: subprocess.Popen[bytes]
    log: Path
    name: str
    command: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()  # secrets of its command and environment, which servers like to print

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        return self.popen.poll()

    def stop(self, drain: float = DRAIN) -> None:
        """SIGTERM to the group, then SIGKILL to whatever is left. Workers that outlive the first process go too."""
        group = self.popen.pid  # start_new_session made it the leader
        if _signal(group, signal.SIGTERM):
            end = time.monotonic() + drain
            while time.monotonic() < end and (self.popen.poll() is None or _signal(group, 0)):
                time.sleep(0.05)
            _signal(group, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=5)

    def last_line(self) -> str:
        """The last line of its log, without its secrets."""
        words = last_line(self.log)
        for secret in self.hidden:
            words = words.replace(secret, HIDDEN)
        return words

    def died(self) -> EvalkitError:
        """The error of a server that ended by itself: its exit code and its log's last lines."""
        words = f"the {self.name} server ended with exit code {self.exit_code}"
        return EvalkitError(f"{words}: {self.last_line()}", f"read {self.log}; the same command continues")


def _follow() -> None:
    """In the child, before its program: SIGTERM when evalkit ends, even by SIGKILL. Linux alone can do that."""
    assert _PRCTL is not None
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


def secrets(command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of a command and of variables whose names say that they are secret, those of 4 characters and more."""
    shown = zip(command, redact_args(command), strict=True)
    values = [raw.partition("=")[2] if raw.startswith("-") else raw for raw, safe in shown if raw != safe]
    values += [value for name, value in {**os.environ, **env}.items() if secret_name(name)]
    return tuple(dict.fromkeys(v for v in values if len(v) >= 4))


def start(command: Sequence[str], *, name: str, log: Path, env: Mapping[str, str]) -> Process:
    """Starts the command in a session of its own, with its output in `log`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            out.write(f"\n$ {' '.join(redact_args(command))}\n".encode())
            out.flush()
            popen = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, **env}, start_new_session=True, preexec_fn=_follow if _PRCTL else None,
            )  # fmt: skip
    except FileNotFoundError:
        raise EvalkitError(f"{command[0]} is not there to start {name}",
                           "install it, or name the command with --server-program") from None  # fmt: skip
    except OSError as e:
        raise EvalkitError(f"{name} can't be started ({e.strerror or e})", "see --server-program") from None
    return Process(popen=popen, log=log, name=name, command=tuple(command), hidden=secrets(command, env))


def wait_ready(
    process: Process | None,
    ready: Callable[[], str],
    *,
    timeout: float,
    name: str,
    say: Callable[[str], None] | None = None,
    every: float = 1.0,
) -> None:
    """Asks `ready` until it gives "" ; what it gives otherwise is why not, and is told from time to time.

    Raises EvalkitError when the process dies or the time is over.
    """
    say = say or _say
    began = said = time.monotonic()
    while True:
        if process is not None and process.exit_code is not None:
            raise process.died()
        why = ready()
        now = time.monotonic()
        if not why:
            if now - began > every:
                say(f"{name} is ready after {now - began:.0f} s")
            return
        if now - began > timeout:
            tail = f"; its log ends: {process.last_line()}" if process else ""
            fix = "start it, correct --base-url, or raise --start-timeout"
            if process:
                fix = "raise --start-timeout, or look at the server's log"
            raise EvalkitError(f"{name} is not ready after {timeout:.0f} s ({why}){tail}", fix)
        if now - said >= SAY_EVERY:
            said = now
            tail = f"; {process.last_line()}" if process else ""
            say(f"waiting for {name}: {now - began:.0f} s, {why}{tail}")
        time.sleep(every)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def last_line(path: Path, limit: int = 160) -> str:
    """The last line with something in it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "no log"
    words = next((line.strip() for line in reversed(lines) if line.strip()), "an empty log")
    return "".join(c for c in words if c.isprintable())[-limit:]


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)

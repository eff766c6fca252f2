"""A run that is asked to stop: Ctrl-C and SIGTERM end it the same way, and what is kept is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """A run was asked to stop. What it has is kept; the same command continues it."""

    def __init__(self, *, kept: int, total: int, number: int) -> None:
        self.kept, self.total, self.exit_code = kept, total, 128 + number
        told = f"{kept} of {total} samples kept; the same command continues"
        super().__init__(told if kept else "no sample was finished; the same command starts again")


@contextmanager
def signals() -> Iterator[list[int]]:
    """SIGTERM stops a run as Ctrl-C does; what is yielded names the signal that came."""
    caught = [int(signal.SIGINT)]

    def stop(number: int, frame: object) -> None:
        caught[0] = number
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGTERM, before)

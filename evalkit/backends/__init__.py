"""What runs the requests of a cell. `Backend` is all that evalkit asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import Completion, Request
from evalkit.config import Cell
from evalkit.errors import EvalkitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that came to nothing. It is counted as failed, never as a wrong answer."""

    id: str
    error: str


OnFinish = Callable[[Completion | Failure], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Log-likelihood of a continuation, and whether greedy decoding would have given it."""

    logprob: float
    greedy: bool


class Backend(Protocol):
    """An engine, ready to run. One Backend serves one cell."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What "auto" came to: device (cpu | cuda), dtype, and device_name in words."""
        ...

    @property
    def counters(self) -> Mapping[str, Any]:
        """The engine's own counts, as plain JSON values."""
        ...

    def generate(self, requests: Sequence[Request], on_finish: OnFinish) -> None:
        """Runs all requests and hands over each result, in any order, the moment it is finished.

        An exception of `on_finish` ends it: requests that run are given up, none is started, and it is passed on.
        That is how a run is interrupted, and how it stops early.
        """
        ...

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Scores (context, continuation) pairs, in order."""
        ...


BackendFactory = Callable[[Cell], Backend]


def make_backend(cell: Cell, name: str = "inprocess") -> Backend:
    """The backend called `name`, loaded and ready."""
    if name == "inprocess":
        from evalkit.backends.inprocess import InProcess

        return InProcess(cell)
    raise EvalkitError(f"unknown backend {name!r}", "use inprocess")

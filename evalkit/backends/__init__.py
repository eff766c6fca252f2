"""What runs the requests of a cell. `Backend` is all that evalkit asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import Completion, Request
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.records import RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that came to nothing. It is counted as failed, never as a wrong answer."""

    id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Completion):
    """A Completion of a server, which may not tell token ids or steps.

    `tokens` is the server's own count. `reasoning` is thinking that came in a field of its own; `counts` acceptance in
    totals; `attempts` how many requests it took.
    """

    tokens: int
    reasoning: str = ""
    counts: RequestCounts | None = None
    attempts: int = 1


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


def make_backend(cell: Cell, name: str = "") -> Backend:
    """The backend called `name` (by default what the cell needs), ready. Whoever made one that has `close` calls it."""
    name = name or ("http" if cell.server is not None else "inprocess")
    if name == "http":
        from evalkit.backends.http import open_http

        return open_http(cell)
    if name == "inprocess":
        from evalkit.backends.inprocess import InProcess

        return InProcess(cell)
    raise EvalkitError(f"unknown backend {name!r}", "use inprocess or http")

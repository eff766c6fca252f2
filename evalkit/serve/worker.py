"""The thread that owns the LLM: requests join and leave its running batch between two ticks.

Everything public is called on the event loop's thread, and everything a request is told arrives there.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import Request, TokenLogprob, Update
from engine.errors import EngineError
from evalkit.serve.errors import ApiError
from evalkit.serve.stats import Snapshot, Stats


class Engine(Protocol):
    """What the thread asks of engine.LLM."""

    @property
    def busy(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def step(self) -> list[Update]: ...
    def cancel(self, request_id: str) -> bool: ...
    def logprobs(self, ids: Sequence[int], first: int = 1, top: int = 1) -> list[TokenLogprob]: ...


Event = Update | ApiError
Deliver = Callable[[Event], None]


@dataclass(slots=True)
class _Scoring:
    ids: Sequence[int]
    first: int
    top: int
    future: asyncio.Future[list[TokenLogprob]]


class Worker:
    """Runs an engine in a thread. `broken` says why it runs no more, '' while it does."""

    def __init__(self, engine: Engine, stats: Stats, *, max_queue: int, gauges: Callable[[], dict[str, int]]) -> None:
        self._engine, self._stats, self._max_queue, self._gauges = engine, stats, max_queue, gauges
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._deliver: dict[str, Deliver] = {}
        self._postponed: list[_Scoring] = []  # no pages for them while others run
        self._scorings: set[asyncio.Future[list[TokenLogprob]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.broken = ""
        self._over: ApiError | None = None  # what is told since `cut`
        self.lost = 0

    def start(self) -> None:
        """Starts the thread; call it on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Ends the thread after its tick; what still ran is given up."""
        self._inbox.put(("close", None))
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    @property
    def active(self) -> int:
        """Prompts that wait or run."""
        return len(self._deliver) + len(self._scorings)

    def cut(self, error: ApiError) -> None:
        """Tells `error` to all that waits or runs, and to whatever comes later; `lost` counts those prompts."""
        self.lost, self._over = self.active, error
        self._fail_all(error, True)

    def snapshot(self) -> Snapshot:
        return self._stats.snapshot(self._gauges())

    def make_room(self, prompts: int) -> None:
        """Raises ApiError where so many more prompts would be too many, or where nothing runs any more."""
        if self._over is not None:
            self.lost += prompts
            raise self._over
        if self.broken:
            raise ApiError(503, f"the engine has stopped: {self.broken}")
        if prompts > self._max_queue:
            raise ApiError(
                400, f"{prompts} prompts in one request, at most {self._max_queue} are taken", param="prompt"
            )
        if self.active + prompts > self._max_queue:
            self._stats.ended("refused")
            raise ApiError(503, f"{self.active} prompts wait or run, at most {self._max_queue} may; try again",
                           code="queue_full", retry_after=1)  # fmt: skip

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queues a request. `deliver` gets its updates, the last with a completion, or an ApiError in their place."""
        self._deliver[request.id] = deliver
        self._inbox.put(("add", request))

    def cancel(self, request_id: str) -> None:
        """Gives up a request that has not finished, and its pages; nothing more is delivered."""
        if self._deliver.pop(request_id, None) is not None:
            self._stats.ended("cancelled")
            self._inbox.put(("cancel", request_id))

    async def logprobs(self, ids: Sequence[int], first: int, top: int) -> list[TokenLogprob]:
        """LLM.logprobs between two ticks. Raises ApiError where the engine refuses."""
        if self._over is not None:
            raise self._over
        future: asyncio.Future[list[TokenLogprob]] = asyncio.get_running_loop().create_future()
        self._scorings.add(future)
        try:
            self._inbox.put(("score", _Scoring(ids, first, top, future)))
            return await future
        finally:
            self._scorings.discard(future)

    # ---------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            while self._take():
                if self._engine.busy:
                    self._tick()
                if self._postponed and not self._engine.busy:
                    waiting, self._postponed = self._postponed, []
                    for one in waiting:
                        self._score(one)
        except Exception as e:  # the engine's state is unknown: every request is told, and none is taken any more
            last = traceback.extract_tb(e.__traceback__)[-1]
            self.broken = f"{type(e).__name__}: {' '.join(str(e).split())} (at {last.name}:{last.lineno})"
            print(f"error: the engine has stopped: {self.broken}", file=sys.stderr, flush=True)
            self._on_loop(self._fail_all, ApiError(500, f"the engine has stopped: {self.broken}"), True)

    def _take(self) -> bool:
        """Does what the inbox holds, waiting where there is nothing else to do; False at the end."""
        while not self._inbox.empty() or not self._engine.busy:
            word, what = self._inbox.get()
            if word == "close":
                return False
            if word == "cancel":
                self._engine.cancel(what)
            elif word == "score":
                self._score(what)
            else:
                self._add(what)
        return True

    def _add(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except EngineError as e:
            self._stats.ended("refused")
            self._on_loop(self._hand_over, [(request.id, ApiError(400, str(e)))])

    def _tick(self) -> None:
        try:
            updates = self._engine.step()
        except EngineError as e:  # the engine has given up what ran, and is ready for the next
            print(f"error: {e}", file=sys.stderr, flush=True)
            self._on_loop(self._fail_all, ApiError(500, str(e)))
            return
        self._stats.take(updates)
        if updates:
            self._on_loop(self._hand_over, [(u.id, u) for u in updates])

    def _score(self, job: _Scoring) -> None:
        try:
            found = self._engine.logprobs(job.ids, job.first, job.top)
        except EngineError as e:
            if self._engine.busy:  # others may hold the pages
                self._postponed.append(job)
            else:
                self._on_loop(_settle, job.future, ApiError(400, str(e)))
        else:
            self._on_loop(_settle, job.future, found)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            if not self._loop.is_closed():
                raise

    # ---------------------------------------------------------------- back on the loop

    def _hand_over(self, events: list[tuple[str, Event]]) -> None:
        for request_id, event in events:
            last = isinstance(event, ApiError) or event.completion is not None
            deliver = self._deliver.pop(request_id, None) if last else self._deliver.get(request_id)
            if deliver is not None:  # else it was cancelled meanwhile
                deliver(event)

    def _fail_all(self, error: ApiError, scorings: bool = False) -> None:
        """Requests that were queued but not yet added fail too: none of them is lost without a word."""
        for future in list(self._scorings) if scorings else ():
            _settle(future, error)
        for request_id in list(self._deliver):
            self._stats.ended("failed")
            self._inbox.put(("cancel", request_id))
            self._hand_over([(request_id, error)])


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)

"""All requests of a run, so many at a time; each result is handed over the moment it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from engine.api import Completion, Request
from evalkit.backends import Failure, OnFinish


async def run_all(
    requests: Sequence[Request],
    ask: Callable[[Request], Awaitable[Completion | Failure]],
    on_finish: OnFinish,
    *,
    concurrency: int,
) -> None:
    """Runs `ask` over the requests in order, `concurrency` at once. The first exception ends all and is passed on."""
    todo = iter(requests)

    async def worker() -> None:
        for request in todo:
            on_finish(await ask(request))

    tasks = [asyncio.create_task(worker()) for _ in range(min(concurrency, len(requests)))]
    try:
        if tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""When a request is sent again, and after how long. A retry is a whole new request: nothing of the old one is used."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from evalkit.backends.http.answer import Answer
from evalkit.backends.http.errors import Trouble

FIRST_WAIT, LONGEST_BACKOFF = 0.5, 30.0


@dataclass(slots=True)
class Faults:
    """What went wrong on the way, by kind: `repaired` by a later attempt, `lost` for good."""

    repaired: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    requests: int = 0

    def to_json(self) -> dict[str, object]:
        return {"requests": self.requests, "attempts": self.attempts,
                "repaired": dict(self.repaired), "lost": dict(self.lost)}  # fmt: skip


def backoff(attempt: int, rng: random.Random, *, after: float = 0.0, first: float = FIRST_WAIT) -> float:
    """Seconds before attempt + 1: twice as long each time, half of it drawn, and never before a Retry-After."""
    longest = min(LONGEST_BACKOFF, first * 2 ** (attempt - 1))
    return after + longest * rng.uniform(0.5, 1.0)


async def with_retries(
    attempt: Callable[[], Awaitable[Answer]],
    *,
    retries: int,
    seed: int,
    faults: Faults,
    alive: Callable[[], Awaitable[None]],
    first: float = FIRST_WAIT,
) -> tuple[Answer, int]:
    """The answer, and the attempts it took. Raises the last Trouble when none is left or none makes sense.

    `alive` is asked when nobody listened: it returns when the server is back, and raises what ends the run where it
    is not.
    """
    rng, had, number = random.Random(seed), [], 0
    faults.requests += 1
    while True:
        number += 1
        faults.attempts += 1
        try:
            answer = await attempt()
        except Trouble as trouble:
            if trouble.gone:
                await alive()
            if not trouble.again or len(had) >= retries:
                faults.lost[trouble.kind] += 1
                raise
            had.append(trouble.kind)
            await asyncio.sleep(backoff(len(had), rng, after=trouble.after, first=first))
            continue
        faults.repaired.update(had)
        return answer, number

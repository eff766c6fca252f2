"""One question of a probe: its body, and its answer after the retries that a run's requests get too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from engine.api import Request, SamplingParams
from evalkit.backends.http.answer import Answer
from evalkit.backends.http.body import body_of
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import RETRIABLE
from evalkit.backends.http.retry import Faults, backoff, with_retries

PAGE_WAIT = 0.1  # seconds before the first repetition: a page that a server never has would else cost a run's start


async def ask(client: Client, sent: Mapping[str, Any], endpoint: str) -> Answer:
    """The answer. Raises Trouble."""

    async def stays_gone() -> None:
        return None

    answer, _ = await with_retries(lambda: client.ask(sent, endpoint), retries=client.spec.retries, seed=0,
                                   faults=Faults(), alive=stays_gone)  # fmt: skip
    return answer


async def page(
    client: Client, path: str, sent: Mapping[str, Any] | None = None, *, follow: bool = True
) -> tuple[int, str]:  # fmt: skip
    """As Client.page, sent again after a status that may pass. What it is at last is what is given."""
    rng = random.Random(0)
    for number in range(client.spec.retries + 1):
        status, text = await client.page(path, sent, follow=follow)
        if status not in RETRIABLE or number == client.spec.retries:
            break
        await asyncio.sleep(backoff(number + 1, rng, first=PAGE_WAIT))
    return status, text


def body(
    endpoint: str, model: str, text: str, tokens: int, extra: Mapping[str, Any] | None = None, *,
    temperature: float = 0.0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The body of a question of at most so many tokens."""
    params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed)
    return body_of(Request(id="probe", prompt=text, params=params), endpoint=endpoint, model=model, stream=False,
                   send_stops=True, extra=extra or {})  # fmt: skip

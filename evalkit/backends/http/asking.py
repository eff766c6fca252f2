"""One question of a probe: its body, and its answer after the retries that a run's requests get too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.api import Request, SamplingParams
from evalkit.backends.http.answer import Answer
from evalkit.backends.http.body import body_of
from evalkit.backends.http.client import Client
from evalkit.backends.http.retry import Faults, with_retries


async def ask(client: Client, sent: Mapping[str, Any], endpoint: str) -> Answer:
    """The answer. Raises Trouble."""

    async def stays_gone() -> None:
        return None

    answer, _ = await with_retries(lambda: client.ask(sent, endpoint), retries=client.spec.retries, seed=0,
                                   faults=Faults(), alive=stays_gone)  # fmt: skip
    return answer


def body(
    endpoint: str, model: str, text: str, tokens: int, extra: Mapping[str, Any] | None = None, *,
    temperature: float = 0.0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The body of a question of at most so many tokens."""
    params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed)
    return body_of(Request(id="probe", prompt=text, params=params), endpoint=endpoint, model=model, stream=False,
                   send_stops=True, extra=extra or {})  # fmt: skip

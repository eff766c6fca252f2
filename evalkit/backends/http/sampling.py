"""Does a server sample when it is asked to? One prompt, temperature 1, several seeds, before the run.

Some verify rules take the likeliest token whatever the temperature. Greedy scores can't show that; answers that are
all the same do. The prompt is one that hardly any model continues in a single way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalkit.backends.http.asking import ask, body
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import Trouble
from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.backends.http.probe import Found

PROMPT = "Words drawn at random, no two of them alike:"
ASKS, ROOM = 8, 16  # requests with a seed each, and tokens of an answer


async def probe_sampling(
    client: Client, found: Found, endpoint: str, extra: Mapping[str, Any], temperature: float
) -> None:
    """Asks the same at temperature 1 with 8 seeds, the first of them twice, and keeps how many answers differ.

    Raises EvalkitError where all are the same and the run itself is sampled; a greedy run gets a note.
    """

    async def asked(seed: int) -> str:
        sent = body(endpoint, found.model, PROMPT, ROOM, {**extra, **found.switch}, temperature=1.0, seed=seed)
        answer = await ask(client, sent, endpoint)
        return answer.reasoning + answer.text

    try:
        texts = await asyncio.gather(*(asked(seed) for seed in (*range(1, ASKS + 1), 1)))
    except Trouble as e:
        found.notes.append(f"whether the server samples could not be found out ({e})")
        return
    different, repeats = len(set(texts[:ASKS])), texts[0] == texts[ASKS]
    found.sampling = {"temperature": 1.0, "asked": ASKS, "different": different, "same_seed_same_text": repeats}
    if not any(texts):
        found.notes.append("whether the server samples could not be found out (its answers at temperature 1 are empty)")
    elif different == 1:
        words = f"sampling is not applied: {ASKS} answers at temperature 1, each with its own seed, are all the same"
        if temperature:
            raise EvalkitError(f"{words}, and the run is at temperature {temperature:g}",
                               "look how the server verifies drafts, or run at --temperature 0")  # fmt: skip
        found.notes.append(f"{words}; this greedy run is no evidence for sampled serving")
    elif temperature and not repeats:
        found.notes.append("the same seed gave two answers at temperature 1: a sampled run can't be repeated there")

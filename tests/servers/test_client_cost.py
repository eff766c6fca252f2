"""What the client itself costs, faults and retries among it; and what it is not asked for."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from engine.api import Completion, Request, SamplingParams
from evalkit.backends import Failure
from evalkit.backends.http import Http
from evalkit.backends.http.client import Client
from evalkit.backends.http.probe import Found
from evalkit.backends.http.secret import Secret
from evalkit.backends.http.session import Session
from evalkit.errors import EvalkitError
from evalkit.servers.profile import profile_of
from evalkit.servers.spec import ServerSpec
from tests.servers.faulty import answer_of

N, MILLISECONDS = 1319, 3.0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_costs_under_3_ms_of_cpu_with_5_percent_faults(faulty, stream):
    """CPU time of this process, which is the client alone; faults with seed 3. Every answer is there and whole."""
    server = faulty(rate=0.05, seed=3, kinds=["429", "500", "503", "cut", "reset", "json"])
    spec = ServerSpec(base_url=server.url, stream=stream, request_timeout=60.0)
    prompts = [f"Question: {i} + 1?\nAnswer:" for i in range(N)]
    requests = [Request(id=str(i), prompt=p, params=SamplingParams()) for i, p in enumerate(prompts)]
    done: list[Completion | Failure] = []

    async def work() -> tuple[float, Session]:
        async with Client(spec, spec.root, Secret()) as client:
            session = Session(client, spec, profile_of("openai"), found=Found(model="faulty"), endpoint="completions",
                              k=0, first_wait=0.01)  # fmt: skip
            began = time.process_time()
            await session.run(requests, done.append)
            return time.process_time() - began, session

    spent, session = asyncio.run(work())
    assert {r.id: getattr(r, "text", None) for r in done} == {str(i): answer_of(p) for i, p in enumerate(prompts)}
    assert 30 < sum(session.faults.repaired.values()) < 120 and not session.faults.lost
    assert 1000 * spent / N < MILLISECONDS


def test_likelihoods_are_refused_in_one_line():
    with pytest.raises(EvalkitError, match="is not asked for the likelihood of given texts") as e:
        Http.score(SimpleNamespace(), [("a", "b")])  # type: ignore[arg-type]
    assert e.value.fix == "use a task that generates"

"""Requests that come, wait, leave and fail, over one event loop and the engine's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import httpx2
import pytest

from engine import LLM
from engine.errors import EngineError
from evalkit.serve.app import make_app
from evalkit.serve.service import Service
from tests.engine.tiny import Tiny, prompts
from tests.evalkit.serve.serving import counters, service_of

Post = Callable[..., Coroutine[Any, Any, httpx2.Response]]


class Held:
    """An engine whose steps wait for a permit, so that a test decides what runs beside what."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self._step, self.permits = llm, llm.step, threading.Semaphore(0)
        llm.step = self.step  # type: ignore[method-assign]

    def step(self) -> Any:
        self.permits.acquire()
        return self._step()

    def release(self, n: int = 100_000) -> None:
        self.permits.release(n)


def with_server(service: Service, test: Callable[[Post], Awaitable[None]]) -> None:
    """Runs `test` with a function that posts a completion, on a loop of its own."""

    async def main() -> None:
        app = make_app(service)
        service.worker.start()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def post(path: str = "/v1/completions", **body: Any) -> httpx2.Response:
                return await client.post(path, json={"temperature": 0, "max_tokens": 20, "ignore_eos": True, **body})

            try:
                await asyncio.wait_for(test(post), 60)
            finally:
                await service.worker.close()

    asyncio.run(main())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


def test_requests_that_arrive_one_by_one_share_ticks_and_answer_as_alone(tiny: Tiny) -> None:
    asked = prompts(6)
    alone = {}
    llm = tiny.llm(k=4)

    async def one_by_one(post: Post) -> None:
        for p in asked:
            alone[p] = (await post(prompt=list(p), max_tokens=60)).json()["choices"][0]["text"]

    with_server(service_of(llm, tiny.target), one_by_one)
    llm = tiny.llm(k=4)
    held, service = Held(llm), service_of(llm, tiny.target)
    most = 0

    async def staggered(post: Post) -> None:
        nonlocal most
        tasks = []
        for p in asked:
            tasks.append(asyncio.create_task(post(prompt=list(p), max_tokens=60)))
            await until(lambda: service.worker.active == len(tasks))
            held.release(2)  # so few that none finishes before the last has come
            await asyncio.sleep(0.02)
            most = max(most, len(llm.scheduler.running))
        held.release()
        for p, task in zip(asked, tasks, strict=True):
            assert (await task).json()["choices"][0]["text"] == alone[p]

    with_server(service, staggered)
    assert most > 1, "nothing ran side by side"
    assert llm.pool.in_use == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_back_its_pages_and_the_others_go_on(tiny: Tiny, stream: bool) -> None:
    llm = tiny.llm(k=4)
    held, service = Held(llm), service_of(llm, tiny.target)
    app = make_app(service)

    async def test(post: Post) -> None:
        gone = asyncio.Event()
        body = (
            b'{"prompt": [40, 41], "max_tokens": 100, "ignore_eos": true, "stream": %s}' % str(stream).lower().encode()
        )
        sent, given = [], [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            **{"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "http_version": "1.1"},
            "headers": [(b"content-type", b"application/json")],
            "asgi": {"spec_version": "2.3"},
        }
        leaver = asyncio.create_task(app(scope, receive, send))
        stayer = asyncio.create_task(post(prompt=[8, 9]))
        await until(lambda: service.worker.active == 2)
        held.release(6)
        await until(lambda: len(llm.scheduler.running) == 2)
        await asyncio.sleep(0.05)
        gone.set()
        await leaver
        assert service.worker.active == 1
        held.release()
        assert (await stayer).status_code == 200
        streamed = [m for m in sent if m["type"] == "http.response.body" and m.get("body", b"").startswith(b"data: ")]
        assert bool(streamed) is stream

    with_server(service, test)
    assert llm.pool.in_use == 0 and llm.scheduler.idle
    snapshot = service.worker.snapshot()
    assert snapshot.requests == {"cancelled": 1, "length": 1}


def test_a_full_queue_is_a_503_that_says_when_to_come_back(tiny: Tiny) -> None:
    llm = tiny.llm(k=2)
    held, service = Held(llm), service_of(llm, tiny.target, max_queue=3)

    async def test(post: Post) -> None:
        tasks = [asyncio.create_task(post(prompt=[[40, 41], [8]])), asyncio.create_task(post(prompt=[9]))]
        await until(lambda: service.worker.active == 3)
        full = await post(prompt=[7])
        assert full.status_code == 503 and full.headers["retry-after"] == "1"
        assert full.json()["error"]["code"] == "queue_full"
        assert (await post(prompt=[[1]] * 4)).status_code == 400  # could never be taken
        held.release()
        assert [r.status_code for r in await asyncio.gather(*tasks)] == [200, 200]
        assert (await post(prompt=[7])).status_code == 200

    with_server(service, test)
    assert service.worker.active == 0 and service.worker.snapshot().requests["refused"] == 1


def test_a_step_that_breaks_fails_every_running_request_and_no_later_one(
    tiny: Tiny, capfd: pytest.CaptureFixture[str]
) -> None:
    llm = tiny.llm(k=2)
    step = llm.step

    def once() -> Any:
        llm.step = step  # type: ignore[method-assign]
        llm.scheduler.abort()
        llm._added.clear()
        raise EngineError("the target's logits hold a NaN or an infinity")

    llm.step = once  # type: ignore[method-assign]
    service = service_of(llm, tiny.target)

    async def test(post: Post) -> None:
        found = await asyncio.gather(post(prompt=[[40], [41]]), post(prompt=[8], stream=True))
        assert [r.status_code for r in found] == [500, 500]
        assert "NaN" in found[0].json()["error"]["message"]
        assert (await post(prompt=[7])).status_code == 200

    with_server(service, test)
    assert service.worker.snapshot().requests["failed"] >= 2
    assert "NaN" in capfd.readouterr().err


def test_a_stream_that_breaks_ends_without_done(tiny: Tiny) -> None:
    llm = tiny.llm(k=2)
    step, count = llm.step, 0

    def third() -> Any:
        nonlocal count
        count += 1
        if count == 3:
            llm.scheduler.abort()
            llm._added.clear()
            raise EngineError("broken")
        return step()

    llm.step = third  # type: ignore[method-assign]

    async def test(post: Post) -> None:
        text = (await post(prompt=[8], stream=True)).text
        assert '"error"' in text.strip().split("\n\n")[-1] and "[DONE]" not in text

    with_server(service_of(llm, tiny.target), test)


def test_an_engine_that_crashed_takes_nothing_and_health_says_so(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    llm = tiny.llm(k=2)

    def crash() -> Any:
        raise ZeroDivisionError("unforeseen")

    llm.step = crash  # type: ignore[method-assign]
    service = service_of(llm, tiny.target)

    async def test(post: Post) -> None:
        assert (await post(prompt=[8])).status_code == 500
        later = await post(prompt=[8])
        assert later.status_code == 503 and "engine has stopped" in later.json()["error"]["message"]
        assert service.trouble == "engine stopped"

    with_server(service, test)
    err = capfd.readouterr().err
    assert "ZeroDivisionError" in err and "Traceback" not in err


def test_scoring_waits_for_pages_that_others_hold(tiny: Tiny) -> None:
    llm = tiny.llm(k=2, num_pages=10)
    held, service = Held(llm), service_of(llm, tiny.target)

    async def test(post: Post) -> None:
        runs = asyncio.create_task(post(prompt=[40] * 20, max_tokens=12))
        await until(lambda: service.worker.active == 1)
        held.release(1)
        await until(lambda: len(llm.scheduler.running) == 1)
        scored = asyncio.create_task(post(prompt=[41] * 30, max_tokens=0, echo=True, logprobs=1))
        await until(lambda: service.worker.active == 2)
        held.release()
        assert (await runs).status_code == 200
        assert len((await scored).json()["choices"][0]["logprobs"]["tokens"]) == 30

    with_server(service, test)


def test_drain_refuses_new_work_and_finishes_the_old(tiny: Tiny) -> None:
    llm = tiny.llm(k=2)
    held, service = Held(llm), service_of(llm, tiny.target)

    async def test(post: Post) -> None:
        old = asyncio.create_task(post(prompt=[40]))
        await until(lambda: service.worker.active == 1)
        service.draining = True
        new = await post(prompt=[41])
        assert new.status_code == 503 and new.json()["error"]["code"] == "draining" and new.headers["retry-after"]
        held.release()
        assert (await old).status_code == 200

    with_server(service, test)


def test_a_page_shows_one_moment(tiny: Tiny) -> None:
    """While requests run, no page shows accepted drafts of a step that it does not show."""
    llm = tiny.llm(k=5)
    service = service_of(llm, tiny.target)

    async def test(post: Post) -> None:
        task = asyncio.create_task(post(prompt=[list(p) for p in prompts(12)], max_tokens=60))
        from evalkit.serve.metrics import Page

        page, seen = Page("tiny", service.worker.snapshot), 0
        while not task.done():
            found = counters(page.render().decode())
            places = sum(v for n, v in found.items() if "per_pos_total" in n)
            assert places == found["vllm:spec_decode_num_accepted_tokens_total"]
            steps = sum(v for n, v in found.items() if "by_accepted_total" in n)
            assert steps == found["evalkit:verify_steps_total"] == found["vllm:spec_decode_num_drafts_total"]
            seen += steps > 0
            await asyncio.sleep(0)
        assert (await task).status_code == 200 and seen

    with_server(service, test)

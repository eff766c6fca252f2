"""The drain, over real sockets: what runs may finish, who comes is told, and what is cut is told too."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from evalkit.serve.server import Server, bind, cut_error
from tests.engine.tiny import Tiny
from tests.evalkit.serve.serving import events, service_of
from tests.evalkit.serve.test_serve_worker import Held, until

BODY = {"prompt": [40, 41], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


class Running:
    """A server with one whole and one streamed request in the middle of their answers, and a client with open
    connections."""

    def __init__(self, server: Server, held: Held, client: httpx2.AsyncClient) -> None:
        self.server, self.held, self.client = server, held, client
        self.whole = asyncio.create_task(client.post("/v1/completions", json=BODY))
        self.streamed = asyncio.create_task(client.post("/v1/completions", json={**BODY, "stream": True}))


def drained(
    tiny: Tiny, seconds: int, test: Callable[[Running], Awaitable[None]], asked: list[bool] | None = None
) -> int:
    """Runs `test` on such a server and waits for the server's own end; how many prompts it cut. `asked` is told whether
    a Ctrl-C did it."""
    asked = [] if asked is None else asked
    llm = tiny.llm(k=2)
    held, service = Held(llm), service_of(llm, tiny.target, port=0, drain_seconds=seconds)

    async def main() -> int:
        with bind(service.settings) as listener:
            server = Server(service, listener)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
                running = Running(server, held, client)
                try:
                    await until(lambda: service.worker.active == 2)
                    held.release(3)
                    await until(lambda: service.worker.snapshot().emitted >= 4)
                    await test(running)
                finally:
                    held.release()
                    server._stop(signal.SIGTERM)
                    await asyncio.gather(running.whole, running.streamed, return_exceptions=True)
                await asyncio.wait_for(serving, 60)
                asked.append(server.cut_asked)
                return server.cut

    return asyncio.run(main())


def test_while_it_drains_who_comes_is_told_and_what_runs_finishes(tiny: Tiny) -> None:
    async def test(r: Running) -> None:
        assert (await r.client.get("/health")).status_code == 200
        r.server._stop(signal.SIGTERM)
        await asyncio.sleep(0.3)  # longer than uvicorn takes to notice
        health = await r.client.get("/health")  # on the kept-alive connection
        assert (health.status_code, health.json()) == (503, {"status": "draining"})
        async with httpx2.AsyncClient(base_url=r.client.base_url, timeout=60) as another:
            for client in (r.client, another):
                for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                    refused = await client.post(path, json={"prompt": "a" * 100_000})
                    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
                    assert refused.json()["error"]["code"] == "draining"
            assert (await another.get("/metrics")).status_code == 200
        assert not r.whole.done() and not r.streamed.done()
        r.held.release()
        assert (await r.whole).json()["usage"]["completion_tokens"] == 60
        assert events((await r.streamed).text)[-1] == "[DONE]"

    assert drained(tiny, 60, test) == 0


@pytest.mark.parametrize("how", ["its time is up", "a second Ctrl-C"])
def test_what_is_cut_is_told_in_the_form_of_an_error(tiny: Tiny, how: str) -> None:
    async def test(r: Running) -> None:
        r.server._stop(signal.SIGINT)
        if how != "its time is up":
            r.server._stop(signal.SIGINT)
        whole, streamed = await asyncio.wait_for(asyncio.gather(r.whole, r.streamed), 30)
        error = whole.json()["error"]
        assert whole.status_code == 503 and int(whole.headers["retry-after"]) > 0
        assert (error["code"], error["type"], error["param"]) == ("cut", "server_error", None)
        *chunks, last = events(streamed.text)
        assert last == {"error": error} and len(chunks) > 0 and chunks[0]["choices"]

    asked: list[bool] = []
    assert drained(tiny, 0 if how == "its time is up" else 600, test, asked) == 2
    assert asked == [how != "its time is up"]


def test_why_prompts_were_cut_is_said_as_it_was() -> None:
    assert str(cut_error(1, 30, asked=True)).startswith("1 prompt was cut, as Ctrl-C asked during the drain; fix: wait")
    assert str(cut_error(1, 30, asked=False)) == "1 prompt was cut after 30 s of drain; fix: raise --drain-seconds"
    assert str(cut_error(2, 30, asked=False)).startswith("2 prompts were cut after 30 s")


def test_a_body_that_does_not_end_is_told_as_well(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.serve.server.LAST_WORDS", 0)

    async def test(r: Running) -> None:
        port = r.client.base_url.port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{")  # fmt: skip
        await writer.drain()
        await asyncio.sleep(0.2)
        r.held.release()
        r.server._stop(signal.SIGTERM)
        said: Any = await asyncio.wait_for(reader.read(), 30)
        assert said.startswith(b"HTTP/1.1 503") and b'"code":"cut"' in said
        writer.close()

    assert drained(tiny, 60, test) == 0

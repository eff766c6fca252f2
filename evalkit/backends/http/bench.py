"""CPU time of the client for each request, against a server that answers at once: `make bench` prints it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

from engine.api import Request, SamplingParams
from evalkit.backends.http.client import Client
from evalkit.backends.http.probe import Found
from evalkit.backends.http.secret import Secret
from evalkit.backends.http.session import Session
from evalkit.servers.profile import profile_of
from evalkit.servers.spec import ServerSpec

REQUESTS, CONCURRENCY, WORDS = 1319, 64, 200


def main() -> None:
    """Prints milliseconds of CPU a request, whole replies and streamed ones (a chunk every 4 tokens)."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    root = f"http://127.0.0.1:{here.recv()}"
    try:
        for stream in (False, True):
            spent = asyncio.run(_spent(root, stream))
            kind = "streamed" if stream else "whole"
            print(f"client: {1000 * spent / REQUESTS:.2f} ms of CPU a request, {kind} replies of {WORDS} tokens, "
                  f"{REQUESTS} requests at concurrency {CONCURRENCY}")  # fmt: skip
    finally:
        server.terminate()


async def _spent(root: str, stream: bool) -> float:
    spec = ServerSpec(base_url=f"{root}/v1", stream=stream, concurrency=CONCURRENCY)
    prompt = "word " * 1000
    requests = [Request(id=str(i), prompt=prompt, params=SamplingParams()) for i in range(REQUESTS)]
    async with Client(spec, spec.root, Secret()) as client:
        session = Session(client, spec, profile_of("openai"), found=Found(model="m"), endpoint="completions", k=0)
        began = time.process_time()
        await session.run(requests, lambda result: None)
        return time.process_time() - began


def _serve(there: Connection) -> None:
    from aiohttp import web

    usage = {"prompt_tokens": 1000, "completion_tokens": WORDS}
    choice = {"index": 0, "text": "word " * WORDS, "finish_reason": "stop"}
    whole = json.dumps({"choices": [choice], "usage": usage}).encode()
    chunk = b"data: " + json.dumps({"choices": [{"index": 0, "text": "word " * 4}]}).encode() + b"\n\n"
    end = b"data: " + json.dumps({"choices": [{**choice, "text": ""}], "usage": usage}).encode() + b"\n\n"

    async def complete(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.Response(body=whole, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(WORDS // 4):
            await response.write(chunk)
        await response.write(end + b"data: [DONE]\n\n")
        return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        there.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()

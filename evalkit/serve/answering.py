"""From a job to its answer, whole or streamed: one chunk for each step of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from engine.api import Completion, Update
from evalkit.serve import replies
from evalkit.serve.errors import ApiError
from evalkit.serve.jobs import Job
from evalkit.serve.service import Json, Service

T = TypeVar("T")
CLIENT_LEFT = 499  # nginx's word for it; nobody reads it


class Running:
    """The updates of a job's requests as they come. `close` cancels what has not finished."""

    def __init__(self, service: Service, job: Job) -> None:
        self._worker, self._job = service.worker, job
        self._events: asyncio.Queue[tuple[int, Update | ApiError]] = asyncio.Queue()
        self._worker.make_room(len(job.prompts))
        for i, request in enumerate(job.requests):
            self._worker.submit(request, lambda event, i=i: self._events.put_nowait((i, event)))

    def close(self) -> None:
        for request in self._job.requests:
            self._worker.cancel(request.id)

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """(number of the prompt, update) until every prompt has finished. Raises ApiError where one fails."""
        left = len(self._job.requests)
        while left:
            i, event = await self._events.get()
            if isinstance(event, ApiError):
                raise event
            left -= event.completion is not None
            yield i, event


async def answer(service: Service, job: Job, request: Request) -> Response:
    """Runs a job. When its client leaves, it ends and gives back its pages."""
    running = Running(service, job)
    streaming = False
    try:
        if not job.body.stream:
            return JSONResponse(await _while_connected(request, _whole(service, job, running)))
        updates = running.updates()
        first = await _while_connected(request, _first(updates))  # a refusal is a status, so it comes before the stream
        streaming = True
    finally:
        if not streaming:
            running.close()

    async def events() -> AsyncIterator[bytes]:
        try:
            async for data in _chunks(service, job, first, updates):
                yield replies.event(data)
            yield replies.event("[DONE]")
        except ApiError as e:  # no [DONE]: what came is not the whole answer
            yield replies.event(e.body)
        finally:
            running.close()

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _first(updates: AsyncIterator[tuple[int, Update]]) -> tuple[int, Update]:
    return await anext(updates)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(CLIENT_LEFT, "the client has left")
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _whole(service: Service, job: Job, running: Running) -> Json:
    found: dict[int, Completion] = {}
    async for i, update in running.updates():
        if update.completion is not None:
            found[i] = update.completion
    choices = [await _choice(service, job, i, found.get(i)) for i in range(len(job.prompts))]
    usage = replies.usage(list(found.values()))
    if not found:
        size = sum(map(len, job.prompts))
        usage |= {"prompt_tokens": size, "total_tokens": size}
    return {**_head(service, job), "choices": choices, "usage": usage}


async def _choice(service: Service, job: Job, i: int, c: Completion | None) -> Json:
    """One choice; c is None where the prompt was only scored."""
    text = (job.echoed[i] if job.echoed else "") + (c.text if c else "")
    said: Json = {"message": {"role": "assistant", "content": text}} if job.chat else {"text": text}
    logprobs = None
    if job.logprobs is not None:
        prompt, out = job.prompts[i], c.token_ids if c else ()
        first = 1 if job.echoed else len(prompt)
        found = await service.worker.logprobs((*prompt, *out), first, max(job.logprobs, 1))
        ids = (*prompt, *out) if job.echoed else out
        padded = [None, *found] if job.echoed else list(found)
        logprobs = replies.logprobs(ids, padded, job.logprobs, lambda token: service.tokenizer.decode([token]))
    return {"index": i, **said, "logprobs": logprobs, **_ending(service, job, c)}


def _ending(service: Service, job: Job, c: Completion | None) -> Json:
    """How a choice ended and what its drafts came to."""
    if c is None:
        return {"finish_reason": "length", "stop_reason": None}
    ending: Json = {
        "finish_reason": str(c.finish_reason),
        "stop_reason": replies.stop_reason(c, job.params.stop, job.params.stop_token_ids),
        "acceptance": replies.acceptance(c.steps, service.k, listed=job.body.return_steps),
        "meta_info": replies.meta_info(c, service.k),
    }
    return ending | ({"token_ids": list(c.token_ids)} if job.body.return_token_ids else {})


async def _chunks(
    service: Service, job: Job, first: tuple[int, Update], rest: AsyncIterator[tuple[int, Update]]
) -> AsyncIterator[Json]:
    """A chunk for each update, its text empty where none is certain yet; the last of a prompt has its ending."""
    head, options = _head(service, job, chunk=True), job.body.stream_options
    streams = [service.tokenizer.stream(job.params.stop) for _ in job.prompts]
    fresh, done, emitted = set(range(len(job.prompts))), [], 0

    async def all_updates() -> AsyncIterator[tuple[int, Update]]:
        yield first
        async for one in rest:
            yield one

    async for i, update in all_updates():
        c = update.completion
        text = streams[i].finish(c.text) if c else streams[i].push(update.token_ids)
        if job.echoed and i in fresh:
            text = job.echoed[i] + text
        said: Json = {"delta": {"content": text}} if job.chat else {"text": text}
        if job.chat and i in fresh:
            said["delta"] = {"role": "assistant", **said["delta"]}
        fresh.discard(i)
        emitted += len(update.token_ids)
        ending = _ending(service, job, c) if c else {"finish_reason": None}
        choice = {"index": i, **said, "logprobs": None, **ending}
        if job.body.return_token_ids:
            choice["token_ids"] = list(update.token_ids)
        data = {**head, "choices": [choice]}
        if options.include_usage:
            data["usage"] = None
        if options.continuous_usage_stats:
            prompt = sum(map(len, job.prompts))
            data["usage"] = {"prompt_tokens": prompt, "completion_tokens": emitted, "total_tokens": prompt + emitted}
        if c:
            done.append(c)
        yield data
    if options.include_usage:
        yield {**head, "choices": [], "usage": replies.usage(done)}


def _head(service: Service, job: Job, *, chunk: bool = False) -> Json:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if job.chat else "text_completion"
    return {"id": job.id, "object": kind, "created": int(time.time()), "model": service.settings.name}

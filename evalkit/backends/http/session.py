"""One piece of work on a server: all requests, their retries, the counters around them, and when to give up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import quantiles

from engine.api import Completion, FinishReason, Request
from evalkit.backends import Failure, OnFinish, Reply
from evalkit.backends.http.answer import Answer
from evalkit.backends.http.body import body_of
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import ServerGone, Trouble
from evalkit.backends.http.pool import run_all
from evalkit.backends.http.probe import Found
from evalkit.backends.http.retry import FIRST_WAIT, Faults, with_retries
from evalkit.backends.http.watch import Source, Watch
from evalkit.servers.counters import ESTIMATE, Reading, Sent, read
from evalkit.servers.per_request import drafts_told, read_reply
from evalkit.servers.process import Process
from evalkit.servers.profile import Profile
from evalkit.servers.spec import ServerSpec

IN_A_ROW = 16  # failures after which nothing is expected of the server any more
AGAIN = "finished samples are kept; the same command continues"


class Session:
    """`run` does the work; `reading` and `faults` tell of it, also when it did not end well."""

    def __init__(
        self, client: Client, spec: ServerSpec, profile: Profile, *, found: Found, endpoint: str, k: int,
        process: Process | None = None, always_drafts: bool = True, first_wait: float = FIRST_WAIT,
    ) -> None:  # fmt: skip
        self._client, self._spec, self._profile, self._found = client, spec, profile, found
        self._endpoint, self._k, self._process = endpoint, k, process
        self._always_drafts, self._first_wait = always_drafts, first_wait
        self.faults, self.reading = Faults(), None
        self._seconds: list[float] = []
        self._tokens = self._prompts = self._came = self._chunks = self._streamed = 0
        self._row = 0
        self._told = 0  # replies with acceptance of their own
        self.drafted: dict[str, float] = {}  # at K=0: drafts by the counters, replies that tell of drafts
        self._problems: dict[str, int] = {}
        self._outage: asyncio.Task[None] | None = None

    reading: Reading | None

    async def run(self, requests: Sequence[Request], on_finish: OnFinish) -> None:
        """Runs the requests. Raises ServerGone, and what `on_finish` raises."""
        source = Source(self._client, self._profile)
        watch = Watch(source)
        if self._k:
            await watch.begin()
        else:
            await watch.first()
        whole = False
        try:
            await run_all(requests, self._ask, on_finish, concurrency=self._spec.concurrency)
            whole = True
        finally:
            if self._k:
                await watch.end(patient=whole)
                self.reading = self._read(source, watch)
            else:
                await watch.last(patient=whole)
                self._count_drafts(watch)

    def _count_drafts(self, watch: Watch) -> None:
        """Drafts at K=0, where there must be none: a server that speculates is not the one that was asked for."""
        if len(watch.snapshots) < 2:
            return
        before, after = watch.snapshots[0], watch.snapshots[-1]
        moved = max(after.total(name) - before.total(name) for name in ("drafts", "accepted"))
        if moved > 0:
            self.drafted["drafts"] = moved

    async def _ask(self, request: Request) -> Completion | Failure:
        body = body_of(
            request, endpoint=self._endpoint, model=self._found.model, stream=self._spec.stream,
            send_stops=not self._found.thinks, extra={**self._spec.extra(), **self._found.switch},
        )  # fmt: skip
        began = time.monotonic()
        try:
            answer, attempts = await with_retries(
                lambda: self._client.ask(body, self._endpoint), retries=self._spec.retries, seed=request.params.seed,
                faults=self.faults, alive=self._alive, first=self._first_wait,
            )  # fmt: skip
        except Trouble as e:
            return self._failure(request, e)
        self._row = 0
        return self._reply(request, answer, attempts, time.monotonic() - began)

    def _failure(self, request: Request, e: Trouble) -> Failure:
        self._row += 1
        if self._row >= IN_A_ROW:
            raise ServerGone(f"{self._row} requests in a row failed (last: {e})", f"look at the server; {AGAIN}")
        return Failure(id=request.id, error=str(e))

    def _reply(self, request: Request, answer: Answer, attempts: int, seconds: float) -> Reply:
        text, reasoning, stop_hit = answer.text, answer.reasoning, answer.stop_hit
        finish = FinishReason.LENGTH if answer.finish == "length" else FinishReason.STOP
        if self._found.thinks:
            thought, text = split_thinking(text)
            reasoning = reasoning or thought
            text, hit = cut(text, request.params.stop)
            stop_hit = hit or stop_hit
            finish = FinishReason.STOP if hit else finish
        told = read_reply(
            answer.raw, answer.choice, k=self._k, tokens=answer.tokens, stopped=finish is FinishReason.STOP
        )
        if not self._k and drafts_told(answer.raw, answer.choice):
            self.drafted["replies"] = self.drafted.get("replies", 0) + 1
        self._note(answer, seconds, told.problem, bool(told.steps or told.counts))
        return Reply(
            id=request.id, text=text, token_ids=answer.token_ids, prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens, finish_reason=finish, stop_hit=stop_hit, steps=told.steps,
            seconds=seconds, tokens=answer.tokens, reasoning=reasoning, counts=told.counts, attempts=attempts,
        )  # fmt: skip

    def _note(self, answer: Answer, seconds: float, problem: str, told: bool) -> None:
        self._came += 1
        self._tokens += answer.tokens
        self._prompts += answer.prompt_tokens
        self._chunks += answer.chunks
        self._streamed += answer.chunks > 0
        self._told += told
        self._seconds.append(seconds)
        if problem:
            self._problems[problem] = self._problems.get(problem, 0) + 1

    async def _alive(self) -> None:
        """Waits for a server that nobody answers for, once for all requests. Raises ServerGone."""
        if self._outage is None or self._outage.done():
            self._outage = asyncio.create_task(self._wait_for_it())
        await asyncio.shield(self._outage)

    async def _wait_for_it(self) -> None:
        end = time.monotonic() + self._spec.grace
        while True:
            if self._process is not None and self._process.exit_code is not None:
                error = self._process.died()
                raise ServerGone(error.what, f"read {self._process.log}; {AGAIN}")
            status, why = await self._client.page("/v1/models")
            if status:
                return
            if time.monotonic() > end:
                words = f"the server at {self._spec.base_url} is gone for {self._spec.grace:.0f} s ({why})"
                raise ServerGone(words, f"start it again; {AGAIN}")
            await asyncio.sleep(min(1.0, self._spec.grace / 4))

    def _read(self, source: Source, watch: Watch) -> Reading | None:
        p90 = quantiles(self._seconds, n=10)[-1] if len(self._seconds) > 1 else 0.0
        sent = Sent(requests=self._came, output_tokens=self._tokens, prompt_tokens=self._prompts,
                    given_up=self.faults.attempts - self._came, request_seconds=p90)  # fmt: skip
        found = read(watch.snapshots, k=self._k, source=source.name, sent=sent, always_drafts=self._always_drafts)
        told = tuple(f"{n} replies: {what}" for what, n in self._problems.items())
        if found is None and self._streamed:
            found = estimate(self._k, chunks=self._chunks, tokens=self._tokens, streams=self._streamed)
        if found is None and (told or source.problem):
            found = Reading(kind=ESTIMATE, source="nothing that can be read", k=self._k)
        if found is None:
            return None
        problems = (*found.problems, *told, *([source.problem] if source.problem else []))
        return Reading(**{**{n: getattr(found, n) for n in Reading.__dataclass_fields__}, "problems": problems})


def estimate(k: int, *, chunks: int, tokens: int, streams: int) -> Reading:
    """Acceptance if each chunk of a stream is one step: never more than an estimate, since servers join chunks."""
    steps = chunks - streams
    accepted = tokens - streams - steps
    problems = ["an estimate from the chunks of streams: a server that joins steps in one chunk looks better"]
    if not 0 <= accepted <= k * steps:
        problems.append(f"{chunks} chunks for {tokens} tokens in {streams} answers can't be one step each at K={k}")
        steps = accepted = 0
    return Reading(kind=ESTIMATE, source="chunks of streams", k=k, steps=steps, accepted=accepted, drafts=k * steps,
                   requests=streams, output_tokens=tokens, problems=tuple(problems))  # fmt: skip


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, answer) of a text that holds both: no filter may read what was only thought.

    A text with `</think>` alone was begun by the template; thinking that never ends leaves no answer.
    """
    before, ended, after = text.rpartition("</think>")
    if ended:
        return before.replace("<think>", "", 1).strip(), after
    before, begun, after = text.partition("<think>")
    return (after.strip(), before) if begun else ("", text)


def cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text up to its first stop, and that stop."""
    hits = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not hits:
        return text, ""
    at, stop = min(hits)
    return text[:at], stop

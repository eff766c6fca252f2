"""The state of one request while it runs: committed tokens, pages, stop rules, Steps."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.api import Completion, Cut, FinishReason, Request, Step, Update
from engine.prefix_cache import PageTable
from engine.sampling import request_key
from engine.tokenizer import StopWatch

Gaps = list[float] | tuple[()]


class Sequence:
    """One request in the engine. `tokens` are the prompt and what was committed after it.

    The last committed token is the anchor: the target has not run on it, so KV exists for at most
    len(tokens) - 1 positions. `stored` counts the positions that have it.
    """

    def __init__(
        self,
        request: Request,
        prompt: list[int],
        *,
        max_model_len: int,
        stop_ids: dict[int, str],
        watch: StopWatch | None,
        run_seed: int,
        table: PageTable,
        forced: bool = False,
    ) -> None:
        self.request, self.params = request, request.params
        self.greedy = request.params.temperature == 0.0
        self.forced = forced  # its steps' acceptance is drawn
        self.key = request_key(run_seed, request.params.seed)
        self.tokens = list(prompt)
        self.prompt_len = len(prompt)
        self.max_len = max_model_len
        self.limit = min(request.params.max_tokens, max_model_len - len(prompt))  # output tokens
        self.stop_ids = stop_ids  # token id -> what stop_hit will say
        self.table = table
        self.stored = 0
        self.cached_tokens = 0
        self.steps: list[Step] = []
        self.gaps: list[float] = []  # of the output tokens, where the runner gives them
        self.finish_reason: FinishReason | None = None
        self.stop_hit = ""
        self.admitted_at: float | None = None
        self.seconds = 0.0
        self.told = 0  # output tokens and steps that updates have handed out
        self.told_steps = 0
        self._watch = watch
        self._text_end: int | None = None  # where a stop string begins

    @property
    def emitted(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def to_store(self) -> int:
        """Positions that need KV before the sequence can decode: the anchor's own is left to the decode step."""
        return self.prompt_len if len(self.tokens) == self.prompt_len else len(self.tokens) - 1

    def draft_room(self, k: int) -> int:
        """The K this sequence can use: k drafts and the target's token must fit in the context."""
        return min(k, self.max_len - len(self.tokens) - 1)

    def commit_first(self, token: int, gaps: Gaps = ()) -> None:
        """Commit the token that prefill gives; it belongs to no step."""
        self._append([token], gaps)

    def commit_step(
        self,
        new: list[int],
        k: int,
        confidence: tuple[float, ...] = (),
        rejected: tuple[int, ...] = (),
        gaps: Gaps = (),
    ) -> None:
        """Commit a decode step: `new` is its accepted drafts and then the target's own token.

        gaps: of the rows that gave `new`, or more of them, or none.
        """
        kept, cut = self._append(new, gaps)
        accepted = len(new) - 1
        self.stored = min(self.stored + 1 + accepted, len(self.tokens))
        self.steps.append(
            Step(
                k=k,
                accepted=accepted,
                accepted_trimmed=min(accepted, kept),
                cut=cut,
                confidence=confidence,
                rejected=rejected,
                forced=self.forced,
            )
        )

    def _append(self, new: list[int], gaps: Gaps) -> tuple[int, Cut]:
        """Append `new` up to the first stop or the limit; returns how many were kept and why not all."""
        room = self.limit - self.emitted
        kept = min(len(new), room)
        if kept == room:
            self.finish_reason = FinishReason.LENGTH
        if self._watch is not None or not self.stop_ids.keys().isdisjoint(new):
            for i, token in enumerate(new[:kept]):
                if self._stops_at(token):
                    self.finish_reason, kept = FinishReason.STOP, i + 1
                    break
        self.tokens += new[:kept]
        self.gaps += gaps[:kept]
        if kept == len(new):
            return kept, Cut.NONE
        return kept, Cut.STOP if self.finish_reason is FinishReason.STOP else Cut.LIMIT

    def _stops_at(self, token: int) -> bool:
        if token in self.stop_ids:
            self.stop_hit = self.stop_ids[token]
            return True
        hit = self._watch.push(token) if self._watch is not None else None
        if hit is not None:
            self._text_end, self.stop_hit = hit
        return hit is not None

    def close(self) -> None:
        """Note the time of the last token."""
        self.seconds = time.perf_counter() - self.admitted_at if self.admitted_at is not None else 0.0

    def update(self, decode: Callable[[list[int]], str]) -> Update | None:
        """What the last tick added; None where it was a part of a prefill."""
        new = tuple(self.tokens[self.prompt_len + self.told :])
        step = self.steps[-1] if len(self.steps) > self.told_steps else None
        if not new and step is None:
            return None
        self.told, self.told_steps = self.emitted, len(self.steps)
        completion = self.completion(decode) if self.finish_reason is not None else None
        return Update(id=self.request.id, token_ids=new, step=step, completion=completion)

    def completion(self, decode: Callable[[list[int]], str]) -> Completion:
        """The finished request's record."""
        assert self.finish_reason is not None
        output = self.tokens[self.prompt_len :]
        if self._text_end is not None and self._watch is not None:
            text = self._watch.text[: self._text_end]
        else:
            by_token = self.finish_reason is FinishReason.STOP
            text = decode(output[:-1] if by_token else output)
        return Completion(
            id=self.request.id,
            text=text,
            token_ids=tuple(output),
            prompt_tokens=self.prompt_len,
            cached_tokens=self.cached_tokens,
            finish_reason=self.finish_reason,
            stop_hit=self.stop_hit,
            steps=tuple(self.steps),
            forced=self.forced,
            seconds=self.seconds,
            gaps=tuple(self.gaps),
        )

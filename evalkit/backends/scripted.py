"""A Backend whose texts a function decides: evalkit's own tests need no engine and no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.api import Completion, Cut, FinishReason, Request, Step
from evalkit.backends import Failure, OnFinish, Score

Answer = Callable[[Request], str | Failure]


class Scripted:
    """Answers each request with `answer(request)`, a word a token, drafted K at a time.

    Which drafts are accepted is drawn from the request's seed, so a request gives the same steps whenever
    it is run. Every other request finishes first, as in a batch.
    """

    def __init__(self, answer: Answer, *, k: int = 0, forced: bool = False) -> None:
        self._answer, self._k, self._forced = answer, k, forced
        self.asked: list[Request] = []
        self._verify_steps = 0

    @property
    def settings(self) -> Mapping[str, str]:
        return {"device": "cpu", "dtype": "float32", "device_name": "scripted"}

    @property
    def counters(self) -> Mapping[str, Any]:
        return {"requests": len(self.asked), "verify_steps": self._verify_steps}

    def generate(self, requests: Sequence[Request], on_finish: OnFinish) -> None:
        for request in [*requests[1::2], *requests[::2]]:
            self.asked.append(request)
            text = self._answer(request)
            on_finish(text if isinstance(text, Failure) else self._completion(request, text))

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        return [Score(logprob=-float(len(continuation)), greedy=False) for _, continuation in pairs]

    def _completion(self, request: Request, text: str) -> Completion:
        words = text.split(" ")
        limit = request.params.max_tokens
        steps, left, seed = [], min(len(words), limit) - 1, request.params.seed
        while left > 0:
            raw = seed % (self._k + 1) if self._k else 0
            seed = seed // 7 + 1
            given = min(raw + 1, left)  # the target's own token is the first to go
            cut = Cut.NONE if given == raw + 1 else Cut.STOP
            steps.append(Step(k=self._k, accepted=raw, accepted_trimmed=min(raw, given), cut=cut))
            left -= given
        self._verify_steps += sum(step.k > 0 for step in steps)
        return Completion(
            id=request.id,
            text=" ".join(words[:limit]),
            token_ids=tuple(range(min(len(words), limit))),
            prompt_tokens=len(request.prompt),
            cached_tokens=0,
            finish_reason=FinishReason.LENGTH if len(words) > limit else FinishReason.STOP,
            steps=tuple(steps),
            forced=self._forced,
            seconds=0.001,
        )

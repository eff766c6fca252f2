"""What goes into the engine and what comes out. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from engine.errors import EngineError

MAX_TOP_K = 2**31 - 1  # more than any vocabulary, and what every engine's whole numbers hold


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token, the end-of-text token or a stop string
    LENGTH = "length"  # max_tokens or the end of the context


class Cut(StrEnum):
    """Why the tokens of a verify step did not all reach the output."""

    NONE = ""
    STOP = "stop"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded.

    temperature 0 is greedy. top_k 0 and top_p 1 are off. `stop` strings and `stop_token_ids` end the
    text before themselves. `seed` is the request's own: two requests with the same prompt, seed and
    settings give the same tokens whatever else is in the batch. Raises EngineError for a value of another type or
    out of its range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        if self.max_tokens < 1:
            raise EngineError(f"max_tokens is {self.max_tokens}", "give a number of at least 1")
        if not 0.0 <= self.temperature <= 100.0:
            raise EngineError(f"temperature is {self.temperature}", "give a number from 0 to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise EngineError(f"top_p is {self.top_p}", "give a number above 0 and at most 1")
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise EngineError(f"top_k is {self.top_k}", f"give 0 (off) or a positive number, at most {MAX_TOP_K}")
        if any(not s for s in self.stop):
            raise EngineError("stop holds an empty string", "remove it")

    def _check_types(self) -> None:
        for name in ("max_tokens", "top_k", "seed"):
            if not is_whole(value := getattr(self, name)):
                raise EngineError(f"{name} is {value!r}", "give a whole number")
        for name in ("temperature", "top_p"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, Real):
                raise EngineError(f"{name} is {value!r}", "give a number")
        if not isinstance(self.ignore_eos, bool):
            raise EngineError(f"ignore_eos is {self.ignore_eos!r}", "give True or False")
        if isinstance(self.stop, str):
            raise EngineError(f"stop is the string {self.stop!r}", "give a tuple of strings")
        if not isinstance(self.stop, tuple | list) or any(not isinstance(s, str) for s in self.stop):
            raise EngineError(f"stop is {self.stop!r}", "give a tuple of strings")
        ids = self.stop_token_ids
        if not isinstance(ids, tuple | list) or not all(map(is_whole, ids)):
            raise EngineError(f"stop_token_ids is {ids!r}", "give a tuple of token ids")


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number: an int or an integer of numpy, and no bool."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decode step of one request.

    A verify step has `k` >= 1 drafts verified: all that were proposed, unless their confidences chose
    fewer. `accepted` of them were kept by the verify rule, before any trimming; `accepted_trimmed` of
    them are in the output. The target adds its own token to each step. `k` == 0 is a step without a
    draft, which no acceptance figure counts.
    0 <= accepted_trimmed <= accepted <= k always holds.
    """

    k: int
    accepted: int
    accepted_trimmed: int
    cut: Cut = Cut.NONE
    confidence: tuple[float, ...] = ()  # the draft's own, one a position, where it has a confidence head
    forced: bool = False  # `accepted` was drawn, not verified
    rejected: tuple[int, ...] = ()  # ids of the drafts after the accepted ones, where the engine keeps them

    def __post_init__(self) -> None:
        if not 0 <= self.accepted_trimmed <= self.accepted <= self.k:
            raise ValueError(f"not a step: {self.accepted_trimmed=} {self.accepted=} {self.k=}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to complete; `id` comes back on the Completion."""

    id: str
    prompt: str | tuple[int, ...]
    params: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished request. `text` and `token_ids` are what the request kept after stops and limits.

    `token_ids` includes a stop token that ended it (as `emitted` counts it), never what follows it.
    """

    id: str
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int  # prompt tokens served from the prefix cache
    finish_reason: FinishReason
    stop_hit: str = ""  # the stop string, or the stop token's id as text
    steps: tuple[Step, ...] = ()
    forced: bool = False  # acceptance was drawn, not verified: no scorer may take this text
    seconds: float = 0.0  # from admission to the last token
    gaps: tuple[float, ...] = ()  # top-two logit gap of the target at each of token_ids; () where not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one tick gave one request: the tokens it kept, and the Completion once it has finished.

    `step` is None for the token that prefill gives. The `token_ids` of a request's updates, joined, are its
    Completion's, and the `step`s its steps.
    """

    id: str
    token_ids: tuple[int, ...]
    step: Step | None = None
    completion: Completion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural logarithm of a token's probability after what precedes it, in the target's plain softmax.

    `top` are the likeliest tokens there and their logarithms, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]

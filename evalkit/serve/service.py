"""Everything a route needs, in one record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evalkit.serve.chat import ChatTemplate
from evalkit.serve.errors import ApiError
from evalkit.serve.settings import ServeSettings
from evalkit.serve.worker import Worker

Json = dict[str, Any]


class TextStream(Protocol):
    """engine.tokenizer.TextStream."""

    def push(self, tokens: tuple[int, ...]) -> str: ...
    def finish(self, text: str) -> str: ...


class Tokenizer(Protocol):
    """What is asked of engine.tokenizer.Tokenizer."""

    special: dict[str, int]

    def encode(self, texts: list[str]) -> list[list[int]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def stream(self, stop: tuple[str, ...]) -> TextStream: ...


@dataclass(slots=True, kw_only=True)
class Service:
    """One model that is served. `about` is what /v1/models tells of the engine; `k` its K."""

    settings: ServeSettings
    worker: Worker
    tokenizer: Tokenizer
    template: ChatTemplate
    context: int  # tokens
    vocabulary: int
    k: int
    eos: Sequence[int] = ()
    reach: int = 0  # characters that one token can stand for at most, 0 where nobody knows (bound.py)
    about: Json = field(default_factory=dict)
    notes: Sequence[str] = ()  # what the engine says of its configuration, for the one who starts it
    draining: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def trouble(self) -> str:
        """Why no new work is taken, '' where it is."""
        return "draining" if self.draining else "engine stopped" if self.worker.broken else ""

    def refuse(self) -> ApiError | None:
        """What new work is told while the server drains."""
        if self.draining:
            return ApiError(503, "the server is stopping", code="draining", retry_after=5)
        return None

    async def encode(self, texts: list[str], *, room: int | None = None, param: str = "prompt") -> list[list[int]]:
        """Token ids, as the engine itself would have them. A long text takes seconds, in which others are served.

        Raises ApiError for text that is no Unicode, and, before any work, for one that cannot have `room` tokens or
        fewer. `param` is the field that holds the texts.
        """
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise ApiError(400, "the text holds half of a surrogate pair", param=param) from None
        longest = max(map(len, texts), default=0)
        if room is not None and self.reach and (least := -(-longest // self.reach)) > room:
            raise self.too_long(f"{longest} characters, which are at least {least} tokens", param)
        return await asyncio.to_thread(self.tokenizer.encode, texts)

    def too_long(self, found: str, param: str) -> ApiError:
        """What a prompt is told that alone leaves no room for an answer."""
        return ApiError(400, f"the prompt has {found}; the context holds {self.context}, its answer's tokens too",
                        param=param, code="context_length_exceeded")  # fmt: skip

    def check_ids(self, ids: Sequence[int], param: str = "prompt") -> None:
        """Raises ApiError for no token, and for one outside the vocabulary. `param` is the field that holds them."""
        what = "tokens" if param == "tokens" else "the prompt"
        if not ids:
            raise ApiError(400, f"{what} {'is an empty list' if what == param else 'has 0 tokens'}", param=param)
        if (odd := min(ids)) < 0 or (odd := max(ids)) >= self.vocabulary:
            raise ApiError(400, f"{what} holds the id {str(odd)[:20]}, the vocabulary has 0 to "
                           f"{self.vocabulary - 1}", param=param)  # fmt: skip

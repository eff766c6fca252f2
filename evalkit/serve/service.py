"""Everything a route needs, in one record."""

from __future__ import annotations

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
    about: Json = field(default_factory=dict)
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

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids, as the engine itself would have them. Raises ApiError for text that is no Unicode."""
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise ApiError(400, "the text holds half of a surrogate pair", param="prompt") from None
        return self.tokenizer.encode(texts)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises ApiError for no token, and for one outside the vocabulary."""
        if not ids:
            raise ApiError(400, "the prompt has 0 tokens", param="prompt")
        if max(ids) >= self.vocabulary:
            raise ApiError(400, f"the prompt holds the id {max(ids)}, the vocabulary has 0 to {self.vocabulary - 1}",
                           param="prompt")  # fmt: skip

"""A server's reply, whole or in chunks, read into one Answer. What can't be read is a Trouble, never an empty text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evalkit.backends.http.errors import Trouble

REASONING = ("reasoning_content", "reasoning")  # the field's older and newer name


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one attempt gave. `finish` is stop or length; `raw` and `choice` hold the reply for its acceptance.

    `chunks` counts chunks with text, and `first_at` is the seconds to the first of them; 0 for a whole reply.
    """

    text: str
    reasoning: str = ""
    reasoning_field: str = ""
    finish: str = ""
    stop_hit: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    chunks: int = 0
    first_at: float = 0.0


def read_json(text: str | bytes) -> dict[str, Any]:
    """The object in a reply's body."""
    try:
        found = json.loads(text)
    except (ValueError, UnicodeDecodeError):
        page = text.lstrip()[:1] in ("<", b"<")
        raise Trouble("bad reply", f"the body is {'an HTML page' if page else 'no JSON'}") from None
    if not isinstance(found, dict):
        raise Trouble("bad reply", "the body is no JSON object")
    return found


def read_reply(reply: Mapping[str, Any], endpoint: str) -> Answer:
    """The Answer of a whole reply."""
    if "error" in reply and not reply.get("choices"):
        raise Trouble("bad reply", f"an error under HTTP 200: {json.dumps(reply['error'])[:200]}")
    if endpoint == "generate":
        return finished(_generate(reply))
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Trouble("bad reply", "expected one choice")
    choice = choices[0]
    if endpoint == "chat":
        message = choice.get("message")
        if not isinstance(message, dict):
            raise Trouble("bad reply", "a choice without a message")
        name = next((n for n in REASONING if message.get(n)), "")
        text, thought = message.get("content"), message.get(name) if name else ""
    else:
        if "text" not in choice:
            raise Trouble("bad reply", "a choice without a text")
        text, thought, name = choice.get("text"), "", ""
    made = Answer(
        text=_text(text), reasoning=_text(thought), reasoning_field=name, finish=str(choice.get("finish_reason") or ""),
        stop_hit=_stop(choice.get("stop_reason")), token_ids=_ids(choice.get("token_ids")),
        prompt_ids=_ids(reply.get("prompt_token_ids") or choice.get("prompt_token_ids")), raw=reply, choice=choice,
    )  # fmt: skip
    return finished(with_usage(made, reply.get("usage")))


def _generate(reply: Mapping[str, Any]) -> Answer:
    meta = reply.get("meta_info")
    if not isinstance(reply.get("text"), str) or not isinstance(meta, dict):
        raise Trouble("bad reply", "expected text and meta_info")
    end = meta.get("finish_reason")
    end = end if isinstance(end, dict) else {"type": end}
    made = Answer(text=reply["text"], finish=str(end.get("type") or ""), stop_hit=_stop(end.get("matched")), raw=reply,
                  token_ids=_ids(reply.get("output_ids")))  # fmt: skip
    usage = {n: meta.get(n) for n in ("prompt_tokens", "completion_tokens")}
    return with_usage(made, usage | {"prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}})


@dataclass(slots=True)
class Stream:
    """Chunks of a stream, put together. `take` says when the last one has come."""

    endpoint: str
    answer: Answer = field(default_factory=lambda: Answer(text=""))
    pieces: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    closed: bool = False

    def take(self, data: bytes, seconds: float) -> None:
        """One `data:` line's content."""
        if data == b"[DONE]":
            self.closed = True
            return
        chunk = read_json(data)
        if "error" in chunk and not chunk.get("choices"):
            raise Trouble("stream cut", f"an error in the stream: {json.dumps(chunk['error'])[:200]}")
        if self.endpoint == "generate":
            made = _generate(chunk)  # each chunk holds the whole text so far
            grown = len(made.text) > sum(map(len, self.pieces))
            self.pieces = [made.text]
            self.answer = replace(made, chunks=self.answer.chunks, first_at=self.answer.first_at)
            self._count(grown, seconds)
            return
        for choice in chunk.get("choices") or ():
            self._choice(choice, seconds)
        raw = {n: chunk[n] for n in ("metrics", "timings", "meta_info") if chunk.get(n)}
        self.answer = with_usage(replace(self.answer, raw={**self.answer.raw, **raw}), chunk.get("usage"))

    def _choice(self, choice: Any, seconds: float) -> None:
        if not isinstance(choice, dict):
            raise Trouble("bad reply", "a chunk with a choice that is no object")
        delta = choice.get("delta") or {} if self.endpoint == "chat" else choice
        text = _text(delta.get("content" if self.endpoint == "chat" else "text"))
        name = next((n for n in REASONING if delta.get(n)), "")
        thought = _text(delta.get(name)) if name else ""
        self.pieces.append(text)
        self.thoughts.append(thought)
        self._count(bool(text or thought), seconds)
        told = {n: choice[n] for n in ("speculative_decoding_stats", "meta_info") if choice.get(n)}
        self.answer = replace(
            self.answer,
            reasoning_field=name or self.answer.reasoning_field,
            finish=str(choice.get("finish_reason") or self.answer.finish),
            stop_hit=_stop(choice.get("stop_reason")) or self.answer.stop_hit,
            choice={**self.answer.choice, **told},
        )

    def _count(self, grown: bool, seconds: float) -> None:
        if grown:
            first = self.answer.first_at or seconds
            self.answer = replace(self.answer, chunks=self.answer.chunks + 1, first_at=first)

    def finish(self) -> Answer:
        """The Answer. A stream without a finish reason was cut, whatever its text looks like."""
        if not self.answer.finish:
            raise Trouble("stream cut", f"it ended after {self.answer.chunks} chunks without a finish reason")
        return finished(replace(self.answer, text="".join(self.pieces), reasoning="".join(self.thoughts)))


def with_usage(answer: Answer, usage: Any) -> Answer:
    """The Answer with the token counts of a usage object, where there is one."""
    if not isinstance(usage, dict):
        return answer
    before, after = (usage.get(n) or {} for n in ("prompt_tokens_details", "completion_tokens_details"))
    reasoning = _count(after.get("reasoning_tokens")) or _count(usage.get("reasoning_tokens"))
    return replace(
        answer, prompt_tokens=_count(usage.get("prompt_tokens")), tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(before.get("cached_tokens")), reasoning_tokens=reasoning,
    )  # fmt: skip


def finished(answer: Answer) -> Answer:
    """The Answer, if it says how it ended and what thinking it counts. Aborted and filtered ones are failures."""
    if answer.finish in ("abort", "error"):
        raise Trouble("aborted by the server", again=True)
    if answer.finish not in ("stop", "length"):
        raise Trouble(f"finish reason {answer.finish or 'missing'!r}", again=not answer.finish)
    if answer.reasoning_tokens and not answer.reasoning and "think>" not in answer.text and answer.text == "":
        words = f"{answer.reasoning_tokens} reasoning tokens are counted and no field carries them"
        raise Trouble("thinking without text", words, again=False)
    return answer


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _text(value: Any) -> str:
    """Text of a field; null is none. A list of parts, as some servers send, is joined."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(p.get("text", "") for p in value if isinstance(p, dict))
    if not isinstance(value, str):
        raise Trouble("bad reply", f"a text that is a {type(value).__name__}")
    return value


def _stop(value: Any) -> str:
    return "" if value is None else str(value)


def _ids(value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and all(type(x) is int for x in value)
    return tuple(value) if good else ()

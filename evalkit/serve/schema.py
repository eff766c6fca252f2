"""Bodies of requests. A field that the engine cannot honour is refused unless its value changes nothing."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from engine.api import SamplingParams
from engine.config import nearest

MAX_LOGPROBS = 20
# Fields of other servers and the values at which they ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "length_penalty": (1,), "logit_bias": ({},), "suffix": ("",), "min_p": (0,), "min_tokens": (0,),
    "use_beam_search": (False,), "skip_special_tokens": (True,), "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,), "add_special_tokens": (True, False), "tools": ([],),
    "tool_choice": ("none", "auto"), "top_logprobs": (0,), "modalities": (["text"],), "return_meta_info": (True, False),
    "continue_final_message": (False,), "response_format": ({"type": "text"},),
}  # fmt: skip
IGNORED = ("user", "metadata", "store", "service_tier", "request_id", "safety_identifier", "prompt_cache_key")

MAX_STOPS = 64
MAX_TOKENS = 2**31 - 1  # of a limit: more than any context
ABOUT_FIELD = "about_field"  # pydantic's type of an error whose context names the field
KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object",
}  # fmt: skip

Id = Annotated[int, Field(ge=0)]
Limit = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


def kind(value: Any) -> str:
    """What a JSON value is, in plain words."""
    return KINDS.get(type(value), "null")


def _prompt(given: Any) -> Any:
    """A text, a list of texts, a list of ids, or a list of such lists; ids are compared with the vocabulary later."""
    wanted = "give a text, a list of texts, token ids, or a list of lists of token ids"
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise ValueError(f"is {kind(given)}; {wanted}")
    if not given:
        raise ValueError(f"is an empty list; {wanted}")
    kinds = {kind(one) for one in given}
    if kinds in ({"a text"}, {"a whole number"}):
        return given
    if kinds != {"a list"}:
        raise ValueError(f"is a list that holds {' and '.join(sorted(kinds))}; {wanted}")
    for i, one in enumerate(given):
        if odd := sorted({kind(token) for token in one} - {"a whole number"}):
            raise ValueError(f"holds {odd[0]} in list {i}; {wanted}")
    return given


def _stop(given: Any) -> Any:
    """A text or a list of texts."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise ValueError(f"is {kind(given)}; give a text or a list of texts")
    if odd := sorted({kind(one) for one in given} - {"a text"}):
        raise ValueError(f"holds {odd[0]}; give a text or a list of texts")
    if len(given) > MAX_STOPS:
        raise ValueError(f"has {len(given)} texts, at most {MAX_STOPS} are taken")
    return given


def _about(field: object, said: str) -> PydanticCustomError:
    """An error about a field that no model has, so that pydantic has no place for it."""
    return PydanticCustomError(ABOUT_FIELD, "{said}", {"said": said, "field": str(field)[:40]})


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk with the token counts."""

    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What completions and chat completions share."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    max_tokens: Limit | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0  # -1 and 0 are off
    seed: int | None = None
    stop: Annotated[str | list[str], PlainValidator(_stop)] = Field(default_factory=list)
    stop_token_ids: Annotated[list[Id], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    return_token_ids: bool = False
    return_steps: bool = False  # each decode step as [k, accepted, accepted_trimmed]

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """Drops nulls and what changes nothing; names what is unknown or cannot be done."""
        if not isinstance(given, dict):
            raise ValueError("the body is not a JSON object")
        kept = {}
        for name, value in given.items():
            if value is None or name in IGNORED:
                continue
            if name in cls.model_fields:
                kept[name] = value
            elif name not in NEUTRAL:
                close = nearest(str(name), tuple(cls.model_fields)).strip()
                raise _about(name, f"unknown field {str(name)[:40]!r}; {close or 'leave it away'}")
            elif not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in NEUTRAL[name]):
                only = " or ".join(repr(v) for v in NEUTRAL[name])
                raise _about(name, f"{name} is not supported here; leave it away, or give {only}")
        return kept

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The engine's form. Raises EngineError for a number out of its range."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
        )


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: Annotated[str | list[str] | list[int] | list[list[int]], PlainValidator(_prompt)]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry a prompt: texts, or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        first = self.prompt[0]
        return [self.prompt] if isinstance(first, int) else self.prompt  # type: ignore[return-value]


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1), FailFast()]
    max_completion_tokens: Limit | None = None
    logprobs: bool = False
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class TokenizeBody(BaseModel):
    """POST /tokenize, as vLLM has it."""

    model_config = ConfigDict(strict=True)
    prompt: str
    add_special_tokens: bool = False


class DetokenizeBody(BaseModel):
    """POST /detokenize, as vLLM has it."""

    model_config = ConfigDict(strict=True)
    tokens: Annotated[list[int], FailFast()]

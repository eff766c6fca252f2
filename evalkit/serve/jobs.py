"""From a request's body to what the engine is asked."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from engine.api import Request, SamplingParams
from engine.errors import EngineError
from evalkit.serve.errors import ApiError
from evalkit.serve.schema import Body, ChatBody, CompletionBody
from evalkit.serve.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The prompts of one HTTP request. `requests` has one for each, or none where they are only scored.

    `echoed` are prompt texts to put before the answers. `logprobs` is how many of the likeliest tokens to name at
    each place, None for no logprobs at all.
    """

    id: str
    prompts: tuple[tuple[int, ...], ...]
    requests: tuple[Request, ...]
    params: SamplingParams
    body: Body
    chat: bool
    echoed: tuple[str, ...] = ()
    logprobs: int | None = None


async def completion_job(service: Service, body: CompletionBody) -> Job:
    """Raises ApiError for what cannot be done."""
    _check_model(service, body)
    if body.stream and body.logprobs is not None:
        raise ApiError(400, "logprobs are not streamed; leave stream or logprobs away", param="logprobs")
    asked = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's own default
    if asked == 0 and not (body.echo and body.logprobs is not None):
        raise ApiError(400, "max_tokens is 0, which needs echo and logprobs", param="max_tokens")
    given = body.prompts
    texts = [p for p in given if isinstance(p, str)]
    ids = [p for p in given if not isinstance(p, str)]
    if texts:
        ids = await service.encode(texts, room=service.context - min(asked, 1))
    params = _params(service, body, ids, asked, "prompt")
    echoed: tuple[str, ...] = ()
    if body.echo:
        echoed = tuple(texts) or tuple(service.tokenizer.decode(p) for p in ids)
    return _job("cmpl", ids, params, body, only_scored=asked == 0, echoed=echoed, logprobs=body.logprobs)


async def chat_job(service: Service, body: ChatBody) -> Job:
    """Raises ApiError for what cannot be done. Without a limit of its own an answer may fill the context."""
    _check_model(service, body)
    if body.logprobs:
        raise ApiError(400, "logprobs of chats are not supported; use /v1/completions", param="logprobs")
    asked, field = body.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, field = body.max_tokens, "max_tokens"
    if asked == 0:
        raise ApiError(400, f"{field} is 0, a chat is answered with at least 1 token", param=field)
    text = service.template.prompt(body.messages, body.chat_template_kwargs, body.add_generation_prompt)
    ids = await service.encode([text], room=service.context - 1, param="messages")
    if asked is None:
        asked = max(service.context - len(ids[0]), 1)
    return _job("chatcmpl", ids, _params(service, body, ids, asked, "messages"), body, chat=True)


def _job(
    prefix: str,
    ids: list[list[int]],
    params: SamplingParams,
    body: Body,
    *,
    chat: bool = False,
    only_scored: bool = False,
    echoed: tuple[str, ...] = (),
    logprobs: int | None = None,
) -> Job:
    name, prompts = f"{prefix}-{uuid4().hex}", tuple(map(tuple, ids))
    requests = () if only_scored else tuple(
        Request(id=f"{name}-{i}", prompt=p, params=params) for i, p in enumerate(prompts)
    )  # fmt: skip
    return Job(id=name, prompts=prompts, requests=requests, params=params, body=body, chat=chat, echoed=echoed,
               logprobs=logprobs)  # fmt: skip


def _params(service: Service, body: Body, ids: list[list[int]], asked: int, param: str) -> SamplingParams:
    """`param` is the field that holds the prompts."""
    for one in ids:
        service.check_ids(one, param)
        if len(one) + min(asked, 1) > service.context:
            raise service.too_long(f"{len(one)} tokens", param)
        if len(one) + asked > service.context:
            raise ApiError(400, f"{len(one)} prompt tokens and max_tokens {asked} are {len(one) + asked}, the context "
                           f"holds {service.context}", param="max_tokens", code="context_length_exceeded")  # fmt: skip
    if (odd := max(body.stop_token_ids, default=0)) >= service.vocabulary:
        raise ApiError(400, f"stop_token_ids has {str(odd)[:20]}, the vocabulary has 0 to {service.vocabulary - 1}",
                       param="stop_token_ids")  # fmt: skip
    try:
        found = body.sampling(max(asked, 1))
        "".join(found.stop).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "stop holds half of a surrogate pair", param="stop") from None
    except EngineError as e:
        field = str(e).split()[0]  # what the engine says begins with it
        raise ApiError(400, str(e), param=field if field in type(body).model_fields else None) from None
    return found


def _check_model(service: Service, body: Body) -> None:
    if body.model is not None and body.model != service.settings.name:
        raise ApiError(404, f"there is no model {body.model[:80]!r} here; use {service.settings.name}",
                       param="model", code="model_not_found")  # fmt: skip

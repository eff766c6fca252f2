"""Request -> path and JSON body. Every sampling field is sent: a server's default is never what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.api import Request
from evalkit.errors import EvalkitError

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}
SEED_BITS = 31  # what every server takes


def body_of(
    request: Request, *, endpoint: str, model: str, stream: bool, send_stops: bool, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of one request. `send_stops` False: the stops are applied here, after the thinking."""
    params, seed = request.params, request.params.seed & ((1 << SEED_BITS) - 1)
    stops = list(params.stop) if send_stops else []
    if endpoint == "generate":
        return _generate(request, stops, stream) | dict(extra)
    out: dict[str, Any] = {
        "model": model,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "n": 1,
        "seed": seed,
        "stream": stream,
    }
    if endpoint == "chat":
        if not isinstance(request.prompt, str):
            raise EvalkitError("a prompt of token ids has no chat form", "use --endpoint completions")
        out["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        out["prompt"] = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    if stops:
        out["stop"] = stops
    if params.top_k:
        out["top_k"] = params.top_k
    if params.ignore_eos:
        out["ignore_eos"] = True
    if stream:
        out["stream_options"] = {"include_usage": True}
    return out | dict(extra)


def _generate(request: Request, stops: list[str], stream: bool) -> dict[str, Any]:
    """SGLang's own form."""
    params = request.params
    sampling: dict[str, Any] = {
        "max_new_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "stop": stops,
        "ignore_eos": params.ignore_eos,
    }
    if params.temperature:
        sampling["sampling_seed"] = params.seed & ((1 << SEED_BITS) - 1)
    prompt = {"text": request.prompt} if isinstance(request.prompt, str) else {"input_ids": list(request.prompt)}
    return {**prompt, "sampling_params": sampling, "stream": stream}

"""A server that answers sums, in OpenAI's and SGLang's form, and fails on purpose. Run as a script; prints its port.

Whether and how a request fails is drawn from the seed, the prompt and the number of times it was asked, so a repaired
request is repaired whenever the test runs. It has the metrics pages of vLLM and ATOM for what it really "did": each
answer's words are its tokens, verified in blocks of K drawn from the prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KINDS = ("timeout", "429", "500", "503", "cut", "reset", "json", "stall")
SUM = re.compile(r"(\d+) \+ (\d+)\?")


def draw(*words: object) -> int:
    """A number of 64 bits that only depends on the words."""
    return int.from_bytes(hashlib.sha256(":".join(map(str, words)).encode()).digest()[:8], "big")


@dataclass
class State:
    """What the server was told to be, and what it has counted."""

    k: int = 4
    rate: float = 0.0
    kinds: tuple[str, ...] = KINDS
    seed: int = 0
    ranks: int = 1
    silent: tuple[int, ...] = ()
    think: str = ""  # reasoning_content | reasoning | text
    ignore_switch: bool = False
    argmax: bool = False  # takes the likeliest token whatever the temperature
    wrong_share: float = 0.0  # of answers that are a number off
    info: dict[str, Any] = field(default_factory=dict)  # /server_info
    about: dict[str, Any] = field(default_factory=dict)  # `evalkit` of its entry in /v1/models
    empty: bool = False  # answers without a text
    listing: str = ""  # in place of /v1/models' own body
    refuses: tuple[str, ...] = ()  # fields of a body that get a 400
    status: int = 200  # of /v1/models
    location: str = ""  # where /v1/models redirects to
    replies: dict[str, Any] = field(default_factory=dict)  # path -> [status, text, or where a redirect leads to]
    tls: str = ""  # folder of a cert.pem and key.pem to serve https with
    unlucky: float = 0.0  # share of probes and of pages that get a 500
    null_share: float = 0.0  # of answers that are thinking only, cut by the limit
    drip: float = 0.0  # seconds between two chunks, or before an answer
    page: str = "vllm"
    refresh: float = 0.0  # ATOM pushes its snapshot from time to time
    key: str = ""
    die_after: int = 0
    started: float = field(default_factory=time.time)
    asked: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)  # times that each path was asked
    counts: list[Counter[str]] = field(default_factory=list)
    pushed: tuple[float, list[Counter[str]]] = (0.0, [])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    now: int = 0
    most: int = 0

    def reset(self) -> None:
        self.started = time.time()
        self.counts = [Counter() for _ in range(self.ranks)]


def answer_of(prompt: str) -> str:
    """The last sum of the prompt, in words that lm-eval's filters read."""
    found = SUM.findall(prompt)
    if not found:
        return "no sum"
    a, b = map(int, found[-1])
    return f" It is {a} + {b} = {a + b} , so\n#### {a + b}"


def steps_of(prompt: str, tokens: int, k: int) -> list[int]:
    """Accepted drafts of each verify step. The last step's drafts past the end are counted, as engines do."""
    out, left, i = [], tokens - 1, 0
    while left > 0:
        kept = draw(prompt, i) % (k + 1) if k else 0
        out.append(kept)
        left -= kept + 1
        i += 1
    return out


def count(state: State, prompt: str, tokens: int, steps: list[int], prompt_tokens: int) -> None:
    mine = state.counts[draw(prompt, "rank") % state.ranks]
    if draw(prompt, "rank") % state.ranks in state.silent:
        return
    mine["requests"] += 1
    mine["output"] += tokens
    mine["prompt"] += prompt_tokens
    mine["steps"] += len(steps)
    mine["accepted"] += sum(steps)
    mine["drafts"] += state.k * len(steps)
    for kept in steps:
        mine[f"exactly:{kept}"] += 1
        for position in range(kept):
            mine[f"pos:{position}"] += 1


async def complete(request: web.Request) -> web.StreamResponse:
    state: State = request.app["state"]
    if denied := _denied(state, request):
        return denied
    try:
        body = await request.json()
    except ValueError:
        return web.json_response({"error": "no JSON"}, status=400)
    if odd := [name for name in state.refuses if name in body]:
        message = f"unknown field {odd[0]!r}; leave it away"
        return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=400)
    chat = request.path.endswith("/chat/completions")
    prompt = body["messages"][-1]["content"] if chat else str(body["prompt"])
    state.bodies.append({n: v for n, v in body.items() if n not in ("prompt", "messages")})
    state.asked[prompt] += 1
    state.now += 1
    state.most = max(state.most, state.now)
    try:
        return await _answer(state, request, body, prompt, chat)
    finally:
        state.now -= 1


def _denied(state: State, request: web.Request) -> web.Response | None:
    sent = request.headers.get("Authorization", "")
    if state.key and sent != f"Bearer {state.key}":
        return web.json_response({"error": f"Incorrect API key provided: {sent}"}, status=401)
    return None


async def _answer(
    state: State, request: web.Request, body: dict[str, Any], prompt: str, chat: bool
) -> web.StreamResponse:
    number = state.asked[prompt]
    probing = not SUM.search(prompt) or prompt.startswith("What is 17")
    unlucky = draw(state.seed, prompt, number, "fault") / 2**64 < state.rate and not probing
    kind = state.kinds[draw(state.seed, prompt, number, "kind") % len(state.kinds)] if unlucky else ""
    if kind == "stall" and not body.get("stream"):
        kind = "timeout"
    if probing and draw(state.seed, prompt, number, "probe") / 2**64 < state.unlucky:
        kind = "500"
    if kind:
        state.faults[kind] += 1
    if kind in ("429", "500", "503"):
        headers = {"Retry-After": "0"} if kind == "429" else {}
        return web.Response(status=int(kind), text=f"out of luck {request.headers.get('Authorization', '')}",
                            headers=headers)  # fmt: skip
    if kind == "reset":
        request.transport.close()  # type: ignore[union-attr]
        return web.Response()
    text, thought, finish = _text(state, body, prompt, probing)
    words = text.split(" ") if text else []
    tokens = max(1, len(words) + len(thought.split()))
    steps = steps_of(prompt, tokens, state.k)
    if kind == "timeout":
        await asyncio.sleep(3600)
    if state.drip and not body.get("stream"):
        await asyncio.sleep(state.drip)
    if not probing or state.page == "all":
        count(state, prompt, tokens, steps, len(prompt.split()))
    if state.die_after and sum(c["requests"] for c in state.counts) >= state.die_after:
        os._exit(9)
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": tokens, "total_tokens": 0}
    if body.get("stream"):
        return await _stream(state, request, words, steps, usage, finish, kind, chat)
    payload = json.dumps(_payload(text, thought, finish, usage, chat, state))
    if kind == "json":
        return web.Response(text=payload[: len(payload) // 2], content_type="application/json")
    if kind == "cut":
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(payload))})
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2].encode())
        request.transport.close()  # type: ignore[union-attr]
        return response
    return web.Response(text=payload, content_type="application/json")


def _text(state: State, body: dict[str, Any], prompt: str, probing: bool) -> tuple[str, str, str]:
    """(text, thinking, finish reason)."""
    text = " 42" if probing else answer_of(prompt)
    if state.empty and not probing:
        return "", "", "stop"
    if probing and body.get("temperature") and not state.argmax:
        text = f" {draw(prompt, body.get('seed')) % 10**6}"
    if not probing and draw(prompt, "wrong") / 2**64 < state.wrong_share:
        text += "7"
    off = body.get("chat_template_kwargs", {}).get("enable_thinking") is False and not state.ignore_switch
    thought = "first I add\n\nthen 99 #### 99" if state.think and not off else ""
    if not probing and draw(prompt, "null") / 2**64 < state.null_share:
        return "", thought or "I think and think", "length"
    if state.think == "text" and thought:
        return f"<think>{thought}</think>{text}", "", "stop"
    for stop in body.get("stop", ()):
        if stop in text:
            text = text[: text.index(stop)]
    return text, thought, "stop"


def _payload(text: str, thought: str, finish: str, usage: dict[str, int], chat: bool, state: State) -> dict[str, Any]:
    if not chat:
        return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thought:
        message["reasoning" if state.think == "reasoning" else "reasoning_content"] = thought
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


async def _stream(
    state: State, request: web.Request, words: list[str], steps: list[int], usage: dict[str, int], finish: str,
    kind: str, chat: bool,
) -> web.StreamResponse:  # fmt: skip
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    at, pieces = 1, [words[:1]]
    for kept in steps:
        pieces.append(words[at : at + kept + 1])
        at += kept + 1
    for i, piece in enumerate(p for p in pieces if p):
        text = (" " if i else "") + " ".join(piece)
        if kind == "json" and i == 1:
            await response.write(b"data: {broken\n\n")
        delta = {"delta": {"content": text}} if chat else {"text": text}
        await response.write(b"data: " + json.dumps({"choices": [{"index": 0, **delta}]}).encode() + b"\n\n")
        if i == 1 and kind == "cut":
            request.transport.close()  # type: ignore[union-attr]
            return response
        if i == 1 and kind == "stall":
            await asyncio.sleep(3600)
        if state.drip:
            await asyncio.sleep(state.drip)
    end = {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": finish}]}
    await response.write(b"data: " + json.dumps(end).encode() + b"\n\n")
    await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def generate(request: web.Request) -> web.Response:
    """SGLang's own endpoint."""
    state: State = request.app["state"]
    body = await request.json()
    prompt = body["text"]
    text = answer_of(prompt) if SUM.search(prompt) else " 42"
    if (sampling := body["sampling_params"])["temperature"] and not state.argmax:
        text = f" {draw(prompt, sampling.get('sampling_seed')) % 10**6}"
    tokens = len(text.split(" "))
    steps = steps_of(prompt, tokens, state.k)
    exact = Counter(steps)
    meta = {
        "prompt_tokens": len(prompt.split()), "completion_tokens": tokens, "cached_tokens": 0,
        "finish_reason": {"type": "stop", "matched": 2}, "spec_verify_ct": len(steps),
        "spec_accept_histogram": [exact.get(j, 0) for j in range(state.k + 1)],
    }  # fmt: skip
    return web.json_response({"text": text, "meta_info": meta})


async def models(request: web.Request) -> web.Response:
    state: State = request.app["state"]
    if state.location:
        return web.Response(status=state.status, headers={"Location": state.location})
    if state.listing or state.status != 200:
        return web.Response(status=state.status, text=state.listing)
    about = {"evalkit": state.about} if state.about else {}
    return _denied(state, request) or web.json_response({"data": [{"id": "faulty", **about}]})


async def info(request: web.Request) -> web.Response:
    state: State = request.app["state"]
    if not state.info:
        raise web.HTTPNotFound
    return web.json_response(state.info)


async def metrics(request: web.Request) -> web.Response:
    state: State = request.app["state"]
    if state.page == "none":
        raise web.HTTPNotFound
    counts = state.counts
    if state.refresh:
        if time.time() - state.pushed[0] > state.refresh:
            state.pushed = (time.time(), [Counter(c) for c in counts])
        counts = state.pushed[1]
    made = _atom(state, counts) if state.page == "atom" else _vllm(state, counts)
    return web.Response(text=made + f"process_start_time_seconds {state.started!r}\n", content_type="text/plain")


def _vllm(state: State, counts: list[Counter[str]]) -> str:
    names = {"spec_decode_num_drafts": "steps", "spec_decode_num_accepted_tokens": "accepted",
             "spec_decode_num_draft_tokens": "drafts", "generation_tokens": "output", "prompt_tokens": "prompt",
    }  # fmt: skip
    out = []
    for name, field_name in names.items():
        out.append(f"# TYPE vllm:{name} counter")
        for rank, mine in enumerate(counts):
            labels = f'{{engine="{rank}",model_name="faulty"}}'
            out.append(f"vllm:{name}_total{labels} {float(mine[field_name])}")
            out.append(f"vllm:{name}_created{labels} 1.756736798e+09")
    out.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter")
    for rank, mine in enumerate(counts):
        for position in range(state.k):
            labels = f'{{engine="{rank}",model_name="faulty",position="{position}"}}'
            out.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} {float(mine[f'pos:{position}'])}")
    out.append("# TYPE vllm:request_success counter")
    for rank, mine in enumerate(counts):
        labels = f'{{engine="{rank}",finished_reason="stop",model_name="faulty"}}'
        out.append(f"vllm:request_success_total{labels} {float(mine['requests'])}")
    return "\n".join(out) + "\n"


def _atom(state: State, counts: list[Counter[str]]) -> str:
    total = sum(counts, Counter())
    out = ["# TYPE atom:metrics_last_refresh_timestamp_seconds gauge"]
    out.append(f"atom:metrics_last_refresh_timestamp_seconds {state.pushed[0] or time.time()!r}")
    for name, field_name in (("mtp_accepted_tokens", "accepted"), ("mtp_draft_tokens", "drafts"),
                             ("requests_finished", "requests"), ("generation_tokens", "output")):  # fmt: skip
        out += [f"# TYPE atom:{name} counter", f"atom:{name}_total {float(total[field_name])}"]
    out.append("# TYPE atom:mtp_decode_steps counter")
    out += [f'atom:mtp_decode_steps_total{{accepted_tokens="{j}"}} {float(total[f"exactly:{j}"])}'
            for j in range(state.k + 1)]  # fmt: skip
    return "\n".join(out) + "\n"


async def control(request: web.Request) -> web.Response:
    """Changes the state, restarts the counters, and tells what was done."""
    state: State = request.app["state"]
    told = await request.json()
    if told.pop("restart", False):
        state.reset()
    for name, value in told.items():
        setattr(state, name, tuple(value) if isinstance(value, list) else value)
    total = sum(state.counts, Counter())
    return web.json_response({"faults": state.faults, "total": total, "most": state.most, "bodies": state.bodies[-50:],
                              "asked": sum(state.asked.values())})  # fmt: skip


@web.middleware
async def unlucky_pages(request: web.Request, handler: Any) -> web.StreamResponse:
    state: State = request.app["state"]
    state.pages[request.path] += 1
    if request.path in state.replies:
        status, words = state.replies[request.path]
        told: dict[str, Any] = {"headers": {"Location": words}} if 300 <= status < 400 else {"text": words}
        return web.Response(status=status, **told)
    drawn = draw(state.seed, request.path, state.pages[request.path], "page") / 2**64
    if request.method == "GET" and request.path != "/metrics" and drawn < state.unlucky:
        return web.Response(status=500, text="out of luck")
    return await handler(request)


def make_app(state: State) -> web.Application:
    state.reset()
    app = web.Application(middlewares=[unlucky_pages])
    app["state"] = state
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_post("/generate", generate)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/server_info", info)
    app.router.add_post("/_control", control)
    return app


async def serve(state: State, port: int) -> None:
    runner = web.AppRunner(make_app(state), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if state.tls else None
    if tls is not None:
        tls.load_cert_chain(f"{state.tls}/cert.pem", f"{state.tls}/key.pem")
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", "--server-port", type=int, default=0)
    parser.add_argument("--state", default="{}")
    args, _ = parser.parse_known_args()
    told: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in json.loads(args.state).items()}
    try:
        asyncio.run(serve(State(**told), args.port))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()

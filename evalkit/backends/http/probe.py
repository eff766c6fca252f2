"""Questions to a server before the run: its model, a first token, its thinking switch, its BOS, what it is.

Each costs a moment; what it finds would otherwise be found in the scores. What can't be found out is a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalkit.backends.http.answer import Answer
from evalkit.backends.http.asking import ask, body, page
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import Trouble
from evalkit.backends.http.ready import find_model
from evalkit.backends.http.sampling import probe_sampling
from evalkit.errors import EvalkitError
from evalkit.servers.per_request import drafts_told
from evalkit.servers.profile import Profile, forced_by_server

ASKED = "What is 17 + 25? Answer with the number."
TEXTS = ("A red house.", "Seven birds fly over the lake at noon.")
NO_SPECIAL = "0 special tokens"
ROOM = 64  # tokens in which thinking shows


@dataclass(slots=True)
class Found:
    """What the probes found; strings for the fingerprint, notes for the reader."""

    model: str = ""
    version: str = "unknown"
    thinks: bool = False
    thinking: str = ""
    switch: dict[str, Any] = field(default_factory=dict)
    bos: str = "unknown"
    pages: dict[str, Any] = field(default_factory=dict)  # what it tells of itself, by path
    sampling: dict[str, Any] = field(default_factory=dict)
    acceptance: bool = False  # whether a reply or the counters tell of it
    notes: list[str] = field(default_factory=list)


def switches(on: bool) -> list[dict[str, Any]]:
    """Body fields that turn thinking on or off, in the order in which they are tried."""
    return [
        {"chat_template_kwargs": {"enable_thinking": on}},
        {"chat_template_kwargs": {"thinking": on}},
        {"reasoning_effort": "medium" if on else "none"},
        {"enable_thinking": on},
    ]


async def probe(
    client: Client, *, profile: Profile, wanted: str, endpoint: str, thinking: str, extra: Mapping[str, Any],
    temperature: float = 0.0, check: Callable[[Mapping[str, Any]], None] | None = None, told: str = "",
) -> Found:  # fmt: skip
    """All probes. Raises EvalkitError for a server that can't do what is asked, and Trouble where it fails.

    `check` is given the pages that tell of the server, before a question that takes a while; `told` as in find_model.
    """
    found = Found()
    model = await find_model(client, wanted, found.pages, told=told)
    found.model = model.id
    if model.unlisted:
        found.notes.append(f"the server names no models ({model.unlisted}): it is asked for {model.id}, the given name")
    await _version(client, profile, found)
    if check is not None:
        check(found.pages)
    await _thinking(client, found, endpoint, thinking, extra)
    await probe_sampling(client, found, endpoint, extra, temperature)
    await _bos(client, found, endpoint)
    if endpoint != "chat":
        await _has_template(client, found, endpoint)
    return found


async def _version(client: Client, profile: Profile, found: Found) -> None:
    for path in ("/server_info", "/get_server_info", "/version", "/props"):
        status, text = await page(client, path)
        try:
            told = json.loads(client.key.hide(text)) if status == 200 else None
        except ValueError:
            continue
        if not isinstance(told, dict):
            continue
        found.pages[path] = told
        if word := forced_by_server(profile, told):
            raise EvalkitError(f"the server's own settings have {word}: its acceptance is forced",
                               "start it without; forced acceptance is for speed runs")  # fmt: skip
        if version := told.get("version") or told.get("build_info"):
            found.version = str(version)[:80]
            return
    found.notes.append("the server does not tell its version")


def thinks(answer: Answer) -> bool:
    return bool(answer.reasoning or answer.reasoning_tokens or "think>" in answer.text)


async def _thinking(client: Client, found: Found, endpoint: str, wanted: str, extra: Mapping[str, Any]) -> None:
    async def asked(switch: Mapping[str, Any]) -> Answer:
        return await ask(client, body(endpoint, found.model, ASKED, ROOM, {**extra, **switch}), endpoint)

    plain = await asked({})
    found.thinks = thinks(plain)
    found.acceptance = drafts_told(plain.raw, plain.choice) is not None
    _fields(plain, found)
    if wanted == "server" or found.thinks == (wanted == "on"):
        found.thinking = ("on" if found.thinks else "off") + (" (server's choice)" if wanted == "server" else "")
        return
    mine = set(extra) & {"chat_template_kwargs", "reasoning_effort", "enable_thinking"}
    for switch in switches(wanted == "on"):
        try:
            answer = await asked(switch)
        except Trouble:
            continue  # a server that refuses an unknown field
        if thinks(answer) == (wanted == "on"):
            if mine:
                raise EvalkitError(f"the server ignores the thinking switch in --extra-body ({', '.join(mine)})",
                                   f"this works: --extra-body '{json.dumps(switch)}'")  # fmt: skip
            found.switch, found.thinks, found.thinking = switch, wanted == "on", f"{wanted} ({json.dumps(switch)})"
            return
    raise EvalkitError(f"the server can't be made to turn thinking {wanted}: none of the known fields does it",
                       "give the server's own field with --extra-body, or use --thinking server")  # fmt: skip


def _fields(answer: Answer, found: Found) -> None:
    if answer.reasoning_field:
        found.notes.append(f"thinking comes in the field {answer.reasoning_field!r}; it is kept and never graded")
    elif answer.reasoning_tokens and "think>" not in answer.text:
        found.notes.append(
            f"{answer.reasoning_tokens} reasoning tokens are counted in a probe and no field carries their text"
        )


async def prompt_ids(client: Client, model: str, text: str, endpoint: str) -> tuple[int, ...]:
    """Token ids of a prompt as the server makes them (vLLM's and llama.cpp's /tokenize); () where it does not tell."""
    chat = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
    bodies: Sequence[dict[str, Any]] = (
        [{"model": model, **chat}] if endpoint == "chat"
        else [{"model": model, "prompt": text}, {"content": text, "add_special": True}]
    )  # fmt: skip
    for sent in bodies:
        status, text = await page(client, "/tokenize", sent)
        try:
            ids = json.loads(text).get("tokens") if status == 200 else None
        except (ValueError, AttributeError):
            ids = None
        if isinstance(ids, list) and ids and all(type(i) is int for i in ids):
            return tuple(ids)
    return ()


async def _bos(client: Client, found: Found, endpoint: str) -> None:
    told = [await prompt_ids(client, found.model, text, endpoint) for text in TEXTS]
    if not all(told):
        found.notes.append("the server does not tell prompt tokens: a doubled BOS is looked for by count only")
        return
    firsts = {ids[0] for ids in told}
    if all(len(ids) > 1 and ids[0] == ids[1] for ids in told) and len(firsts) == 1:
        raise EvalkitError(f"every prompt starts with token {told[0][0]} twice: a doubled BOS",
                           "let either the template or the tokenizer add it")  # fmt: skip
    found.bos = f"first token {told[0][0]}" if len(firsts) == 1 else "none"


async def _has_template(client: Client, found: Found, endpoint: str) -> None:
    try:
        await client.ask(body("chat", found.model, "Hello", 1), "chat")
    except Trouble:
        return
    found.notes.append(
        f"the server has a chat template and is asked on {endpoint}, without it: compare with no score of a chat"
    )


def count_special(text: str, counted: int, tokenizer: Any, endpoint: str) -> tuple[str, str]:
    """(BOS policy, problem) from the number of prompt tokens and a local tokenizer. ("", "") where nothing is said."""
    if endpoint == "chat" or not counted:
        return "", ""
    bare = len(tokenizer.encode(text, add_special_tokens=False).ids)
    usual = tokenizer.encode(text, add_special_tokens=True).ids
    more = counted - bare
    if more == len(usual) - bare + 1 and len(usual) > bare:
        return "", f"the server counts {counted} tokens of a prompt that has {len(usual)}: a BOS too many"
    if more not in (0, len(usual) - bare):
        return "", f"the server counts {counted} tokens of a prompt that has {len(usual)}: another tokenizer"
    return f"{more} special tokens", ""

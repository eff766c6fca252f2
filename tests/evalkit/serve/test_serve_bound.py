"""Long texts: the bound on their tokens is one for every text, and others are served while one is tokenised."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from copy import deepcopy
from typing import Any

import httpx2
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from evalkit.config import TARGETS
from evalkit.serve.app import make_app
from evalkit.serve.bound import longest_token, reach
from tests.engine.tiny import Tiny
from tests.evalkit.serve.serving import service_of

EMBEDDED = TARGETS["gradeschool-m3"] / "tokenizer.json"
# One place of each kind that a tokenizer may shorten: merged bytes, NFC's joined marks, spaces, a special token.
PIECES = ["a", "aaaa", " ", "\n", "\u1100\u1161\u11a8", "\u03b9\u0308\u0301", "e\u0301", "\U0001f600", "<eos>", "the "]


def made(normalizer: Any = None) -> Tokenizer:
    vocab = {t: i for i, t in enumerate([*sorted(ByteLevel.alphabet()), "aa", "aaaa", "\u00e1\u00ea"])}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "a"), ("aa", "aa"), ("\u00e1", "\u00ea")]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return tok


@pytest.mark.parametrize("which", ["embedded", "plain", "nfc"])
def test_no_text_has_fewer_tokens_than_the_bound(which: str) -> None:
    if which == "embedded":
        tok = Tokenizer.from_file(str(EMBEDDED))
    else:
        tok = made(normalizers.NFC() if which == "nfc" else None)
    most, draw = reach(json.loads(tok.to_str())), random.Random(7)
    assert most > 0
    texts = [piece * 50 for piece in PIECES] + ["".join(draw.choices(PIECES, k=60)) for _ in range(300)]
    for text in texts:
        assert len(tok.encode(text, add_special_tokens=False).ids) >= len(text) / most, text


def test_a_tokenizer_that_may_drop_text_has_no_bound(tiny: Tiny) -> None:
    assert longest_token(TARGETS["gradeschool-m3"]) > 0 and longest_token(tiny.target) == 0  # tiny lacks most bytes
    good = json.loads(made().to_str())
    for change in (
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, good["pre_tokenizer"]]}},
        {"pre_tokenizer": None},
        {"added_tokens": [{**good["added_tokens"][0], "rstrip": True}]},
        {"model": {**good["model"], "type": "WordPiece"}},
    ):
        assert reach({**deepcopy(good), **change}) == 0, change


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_cannot_fit_is_refused_before_it_is_tokenised(tiny: Tiny, path: str) -> None:
    service = service_of(tiny.llm(), tiny.target, chat_template="plain")
    service.reach = 4

    def encode(texts: list[str]) -> Any:
        raise AssertionError("it was tokenised")

    service.tokenizer.encode = encode  # type: ignore[method-assign]
    chat, text = "chat" in path, "a" * (4 * 127 + 1)
    body = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": ["a", text], "max_tokens": 1}

    async def run() -> httpx2.Response:
        async with client(service) as http:
            return await http.post(path, json=body)

    found = asyncio.run(run())
    assert found.status_code == 400 and "509 characters, which are at least 128 tokens" in found.text
    assert found.json()["error"]["param"] == ("messages" if chat else "prompt")


def test_others_are_answered_while_a_long_text_is_tokenised(tiny: Tiny) -> None:
    service = service_of(tiny.llm(), tiny.target)
    inner, go, begun = service.tokenizer.encode, threading.Event(), threading.Event()

    def encode(texts: list[str]) -> Any:
        if texts == ["long"]:
            begun.set()
            assert go.wait(60), "nothing else was served meanwhile"
        return inner(texts)

    service.tokenizer.encode = encode  # type: ignore[method-assign]

    async def run() -> None:
        service.worker.start()
        async with client(service) as http:
            long = asyncio.create_task(http.post("/v1/completions", json={"prompt": "long", "max_tokens": 2}))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            short = await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert short.status_code == 200 and not long.done()
            go.set()
            assert (await long).status_code == 200
        await service.worker.close()

    asyncio.run(run())


def client(service: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app(service)), base_url="http://127.0.0.1")

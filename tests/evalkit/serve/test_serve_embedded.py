"""The embedded model: the same texts and the same accepted counts in process and over HTTP, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine import LLM, Completion, Request, SamplingParams
from evalkit.config import TARGETS, TASKS, Cell
from tests.evalkit.serve.serving import counters, events, serving

PROMPTS = 20
STOP = ("\n\n", "Question:")


@pytest.fixture(scope="module")
def asked() -> list[str]:
    rows = (TASKS / "gradeschool" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:PROMPTS]
    return [f"Question: {json.loads(row)['question']}\nAnswer:" for row in rows]


@pytest.fixture(scope="module")
def plain(asked: list[str]) -> list[Completion]:
    params = SamplingParams(max_tokens=128, stop=STOP)
    return engine().generate([Request(id=str(i), prompt=p, params=params) for i, p in enumerate(asked)])


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    llm = engine()
    with serving(llm, TARGETS["gradeschool-m3"]) as (found, _):
        yield found


def engine() -> LLM:
    return LLM(Cell.make(k=7, threads=1, device="cpu").engine)


def body(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 128, "temperature": 0, "stop": list(STOP), "return_steps": True,
            "return_token_ids": True, **more}  # fmt: skip


def same(choice: dict[str, Any], one: Completion) -> None:
    assert choice["text"] == one.text and tuple(choice["token_ids"]) == one.token_ids
    assert choice["finish_reason"] == one.finish_reason
    assert choice["acceptance"]["steps"] == [[s.k, s.accepted, s.accepted_trimmed] for s in one.steps]


@pytest.mark.parametrize("how", ["one by one", "in one request", "at once"])
def test_the_same_texts_and_accepted_counts(client: Any, asked: list[str], plain: list[Completion], how: str) -> None:
    before = counters(client.get("/metrics").text)
    if how == "in one request":
        choices = client.post("/v1/completions", json=body(asked)).json()["choices"]
    else:
        with ThreadPoolExecutor(1 if how == "one by one" else PROMPTS) as pool:
            replies = pool.map(lambda p: client.post("/v1/completions", json=body(p)).json(), asked)
            choices = [reply["choices"][0] for reply in replies]
    for choice, one in zip(choices, plain, strict=True):
        same(choice, one)
    after = counters(client.get("/metrics").text)
    steps = sum(len([s for s in one.steps if s.k]) for one in plain)
    accepted = sum(s.accepted for one in plain for s in one.steps)
    assert after["vllm:spec_decode_num_drafts_total"] - before["vllm:spec_decode_num_drafts_total"] == steps
    name = "vllm:spec_decode_num_accepted_tokens_total"
    assert after[name] - before[name] == accepted


def test_streamed_at_once_the_pieces_join_to_the_same_texts(
    client: Any, asked: list[str], plain: list[Completion]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda p: client.post("/v1/completions", json=body(p, stream=True)).text, asked[:8]))
    for text, one in zip(streams, plain, strict=False):
        *chunks, done = events(text)
        assert done == "[DONE]" and "".join(c["choices"][0]["text"] for c in chunks) == one.text
        assert len(chunks) == 1 + len(one.steps)
        assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == list(one.token_ids)

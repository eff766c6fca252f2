"""What is refused before anything runs: requests, their sampling settings, and what the pool can never hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Completion, Request, SamplingParams
from engine.errors import EngineError
from tests.engine.tiny import Tiny, prompts, requests


def tokens(out: list[Completion]) -> list[tuple[int, ...]]:
    return [o.token_ids for o in out]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "request bad: its prompt has 0 tokens"),
        ("", "request bad: its prompt has 0 tokens"),
        ((5,) * 128, "request bad: its prompt has 128 tokens, the context holds 128"),
        ((5, 99), "request bad: its prompt of 2 tokens holds the id 99, the vocabulary has 0 to 62"),
        ((5, -1), "holds the id -1"),
        ("a\ud800", "request bad: its prompt holds half a character .* at place 1; fix: give text"),
        (None, "request bad: its prompt is a NoneType; fix: give text, or a tuple of token ids"),
        (3, "request bad: its prompt is a int"),
        ((1.5,), "request bad: its prompt holds 1.5, which is no token id"),
        ((5, True), "request bad: its prompt holds True, which is no token id"),
        (("a",), "request bad: its prompt holds 'a', which is no token id"),
    ],
)
def test_bad_prompts_are_refused_before_the_first_forward(
    tiny: Tiny, prompt: str | tuple[int, ...], message: str
) -> None:
    llm = tiny.llm()
    ask = [*requests(prompts(3)), Request(id="bad", prompt=prompt)]
    with pytest.raises(EngineError, match=message):
        llm.generate(iter(ask))
    assert llm.counters["prefill_ticks"] == 0


def test_two_requests_of_one_id_and_params_of_another_kind_are_refused(tiny: Tiny) -> None:
    llm = tiny.llm()
    with pytest.raises(EngineError, match="two requests have the id r0; fix: give each request an id of its own"):
        llm.generate([*requests([(5,), (6,)]), *requests([(7,)])])
    with pytest.raises(EngineError, match="request x: its params are a dict; fix: give SamplingParams"):
        llm.generate([Request(id="x", prompt=(5,), params={"max_tokens": 3})])  # pyright: ignore[reportArgumentType]
    assert llm.counters["prefill_ticks"] == 0


def test_ids_of_numpy_are_token_ids(tiny: Tiny) -> None:
    given = tuple(np.array([5, 6, 7]))
    assert tokens(tiny.llm().generate(requests([given]))) == tokens(tiny.llm().generate(requests([(5, 6, 7)])))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 2.5}, "max_tokens is 2.5; fix: give a whole number"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"temperature": "1"}, "temperature is '1'; fix: give a number"),
        ({"temperature": float("nan")}, "temperature is nan; fix: give a number from 0 to 100"),
        ({"top_p": None}, "top_p is None"),
        ({"seed": 1.5}, "seed is 1.5; fix: give a whole number"),
        ({"top_k": "3"}, "top_k is '3'"),
        ({"top_k": 2**63}, "top_k is 9223372036854775808; fix: give 0 .off. or a positive number, at most 2147483647"),
        ({"stop": "Q:"}, "stop is the string 'Q:'; fix: give a tuple of strings"),
        ({"stop": (3,)}, "stop is .3,.; fix: give a tuple of strings"),
        ({"stop": None}, "stop is None"),
        ({"stop_token_ids": 3}, "stop_token_ids is 3; fix: give a tuple of token ids"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids is .'a',."),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'; fix: give True or False"),
    ],
    ids=str,
)
def test_sampling_params_of_another_type_or_range(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        SamplingParams(**params)


def test_the_largest_top_k_is_no_top_k(tiny: Tiny) -> None:
    all_of_it, off = (
        tiny.llm().generate(requests(prompts(3), temperature=1.0, top_k=k)) for k in (2**31 - 1, 0)
    )  # fmt: skip
    assert tokens(all_of_it) == tokens(off)


def test_a_request_that_never_fits_the_pool_is_refused(tiny: Tiny) -> None:
    llm = tiny.llm(num_pages=5)
    with pytest.raises(EngineError, match="10 prompt and 30 output tokens need 10 KV pages, the pool has 5"):
        llm.generate(requests([(5,) * 10], max_tokens=30))
    assert len(llm.generate(requests([(5,) * 10], max_tokens=10, ignore_eos=True))[0].token_ids) == 10

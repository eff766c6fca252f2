"""LLM.score and LLM.logprobs: what the target makes of a given text."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineError
from tests.engine.tiny import VOCAB, Tiny, prompts, requests


def test_score_follows_greedy_decoding(tiny: Tiny) -> None:
    llm = tiny.llm(max_batched_tokens=7)
    prompt = prompts(3)[2]
    (out,) = llm.generate(requests([prompt], max_tokens=9, ignore_eos=True))
    logprobs, greedy = llm.score(prompt, out.token_ids)
    assert greedy == [True] * 9
    assert all(-5 < x <= 0 for x in logprobs)
    other = (out.token_ids[0] + 1) % 50
    assert llm.score(prompt, (other,))[1] == [False]
    assert llm.pool.in_use == 0


def test_score_is_a_log_softmax_whatever_the_cache_holds(tiny: Tiny) -> None:
    llm = tiny.llm()
    prompt = prompts(1, shared=30)[0]
    total = sum(torch.tensor(llm.score(prompt, (t,))[0]).exp().item() for t in range(len(VOCAB)))
    assert total == pytest.approx(1.0, abs=1e-4)
    ab, b = llm.score(prompt, (7, 8))[0], llm.score((*prompt, 7), (8,))[0]
    assert ab[1] == pytest.approx(b[0], abs=1e-5)


def test_score_refuses_what_it_cannot_do(tiny: Tiny) -> None:
    llm = tiny.llm()
    for prompt, continuation, message in (
        ((), (5,), "its prompt has 0"),
        ((5,), (), "its continuation has 0"),
        ((5,) * 100, (5,) * 30, "100 \\+ 30 tokens do not fit in 128"),
        ((5,), (88,), "holds the id 88"),
    ):
        with pytest.raises(EngineError, match=message):
            llm.score(prompt, continuation)


def test_logprobs_name_the_likeliest_and_agree_with_score(tiny: Tiny) -> None:
    llm, ids = tiny.llm(), (9, 8, 7, 20, 21, 5)
    found = llm.logprobs(ids, first=2, top=3)
    scored, greedy = llm.score(ids[:2], ids[2:])
    assert [f.token_id for f in found] == list(ids[2:]) and [f.logprob for f in found] == scored
    assert [f.top[0][0] == f.token_id for f in found] == greedy
    assert all(len(f.top) == 3 and f.top[0][1] >= f.top[1][1] >= f.top[2][1] for f in found)
    assert all(f.logprob <= f.top[0][1] for f in found)

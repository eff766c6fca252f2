"""Requests that come and go while others run: LLM.add, step and cancel, and text as it comes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine import LLM, Completion, Request
from engine.errors import EngineError
from tests.engine.test_llm import scripted, tokens_of
from tests.engine.tiny import Tiny, prompts, requests


def said(o: Completion) -> tuple[Any, ...]:
    """What must not depend on the batch; a draft's confidence may differ in its last bits."""
    steps = [(s.k, s.accepted, s.accepted_trimmed, s.cut) for s in o.steps]
    return o.token_ids, o.text, o.finish_reason, o.stop_hit, steps


def run(llm: LLM, arrivals: dict[int, list[Request]]) -> dict[str, Completion]:
    """Steps until all is done; arrivals[t] join before step t. Checks that updates add up to their Completion."""
    tokens: dict[str, list[int]] = {}
    steps: dict[str, list[Any]] = {}
    done: dict[str, Completion] = {}
    t, left = 0, dict(arrivals)
    while left or llm.busy:
        for request in left.pop(t, []):
            llm.add(request)
        for update in llm.step():
            assert update.id not in done
            tokens.setdefault(update.id, []).extend(update.token_ids)
            if update.step is not None:
                steps.setdefault(update.id, []).append(update.step)
            if update.completion is not None:
                done[update.id] = update.completion
        t += 1
    for name, completion in done.items():
        assert tuple(tokens[name]) == completion.token_ids
        assert tuple(steps.get(name, [])) == completion.steps
    return done


@pytest.mark.parametrize("settings", [{"k": 5}, {"k": 0}, {"k": 5, "num_pages": 24}], ids=str)
def test_arrivals_in_between_give_what_generate_gives(tiny: Tiny, settings: dict[str, Any]) -> None:
    asked = requests(prompts(12, shared=6), max_tokens=24, ignore_eos=True)
    plain = {o.id: o for o in tiny.llm(**settings).generate(asked)}
    llm = tiny.llm(max_batch=5, **settings)
    arrivals = {0: asked[:2], 1: asked[2:3], 4: asked[3:9], 9: asked[9:]}
    found = run(llm, arrivals)
    assert {n: said(o) for n, o in found.items()} == {n: said(o) for n, o in plain.items()}
    assert llm.pool.in_use == 0 and llm.scheduler.idle
    assert settings.get("num_pages") is None or llm.counters["preemptions"] > 0  # the squeeze did happen


def test_sampling_does_not_depend_on_who_else_runs(tiny: Tiny) -> None:
    asked = requests(prompts(6), max_tokens=16, temperature=1.0)
    plain = {o.id: o.token_ids for o in tiny.llm(k=3).generate(asked)}
    found = run(tiny.llm(k=3), {i * 3: [r] for i, r in enumerate(asked)})
    assert {n: o.token_ids for n, o in found.items()} == plain


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancel_gives_back_every_page_and_disturbs_nobody(tiny: Tiny, after: int) -> None:
    asked = requests(prompts(6, shared=9), max_tokens=30, ignore_eos=True)
    plain = {o.id: o.token_ids for o in tiny.llm(k=4).generate(asked)}
    llm = tiny.llm(k=4, max_batch=4)  # two wait
    for request in asked:
        llm.add(request)
    done: dict[str, Completion] = {}

    def step() -> None:
        done.update({u.id: u.completion for u in llm.step() if u.completion})

    for _ in range(after):
        step()
    assert llm.cancel("r1") and llm.cancel("r5")  # one that runs (after a step), one that waits
    assert not llm.cancel("r1") and not llm.cancel("nobody")
    while llm.busy:
        step()
    assert {n: o.token_ids for n, o in done.items()} == {n: t for n, t in plain.items() if n not in ("r1", "r5")}
    assert llm.pool.in_use == 0


def test_cancelling_the_last_leaves_an_idle_engine(tiny: Tiny) -> None:
    llm = tiny.llm(k=3)
    llm.add(requests([(5, 6, 7)])[0])
    llm.step()
    assert llm.cancel("r0") and not llm.busy and llm.step() == [] and llm.pool.in_use == 0
    assert len(llm.generate(requests([(5, 6, 7)], max_tokens=4))) == 1


def test_what_is_refused_leaves_the_running_alone(tiny: Tiny) -> None:
    llm = tiny.llm(k=3)
    llm.add(Request(id="a", prompt=(5, 6)))
    with pytest.raises(EngineError, match="request a is running already"):
        llm.add(Request(id="a", prompt=(7,)))
    with pytest.raises(EngineError, match="0 tokens"):
        llm.add(Request(id="b", prompt=()))
    with pytest.raises(EngineError, match="1 added requests are running"):
        llm.generate(requests([(5,)]))
    assert set(run(llm, {})) == {"a"}


def test_a_broken_step_gives_up_what_ran_and_the_next_request_is_served(tiny: Tiny) -> None:
    llm = tiny.llm(k=3)
    plain = tiny.llm(k=3).generate(requests([(5, 6)], max_tokens=5))[0].token_ids
    llm.add(Request(id="a", prompt=(5, 6)))
    logits, llm.target.logits = llm.target.logits, lambda hidden: torch.full((len(hidden), 60), float("nan"))
    with pytest.raises(EngineError, match="NaN"):
        llm.step()
    assert not llm.busy and llm.pool.in_use == 0
    llm.target.logits = logits
    assert llm.generate(requests([(5, 6)], max_tokens=5))[0].token_ids == plain


def streamed(tiny: Tiny, out: Completion, stop: tuple[str, ...]) -> tuple[list[str], str]:
    """Pieces of an output whose tokens come in random groups, the rest included; and the text."""
    stream, ids = tiny.llm().tokenizer.stream(stop), list(out.token_ids)
    g = random.Random(len(ids))
    pieces: list[str] = []
    while ids:
        n = g.randint(1, 4)
        group, ids = tuple(ids[:n]), ids[n:]
        pieces.append(stream.push(group) if ids else stream.finish(out.text))
        assert out.text.startswith("".join(pieces)), "what was shown was taken back"
    return pieces, out.text


@pytest.mark.parametrize("stop", [(), ("\n\n",), ("ee", "three"), ("zzz",), ("o\n",)], ids=str)
@pytest.mark.parametrize("text", ["one two\n\nthree", "thea\n\n\nb", "aaab", "o\no\n\nxthre"])
def test_streamed_pieces_join_to_the_text_and_never_show_a_stop(tiny: Tiny, text: str, stop: tuple[str, ...]) -> None:
    out = scripted(tiny, tokens_of(text), stop=stop, max_tokens=len(text))
    pieces, whole = streamed(tiny, out, stop)
    assert "".join(pieces) == whole
    assert not any(s in whole for s in stop)


def test_an_unfinished_character_is_held_back(tiny: Tiny) -> None:
    llm = tiny.llm()
    first, second = llm.tokenizer.encode(["é"])[0]
    stream = llm.tokenizer.stream(())
    assert stream.push((first,)) == "" and stream.push((second,)) == "é" and stream.finish("éa") == "a"

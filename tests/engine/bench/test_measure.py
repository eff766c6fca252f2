from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bench import hf
from engine.bench.__main__ import REFERENCE, engine_way, llm, prompts
from engine.bench.loop import plain_loop
from engine.bench.measure import Rates, Ratio, run_in_turn
from engine.bench.page import Row, Section, page


def test_ways_run_in_turn_and_ratios_are_taken_by_round() -> None:
    order: list[str] = []
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 5.0, 5.0, 6.0])  # a: 1 s, b: 2 s; a: 2 s, b: 1 s

    def way(name: str, tokens: int) -> int:
        order.append(name)
        return tokens

    rates = run_in_turn({"a": lambda: way("a", 10), "b": lambda: way("b", 10)}, 2, clock=lambda: next(times))
    assert order == ["a", "b"] * 3  # once to warm up
    assert rates.rounds == {"a": [10.0, 5.0], "b": [5.0, 10.0]}
    assert rates.ratio("a", "b") == Ratio(1.25, 0.5, 2.0)
    assert Rates({"a": [1.0, 3.0, 2.0]}).rate("a") == Ratio(2.0, 1.0, 3.0)


def test_the_page_says_what_is_not_met() -> None:
    rows = [
        Row("one", Ratio(1.0, 0.5, 2.0), asked="at least 5", met=False),
        Row("two", Ratio(100.4, 99, 101), "tokens/s"),
    ]
    text = page([Section("Title", "Words.", rows)], rounds=3, threads=1, machine="x")
    assert "| one | 1.00 | 0.50 .. 2.00 | at least 5: NOT MET |" in text
    assert "| two | 100 tokens/s | 99 .. 101 |  |" in text and "No GPU was at hand" in text


@pytest.mark.filterwarnings("ignore")
def test_transformers_the_loop_and_the_engine_give_the_same_tokens(tmp_path: Path) -> None:
    hf.write_qwen3(tmp_path, REFERENCE / "target")
    like, made = (json.loads((p / "config.json").read_text()) for p in (REFERENCE / "target", tmp_path))
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "head_dim"):
        assert like[name] == made[name]
    which = llm(0, 2, threads=1, model=tmp_path)
    generate = hf.generator(tmp_path)
    for ids in which.tokenizer.encode(prompts(2)):
        theirs = generate(ids, 8)
        assert len(theirs) == 8 and plain_loop(which.target, ids, 8) == theirs
    assert engine_way(which, prompts(3), 8)() == 24

"""The whole engine by kernels, interpreted on the CPU, against the engine in plain torch: the same texts and drafts.

Both compute in float32 and add up in another order, so a near-tie could part them; on these fixed seeds none does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import kernels
from engine.api import Completion
from engine.draft import dspark
from engine.errors import EngineError
from engine.kernels import launch
from tests.engine.kernels.conftest import INTERPRETED
from tests.engine.test_block import written
from tests.engine.tiny import Tiny, build, prompts, requests

PROMPTS = prompts(2, seed=32)  # of 16 and 4 ids: in the first a row sees 3 of 4 blocks and more
STORED = ["block_attention", "index_topk", "markov", "paged_attention", "store_index", "store_kv"]

needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")


def run(tiny: Tiny, choice: str, **settings: Any) -> tuple[list[Completion], dict[str, Any]]:
    """Five tokens after each prompt, and the counters."""
    params = {"temperature": settings.pop("temperature", 0.0), "max_tokens": settings.pop("max_tokens", 5)}
    llm = tiny.llm(k=3, kernels=choice, max_batch=2, **settings)
    return llm.generate(requests(PROMPTS, ignore_eos=True, **params)), llm.counters


def told(done: list[Completion]) -> list[tuple[Any, ...]]:
    """Texts, accepted drafts, and the drafts that were not."""
    return [(c.token_ids, [(s.k, s.accepted, s.rejected) for s in c.steps]) for c in done]


@needs_interpreter
@pytest.mark.parametrize(("quant", "more"), [
    ("float32", []), ("fp8", []), ("nvfp4 kv[draft]=fp8", []), ("w=ptpc_fp8 kv=fp8", ["ptpc_matmul"]),
])  # fmt: skip
def test_greedy_texts_and_accepted_drafts_are_the_twins(tiny: Tiny, quant: str, more: list[str]) -> None:
    (plain, before), (fast, after) = (run(tiny, choice, quant=quant) for choice in ("twin", "triton"))
    assert told(fast) == told(plain)
    assert sum(s.accepted for c in plain for s in c.steps) > 0 and any(s.rejected for c in plain for s in c.steps)
    ops = sorted(["accept_greedy", *STORED, *more])
    assert after["kernels"] == {"triton": ops, "twin": []} and after["kernels_steps"] == after["decode_ticks"]
    assert before["kernels"] == {"triton": [], "twin": ops} and before["kernels_steps"] == 0


EXPERTS = '{"global_quant_config": "FORMAT", "exclude_layer": ["re:.*(self_attn|mlp|shared_experts)"]}'


@needs_interpreter
@pytest.mark.parametrize(("name", "op", "by_layers"), [("ptpc_fp8", "ptpc_experts", ["ptpc_matmul"]),
                                                       ("mxfp4", "mx_experts", [])])  # fmt: skip
def test_quantised_experts_go_by_one_launch_a_stack(tmp_path: Path, name: str, op: str, by_layers: list[str]) -> None:
    tiny = build(tmp_path, intermediate_size=32)
    settings = {"online_quant_config": EXPERTS.replace("FORMAT", name), "max_tokens": 2}
    (plain, before), (fast, after) = (run(tiny, choice, **settings) for choice in ("twin", "triton"))
    assert told(fast) == told(plain)
    ops = sorted(["accept_greedy", *STORED, op])
    assert after["kernels"] == {"triton": ops, "twin": []} and after["kernels_steps"] == after["decode_ticks"]
    assert before["kernels"] == {"triton": [], "twin": sorted([*ops, *by_layers])}
    assert after["weight_bytes"] == before["weight_bytes"] and after["weight_cache_bytes"] == 0


@needs_interpreter
def test_sampled_texts_are_the_twins(tiny: Tiny) -> None:
    (plain, _), (fast, after) = (run(tiny, choice, temperature=0.9) for choice in ("twin", "triton"))
    assert told(fast) == told(plain)
    assert after["kernels"] == {"triton": sorted(["accept_sampled", "draw", *STORED]), "twin": []}


@needs_interpreter
def test_a_wrong_kernel_is_seen(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that are off by one change no text, and every one of them is rejected."""
    right = kernels.markov_greedy
    monkeypatch.setattr(dspark, "markov_greedy", lambda *args: (right(*args) + 1) % 55)
    (plain, _), (wrong, _) = (run(tiny, choice) for choice in ("twin", "triton"))
    assert [c.token_ids for c in wrong] == [c.token_ids for c in plain]
    assert told(wrong) != told(plain)


@needs_interpreter
def test_what_has_no_kernel_is_told_and_its_steps_do_not_count(tiny: Tiny) -> None:
    """e4m3fnuz caches, for gfx942: stored and attended to in plain torch, the draft's in float32 by the kernels."""
    (plain, _), (fast, after) = (run(tiny, choice, quant="kv=fp8 fp8=e4m3fnuz") for choice in ("twin", "triton"))
    assert told(fast) == told(plain) and after["kernels_steps"] == 0
    assert set(after["kernels"]["twin"]) == {"index_topk", "paged_attention", "store_index", "store_kv"}
    assert {"accept_greedy", "block_attention", "markov", "store_kv"} <= set(after["kernels"]["triton"])


@needs_interpreter
def test_other_draft_methods_and_the_block_rule(tiny: Tiny) -> None:
    """EAGLE3 keeps a wide vector in an index place and has no Markov head."""
    settings = {"draft": "eagle3", "temperature": 0.9, "verify": "block"}
    (plain, _), (fast, after) = (run(tiny, choice, **settings) for choice in ("twin", "triton"))
    assert told(fast) == told(plain) and after["kernels_steps"] == after["decode_ticks"]
    assert after["kernels"]["triton"] == ["accept_block", "draw", "index_topk", "paged_attention", "store_index",
                                          "store_kv"]  # fmt: skip


@needs_interpreter
@pytest.mark.parametrize(("kind", "temperature"), [("gated", 0.0), ("rnn", 0.9)])
def test_markov_heads_with_a_gate_or_a_state(tiny: Tiny, tmp_path: Path, kind: str, temperature: float) -> None:
    folder = written(tiny, tmp_path / "d", markov_head_type=kind)
    settings: dict[str, Any] = {"draft_path": folder, "temperature": temperature}
    (plain, before), (fast, after) = (run(tiny, choice, **settings) for choice in ("twin", "triton"))
    assert told(fast) == told(plain) and any(s.rejected for c in plain for s in c.steps)
    assert after["kernels"]["twin"] == [] and "markov" in after["kernels"]["triton"]
    assert "markov" in before["kernels"]["twin"]


def test_kernels_that_cannot_run_are_refused_before_anything_is_loaded(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(EngineError, match="kernels is triton, and the device is cpu"):
        tiny.llm(kernels="triton")
    with pytest.raises(EngineError, match="unknown kernels 'tritn'; fix: did you mean triton"):
        tiny.llm(kernels="tritn")
    assert tiny.llm().counters["kernels"] == {"triton": [], "twin": []} and not torch.cuda.is_initialized()

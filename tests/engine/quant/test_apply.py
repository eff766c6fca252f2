"""Quantised weights in a whole engine: what is replaced, what memory it leaves, what is recorded, what is drafted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine import LLM
from engine.draft.block import BlockDraft
from engine.errors import EngineError
from engine.quant import QuantLinear
from tests.engine.tiny import Tiny, build, prompts, requests


def quantised(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_modules() if isinstance(child, QuantLinear)]


def texts(llm, n: int = 4) -> list[tuple[int, ...]]:
    return [tuple(c.token_ids) for c in llm.generate(requests(list(prompts(n)), max_tokens=12, ignore_eos=True))]


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """With experts and block-sparse layers."""
    return build(tmp_path_factory.mktemp("m3"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return build(tmp_path_factory.mktemp("dense"), dense=True)


def test_experts_and_router_stay_and_the_indexer_follows(m3: Tiny) -> None:
    llm = m3.llm(k=0, quant="w=ptpc_fp8")
    names = [layer["layer"] for layer in llm.online_quant.info["layers"]]
    assert "model.layers.0.self_attn.index_qk_proj" in names and llm.notes == ()
    assert not any("block_sparse_moe" in name for name in names)
    assert texts(llm) == texts(m3.llm(k=3, quant="w=ptpc_fp8"))


def test_experts_that_are_asked_for_and_not_reached_are_told(m3: Tiny) -> None:
    llm = m3.llm(k=0, online_quant_config='{"global_quant_config": "ptpc_fp8"}')
    (said,) = llm.notes
    assert "expert matrices stay as they were loaded" in said
    assert any(name.endswith("shared.down") for name in quantised(llm.target))
    assert not any(name.endswith("mlp.gate") for name in quantised(llm.target))


def test_sparse_and_dense_layers_of_a_hybrid(m3: Tiny) -> None:
    llm = m3.llm(k=3, quant="nvfp4")
    cfg = llm.target.cfg
    assert cfg.sparse
    want = ["nvfp4" if sparse else "fp8" for sparse in cfg.sparse.layers] + ["float32"] * 2
    assert [spec.format for spec in llm.cache.layers] == want
    for spec, picks in zip(llm.cache.layers, cfg.sparse.computes, strict=False):
        assert spec.index_format == ("fp4_nv" if picks else "")
    with pytest.raises(EngineError, match="index vectors are 16 wide, fp4_mx needs a multiple of 32"):
        m3.llm(quant="nvfp4 index_fp4=mx")


def block_draft(llm: LLM) -> BlockDraft:
    draft = llm.drafter.weights() if llm.drafter else None
    assert isinstance(draft, BlockDraft)
    return draft


def test_target_and_draft_follow_the_mode(tiny: Tiny) -> None:
    llm = tiny.llm(k=3, quant="w=ptpc_fp8")
    assert len(quantised(llm.target)) == 3 * 4 and isinstance(llm.target.head, nn.Linear)
    draft = block_draft(llm)
    assert len(quantised(draft)) == 2 * 4
    for kept in (draft.fc, draft.markov_out, draft.confidence, draft.shared[1]):
        assert isinstance(kept, nn.Linear)
    info = llm.online_quant.info
    assert info["num_layers"] == 20 == len(info["layers"]) and info["elapsed_seconds"] >= 0
    names = [layer["layer"] for layer in info["layers"]]
    assert "model.layers.0.self_attn.qkv_proj" in names and "draft.layers.1.mlp.gate_up_proj" in names
    assert info["layers"][0] == {"layer": names[0], "quant_type": "per_token", "quant_dtype": "fp8"}
    json.dumps(info)


def test_memory_shrinks_and_the_copies_are_counted_apart(tiny: Tiny) -> None:
    plain, mode = tiny.llm(k=3), tiny.llm(k=3, quant="w=ptpc_fp8")
    whole = sum(p.nbytes for m in (plain.target, block_draft(plain)) for p in m.parameters())
    assert plain.weights.nbytes == {"plain": whole} and plain.counters["weight_cache_bytes"] == 0
    linear = [
        layer for m in (mode.target, block_draft(mode)) for layer in m.modules() if isinstance(layer, QuantLinear)
    ]
    values = sum(layer.out_features * layer.in_features for layer in linear)
    rows = sum(layer.out_features for layer in linear)
    assert mode.weights.nbytes == {"plain": whole - 4 * values, "ptpc_fp8": values + 4 * rows}
    assert mode.weights.layers == {"ptpc_fp8": 20} and mode.weights.cached == 4 * values
    assert mode.counters["weight_bytes"] == whole - 3 * values + 4 * rows
    assert mode.weights.total == mode.counters["weight_bytes"] + mode.counters["weight_cache_bytes"]


@pytest.mark.parametrize("quant", ["w=ptpc_fp8", "w=per_block128_fp8 kv=fp8", "w=ptpc_fp8 act=float32 kv=nvfp4"])
def test_speculation_stays_lossless(tiny: Tiny, quant: str) -> None:
    assert texts(tiny.llm(k=3, quant=quant)) == texts(tiny.llm(k=0, quant=quant))


def test_a_quantised_draft_changes_no_output(tiny: Tiny) -> None:
    only_draft = '{"layer_quant_config": {"draft.layers.*": "ptpc_fp8"}}'
    llm = tiny.llm(k=3, online_quant_config=only_draft)
    assert not quantised(llm.target) and quantised(block_draft(llm))
    assert texts(llm) == texts(tiny.llm(k=0))


def test_context_rows_of_the_draft_are_quantised_by_themselves(tiny: Tiny) -> None:
    llm = tiny.llm(k=3, quant="w=ptpc_fp8")
    draft = block_draft(llm)
    attn, x, rope = draft._layers[0].attn, torch.randn(3, 32), draft.rope
    table = rope.table(torch.arange(3))
    k, v = attn.make_kv(x, rope, table)
    _, k_full, v_full = attn.make_qkv(x, rope, table)
    torch.testing.assert_close(k, k_full)
    torch.testing.assert_close(v, v_full)


def test_a_configuration_by_layer(tiny: Tiny) -> None:
    asked = {"global_quant_config": "ptpc_fp8", "layer_quant_config": {"*.mlp.gate_up_proj": "mxfp8"},
             "exclude_layer": ["*.self_attn", "no.such.layer"]}  # fmt: skip
    llm = tiny.llm(k=0, online_quant_config=json.dumps(asked))
    assert llm.weights.layers == {"ptpc_fp8": 3, "mxfp8": 3}
    assert llm.notes == ("online_quant_config: no layer matches no.such.layer",)
    assert llm.online_quant.info["online_quant_config"]["exclude_layer"] == asked["exclude_layer"]


@pytest.mark.parametrize(("settings", "words"), [
    ({"quant": "w=mxfp8"}, "down_proj is 48 wide, mxfp8 needs a multiple of 32; fix: exclude model.layers.0.mlp"),
    ({"quant": "ptpc-fp8", "online_quant_config": "{}"}, "asked for twice"),
    ({"quant": "kv[7]=fp8"}, "names layer 7, the target has 3"),
])  # fmt: skip
def test_what_does_not_fit_is_told(tiny: Tiny, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        tiny.llm(**settings)


def test_bands_say_what_is_not_served(tiny: Tiny) -> None:
    interval, mono = tiny.llm(k=0, quant="m31flash-c1-4", mono="auto").notes
    assert interval.startswith("m31flash-c1-4: prefill_decode_interval=20000 is not served")
    assert mono == (
        "m31flash-c1-4: at K=0 Mono serves steps of up to 16 requests, and up to 64 decode together: --batch 16 keeps "
        "every step on it"
    )
    assert tiny.llm(k=7, quant="m31flash-c8-16", max_batch=2, mono="auto").notes == ()
    (off,) = tiny.llm(k=0, quant="m31flash-c8-16", mono="off").notes
    assert off == "m31flash-c8-16: Mono serves no step: Mono is off"
    (fused,) = tiny.llm(k=0, quant="m31flash-c32-48").notes  # the fixture's target is dense
    assert fused == "m31flash-c32-48: fused_verify_topk serves no step: the target has no block-sparse layer"
    assert tiny.llm(k=0, quant="nvfp4").notes == ()


def test_the_fused_choice_of_blocks_is_counted(tmp_path: Path) -> None:
    llm = build(tmp_path).llm(k=3, quant="m31flash-c32-48", max_batch=4)
    llm.generate(requests([(4, 5, 6)], max_tokens=40, ignore_eos=True))
    assert 0 < llm.counters["fused_verify_topk_steps"] < llm.counters["decode_ticks"]  # the first see all their blocks
    assert llm.notes == ()


def test_the_other_dialect_and_a_cache_scale_reach_the_engine(tiny: Tiny) -> None:
    llm = tiny.llm(k=3, quant="w=ptpc_fp8 kv=fp8 fp8=e4m3fnuz")
    assert llm.cache.layers[0].format == "fp8_fnuz" and llm.cache.layers[-1].format == "float32"
    layer = llm.target.get_submodule("layers.0.attn.o")
    assert isinstance(layer, QuantLinear) and layer.options.fp8 == torch.float8_e4m3fnuz
    assert texts(llm) == texts(tiny.llm(k=0, quant="w=ptpc_fp8 kv=fp8 fp8=e4m3fnuz"))
    assert tiny.llm(quant="nvfp4 kv_scale=0.125").cache.layers[0].format == "nvfp4@0.125"

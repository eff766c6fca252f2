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
from engine.layers import gated
from engine.moe import MoE, reference_moe
from engine.quant import ACTIVATIONS, QuantLinear
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


EXPERTS = '{"global_quant_config": "FORMAT", "exclude_layer": ["re:.*(self_attn|mlp|shared_experts)"]}'


def moe_of(llm: LLM, layer: int = 1) -> MoE:
    moe = llm.target.get_submodule(f"layers.{layer}.mlp")
    assert isinstance(moe, MoE)
    return moe


def test_experts_are_quantised_where_nothing_excludes_them(m3: Tiny) -> None:
    llm = m3.llm(k=0, online_quant_config='{"global_quant_config": "ptpc_fp8"}')
    assert llm.notes == ()
    names = quantised(llm.target)
    assert {f"layers.2.mlp.{stack}.{e}" for stack in ("gate_up", "down") for e in range(4)} <= set(names)
    assert any(name.endswith("shared.down") for name in names)
    assert not any(name.endswith("mlp.gate") for name in names)  # the router
    told = [layer["layer"] for layer in llm.online_quant.info["layers"]]
    assert told.count("model.layers.2.block_sparse_moe.experts") == 1
    assert llm.online_quant.info["num_layers"] == len(told)
    assert texts(llm) == texts(m3.llm(k=3, online_quant_config='{"global_quant_config": "ptpc_fp8"}'))


@pytest.mark.parametrize(("name", "values", "scales"), [("ptpc_fp8", 1.0, 4 / 32), ("mxfp8", 1.0, 1 / 32),
                                                        ("mxfp4", 0.5, 1 / 32)])  # fmt: skip
def test_memory_of_quantised_experts_to_the_byte(tmp_path: Path, name: str, values: float, scales: float) -> None:
    """Every expert's matrices, of 32 columns here: codes, and a scale of 4 bytes a row or of 1 for 32 values."""
    m3 = build(tmp_path, intermediate_size=32)
    plain, llm = m3.llm(k=0), m3.llm(k=0, online_quant_config=EXPERTS.replace("FORMAT", name))
    count = 2 * 4 * (64 * 32 + 32 * 32)  # layers, experts, gate and up and down
    assert llm.weights.nbytes == {"plain": plain.weights.total - 4 * count, name: int(count * (values + scales))}
    assert llm.weights.layers == {name: 16} and llm.weights.cached == 4 * count
    assert llm.counters["weight_bytes"] == plain.weights.total - count * 4 + int(count * (values + scales))
    codes = [layer.codes.nbytes for layer in llm.target.modules() if isinstance(layer, QuantLinear)]
    assert sum(codes) == count * values


@pytest.mark.parametrize("name", ["ptpc_fp8", "mxfp8", "mxfp4"])
def test_a_quantised_expert_is_the_layer_of_its_own_matrices(tmp_path: Path, name: str) -> None:
    """Each expert against QuantLinears made of its part of the stack, and the whole MoE against its slow twin."""
    m3 = build(tmp_path, intermediate_size=32)
    old, new = moe_of(m3.llm(k=0)), moe_of(m3.llm(k=0, online_quant_config=EXPERTS.replace("FORMAT", name)))
    x, act = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)), "" if name == "mxfp4" else None
    assert isinstance(old.gate_up, nn.Parameter) and isinstance(old.down, nn.Parameter)
    for e in range(4):
        layers = [QuantLinear(stack[e].detach(), name, act=ACTIVATIONS[name][0] if act is None else act)
                  for stack in (old.gate_up, old.down)]  # fmt: skip
        assert torch.equal(new.expert(e, x), layers[1](gated(layers[0](x), new.cfg)))
    for rows in (x, x[:1]):
        torch.testing.assert_close(new(rows), reference_moe(new, rows), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(new(rows), old(rows), rtol=1e-4, atol=1e-5)


def test_experts_by_pattern(m3: Tiny) -> None:
    """Both stacks answer to the experts' name, each to its own matrices; experts of one stack cannot differ."""
    only = '{"layer_quant_config": {"model.layers.1.block_sparse_moe.experts": "ptpc_fp8"}}'
    assert len(quantised(m3.llm(k=0, online_quant_config=only).target)) == 8
    down = '{"layer_quant_config": {"*.w2": "ptpc_fp8"}}'
    llm = m3.llm(k=0, online_quant_config=down)
    assert quantised(llm.target) == [f"layers.{i}.mlp.down.{e}" for i in (1, 2) for e in range(4)]
    assert isinstance(moe_of(llm).gate_up, nn.Parameter) and texts(llm)
    recipe = '{"global_quant_config": "ptpc_fp8", "exclude_layer": ["lm_head", "*block_sparse_moe"]}'
    assert not any(".mlp.gate_up." in n or ".mlp.shared" in n for n in quantised(
        m3.llm(k=0, online_quant_config=recipe).target))  # fmt: skip
    one = '{"global_quant_config": "ptpc_fp8", "exclude_layer": "*.experts.2.*"}'
    with pytest.raises(EngineError, match=r"parts of model.layers.1.block_sparse_moe.experts differently "
                       r"\(0.w1: ptpc_fp8, 2.w1: excluded by \*.experts.2.\*\)"):  # fmt: skip
        m3.llm(k=0, online_quant_config=one)
    with pytest.raises(EngineError, match="experts is 16 wide, mxfp8 needs a multiple of 32"):
        m3.llm(k=0, online_quant_config='{"layer_quant_config": {"*.w2": "mxfp8", "*.experts": "ptpc_fp8"}}')


def test_mono_serves_quantised_experts(m3: Tiny) -> None:
    settings = {"k": 3, "quant": "fp8", "online_quant_config": '{"global_quant_config": "ptpc_fp8"}', "max_batch": 2}
    llm = m3.llm(mono="require", **settings)
    assert texts(llm) == texts(m3.llm(mono="off", **settings)) and llm.counters["mono_share"] == 1.0


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
    k, batch, interval, mono = tiny.llm(k=0, quant="m31flash-c1-4", mono="auto").notes
    assert k == "m31flash-c1-4: K is 0, the band's is 7"
    assert batch == "m31flash-c1-4: up to 64 decode together, the band is of 1 to 4 at once"
    assert interval == "m31flash-c1-4: prefill_decode_interval is 0, the band's is 20000"
    assert tiny.llm(k=0, quant="m31flash-c1-4", mono="auto", prefill_decode_interval=20000).notes == (k, batch, mono)
    assert mono == (
        "m31flash-c1-4: at K=0 Mono serves steps of up to 16 requests, and up to 64 decode together: --batch 16 keeps "
        "every step on it"
    )
    (few,) = tiny.llm(k=7, quant="m31flash-c8-16", max_batch=2, mono="auto").notes
    assert few == "m31flash-c8-16: up to 2 decode together, the band is of 8 to 16 at once"
    assert "m31flash-c8-16: Mono serves no step: Mono is off" in tiny.llm(quant="m31flash-c8-16", mono="off").notes
    (fused,) = tiny.llm(k=7, quant="m31flash-c32-48", max_batch=48).notes  # the fixture's target is dense
    assert fused == "m31flash-c32-48: fused_verify_topk serves no step: the target has no block-sparse layer"
    assert tiny.llm(k=0, quant="nvfp4").notes == ()


def test_the_fused_choice_of_blocks_is_counted(tmp_path: Path) -> None:
    llm = build(tmp_path).llm(k=7, quant="m31flash-c32-48", max_batch=32)
    llm.generate(requests([(4, 5, 6)], max_tokens=40, ignore_eos=True))
    assert 0 < llm.counters["fused_verify_topk_steps"] < llm.counters["decode_ticks"]  # the first see all their blocks
    assert llm.notes == ()
    mono = build(tmp_path).llm(k=3, quant="fp8", mono="require", max_batch=4)
    mono.generate(requests([(4, 5, 6)], max_tokens=40, ignore_eos=True))
    assert mono.counters["mono_share"] == 1.0 and mono.counters["fused_verify_topk_steps"] == 0  # one path a step


def test_the_other_dialect_and_a_cache_scale_reach_the_engine(tiny: Tiny) -> None:
    llm = tiny.llm(k=3, quant="w=ptpc_fp8 kv=fp8 fp8=e4m3fnuz")
    assert llm.cache.layers[0].format == "fp8_fnuz" and llm.cache.layers[-1].format == "float32"
    layer = llm.target.get_submodule("layers.0.attn.o")
    assert isinstance(layer, QuantLinear) and layer.options.fp8 == torch.float8_e4m3fnuz
    assert texts(llm) == texts(tiny.llm(k=0, quant="w=ptpc_fp8 kv=fp8 fp8=e4m3fnuz"))
    assert tiny.llm(quant="nvfp4 kv_scale=0.125").cache.layers[0].format == "nvfp4@0.125"

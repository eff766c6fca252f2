from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint_config import load_model_config, parse_model_config
from engine.errors import EngineError
from engine.quant.stored import StoredQuant

PATH = Path("config.json")


def raw(**changes: Any) -> dict[str, Any]:
    sparse = {
        "sparse_attention_freq": [1, 1, 1, 1],
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 32,
        "sparse_block_size": 16,
        "sparse_topk_blocks": 4,
    } | changes.pop("sparse", {})
    return {
        "architectures": ["MiniMaxM3ForCausalLM"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rope_theta": 1e4,
        "dense_intermediate_size": 64, "intermediate_size": 32, "max_position_embeddings": 512,
        "num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1, 1, 1],
        "sparse_attention_config": sparse,
    } | changes  # fmt: skip


def test_the_two_lists_are_apart() -> None:
    cfg = parse_model_config(raw(), PATH)
    assert cfg.moe and cfg.moe.layers == (False, True, True, True)
    assert cfg.sparse and cfg.sparse.layers == (True,) * 4 and cfg.sparse.local_blocks == 1


def test_missing_lists() -> None:
    cut = raw()
    del cut["moe_layer_freq"], cut["sparse_attention_config"]
    cfg = parse_model_config(cut, PATH)
    assert cfg.moe and all(cfg.moe.layers) and cfg.sparse is None


def test_a_text_config_is_taken_from_a_multimodal_one() -> None:
    assert parse_model_config({"text_config": raw()}, PATH).num_layers == 4


@pytest.mark.parametrize(
    ("changes", "computes"),
    [
        ({}, "1111"),
        ({"index_topk_freq": 2}, "1111"),  # without use_index_cache it means nothing
        ({"use_index_cache": True, "index_topk_freq": 2}, "1010"),
        ({"use_index_cache": True, "index_topk_freq": 2, "index_skip_topk_offset": 1}, "1101"),
        ({"use_index_cache": True, "index_topk_pattern": "CSS"}, "1001"),
        (
            {"use_index_cache": True, "index_topk_freq": 3, "sparse": {"sparse_attention_freq": [0, 1, 1, 1]}},
            "0100",
        ),
    ],
    ids=str,
)
def test_index_sharing_counts_sparse_layers(changes: dict[str, Any], computes: str) -> None:
    cfg = parse_model_config(raw(**changes), PATH)
    assert cfg.sparse and "".join("01"[c] for c in cfg.sparse.computes) == computes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"moe_layer_freq": [1]}, "1 entries in moe_layer_freq for 4 layers"),
        ({"sparse": {"sparse_attention_freq": [1] * 5}}, "5 entries in sparse_attention_freq for 4 layers"),
        ({"sparse": {"sparse_num_index_heads": 4}}, "4 index heads and 2 KV heads"),
        ({"sparse": {"sparse_score_type": "mean"}}, "sparse_score_type 'mean'"),
        ({"sparse": {"sparse_disable_index_value": False}}, "sparse_disable_index_value False"),
        ({"sparse": {"sparse_topk_blocks": 0}}, "sees 0 blocks"),
        ({"scoring_func": "softmax"}, "routes with 'softmax'"),
        ({"mlp_layer_types": ["dense"] * 4, "moe_layer_freq": None}, "mlp_layer_types: it was written by transformers"),
        ({"num_experts_per_tok": 9}, "chooses 9 of 8 experts"),
        ({"n_shared_experts": 2, "shared_intermediate_size": 48}, "shared_intermediate_size 48"),
        ({"use_index_cache": True, "index_topk_freq": 0}, "index_topk_freq as 0; fix: give a whole number from 1"),
        ({"use_index_cache": True, "index_topk_pattern": "S"}, "the first sparse layer shares an index"),
        ({"num_local_experts": None}, "has no num_local_experts"),
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM'"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        parse_model_config(raw(**changes), PATH)


LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 512}  # fmt: skip
QWEN = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4, "rope_theta": 1e4}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def test_what_old_llama_configs_leave_out() -> None:
    cfg = parse_model_config(LLAMA, PATH)
    assert (cfg.head_dim, cfg.num_kv_heads, cfg.rope_theta, cfg.qk_norm, cfg.tie_embeddings) == (
        8,
        4,
        1e4,
        False,
        False,
    )


def test_both_spellings_of_scaled_rope() -> None:
    old = parse_model_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}, PATH)
    new = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}
    assert old.rope_scaling and old == parse_model_config(LLAMA | new, PATH)
    with pytest.raises(EngineError, match="rope_parameters and rope_scaling that differ"):
        parse_model_config(LLAMA | new | {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": 4.0}}, PATH)


def test_a_tie_around_a_text_config_says_nothing_about_the_text_model() -> None:
    assert not parse_model_config({"tie_word_embeddings": True, "text_config": raw()}, PATH).tie_embeddings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 3}, "4 heads and 3 KV heads"),
        ({"num_attention_heads": 5}, "has no head_dim"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scales RoPE by 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "low 1, high 1"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta as 10000.0 and in rope_parameters"),
        ({"rotary_dim": 4, "partial_rotary_factor": 1.0}, "rotary_dim 4 and partial_rotary_factor 1.0"),
        ({"rotary_dim": 3}, "turns 3 of 8 dims"),
        ({"rotary_dim": 4}, "turns 4 of 8 dims by RoPE, this family turns a head whole; fix: leave"),
        ({"partial_rotary_factor": 0.5}, "turns 4 of 8 dims by RoPE"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "turns 4 of 8 dims by RoPE"),
        ({**QWEN, "partial_rotary_factor": 0.25}, "turns 2 of 8 dims by RoPE"),
        ({"rope_scaling": {"stretch": 8.0}}, "scales RoPE by stretch and gives no rope_type; fix: give rope_type"),
        ({"rope_parameters": {"factor": 8.0, "rope_theta": 1e4}}, "scales RoPE by factor and gives no rope_type"),
        ({"attention_bias": "x"}, 'attention_bias as "x"; fix: give true or false'),
        ({"attention_bias": [1]}, r"attention_bias as \[1\]; fix: give true or false"),
        ({**QWEN, "attention_bias": "x"}, 'attention_bias as "x"'),
        ({"mlp_bias": "no"}, 'mlp_bias as "no"'),
        ({"architectures": "LlamaForCausalLM"}, 'architectures as "LlamaForCausalLM"; fix: give a list of names'),
        ({"architectures": ["LlamaForCausalLM", 3]}, "fix: give a list of names"),
        ({"architectures": [], "model_type": 3}, "model_type as 3; fix: give a name"),
        ({"hidden_act": "gelu"}, "the activation 'gelu'"),
        ({"mlp_bias": True}, "biases in its MLP"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architecture 'Qwen3MoeForCausalLM'; .* Llama, Qwen2 or Qwen3"),
        ({"architectures": ["Qwen3VLForConditionalGeneration"]}, "architecture 'Qwen3VL"),
        ({"text_config": LLAMA | {"hidden_size": 64}}, "hidden_size as 32 and in text_config as 64"),
    ],
    ids=str,
)
def test_llama_configs_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        parse_model_config(LLAMA | changes, PATH)


NONSENSE = [0, -1, 10**12, 1.5, float("nan"), True, "abc", [], [1], ["x", None], {}, {"a": 1}, None]
FIELDS = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "rope_theta", "dense_intermediate_size", "intermediate_size", "max_position_embeddings", "num_local_experts",
          "num_experts_per_tok", "n_shared_experts", "shared_intermediate_size", "moe_layer_freq", "rms_norm_eps",
          "routed_scaling_factor", "swiglu_alpha", "swiglu_limit", "use_gemma_norm", "use_routing_bias", "hidden_act",
          "scoring_func", "partial_rotary_factor", "rotary_dim", "rope_scaling", "rope_parameters", "eos_token_id",
          "tie_word_embeddings", "use_qk_norm", "use_index_cache", "index_topk_freq", "index_topk_pattern",
          "index_skip_topk_offset", "num_mtp_modules", "text_config", "architectures", "model_type", "layer_types",
          "sparse_attention_config", "quantization_config"]  # fmt: skip
SPARSE = ["sparse_attention_freq", "sparse_num_index_heads", "sparse_index_dim", "sparse_block_size",
          "sparse_topk_blocks", "sparse_init_block", "sparse_local_block", "sparse_score_type"]  # fmt: skip


@pytest.mark.parametrize("name", [*FIELDS, *SPARSE])
@pytest.mark.parametrize("llama", [False, True])
def test_nonsense_in_a_field_is_one_line_or_harmless(name: str, llama: bool, tmp_path: Path) -> None:
    """Whatever JSON stands in a field: no traceback, and what is accepted has sizes from 1 and finite numbers."""
    for value in NONSENSE:
        changed = {"sparse": {name: value}} if name in SPARSE else {name: value}
        config = raw(**changed) | ({"architectures": ["LlamaForCausalLM"]} if llama and name != "architectures" else {})
        config |= {"use_index_cache": True} if name.startswith("index_") else {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            cfg = load_model_config(tmp_path)
            StoredQuant.of(config, tmp_path)
        except EngineError as e:
            assert "\n" not in str(e) and e.fix
            continue
        sizes = (cfg.vocab_size, cfg.hidden_size, cfg.num_layers, cfg.num_heads, cfg.num_kv_heads, cfg.head_dim,
                 cfg.max_positions, cfg.intermediate_size)  # fmt: skip
        assert all(type(n) is int and n >= 1 for n in sizes)
        assert all(math.isfinite(x) for x in (cfg.rope_theta, cfg.eps, cfg.swiglu_alpha, cfg.swiglu_limit))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads as 0; fix: give a whole number from 1"),
        ({"num_hidden_layers": "4"}, 'num_hidden_layers as "4"'),
        ({"rope_theta": -5}, "rope_theta as -5; fix: give a number above 0"),
        ({"rope_scaling": "yarn"}, 'rope_scaling as "yarn"; fix: give an object'),
        ({"moe_layer_freq": 1}, "moe_layer_freq as 1; fix: give a list"),
        ({"use_gemma_norm": "no"}, 'use_gemma_norm as "no"; fix: give true or false'),
        ({"max_position_embeddings": 10**9}, "as 1000000000; fix: give a whole number from 1 to 16777216"),
        ({"num_mtp_modules": 10**12}, "num_mtp_modules as 1000000000000; fix: give a whole number from 0 to 10000"),
        (
            {"num_local_experts": 10**12},
            "num_local_experts as 1000000000000; fix: .* from 0 to 349525",
        ),
        ({"eos_token_id": 64}, "names the end-of-text token 64, the vocabulary has 0 to 63"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_named_with_what_may_be(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw(**changes)))
    with pytest.raises(EngineError, match=words):
        load_model_config(tmp_path)


def test_a_partial_rotary_factor_of_a_whole_head_is_none() -> None:
    assert parse_model_config(LLAMA | {"partial_rotary_factor": 1.0, "rotary_dim": 8}, PATH).rotary_dim == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention"] * 2}, ""),  # they win, as in transformers
        ({"use_sliding_window": False}, ""),
        ({"sliding_window": None}, ""),
        ({"max_window_layers": 2}, ""),  # the layers from there on: there are none
        ({"max_window_layers": 28}, ""),
        ({"max_window_layers": None}, ""),  # 28, as in transformers
        ({"max_window_layers": 1}, "has sliding_attention layers of 16 keys"),
        ({"max_window_layers": -1}, "gives max_window_layers as -1"),
        ({"sliding_window": LLAMA["max_position_embeddings"]}, ""),  # no key is ever outside
        ({"sliding_window": LLAMA["max_position_embeddings"] - 1}, "has sliding_attention layers of"),
        ({"sliding_window": 2**20, "layer_types": ["full_attention", "sliding_attention"]}, ""),
        (
            {"sliding_window": 2**20, "layer_types": ["chunked_attention", "sliding_attention"]},
            "has chunked_attention,",
        ),
        ({}, "has sliding_attention layers of 16 keys; fix: use a target with full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has sliding_attention layers"),
        ({"layer_types": ["full_attention"]}, "has 1 entries in layer_types for 2 layers"),
        ({"use_sliding_window": "no"}, 'use_sliding_window as "no"; fix: give true or false'),
    ],
    ids=str,
)
def test_layer_types_say_which_layers_slide(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = LLAMA | QWEN | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0} | changes
    (tmp_path / "config.json").write_text(json.dumps(given))
    if not words:
        assert load_model_config(tmp_path).num_layers == 2
        return
    with pytest.raises(EngineError, match=words):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "[" * 80 + "]" * 80 + "}", '{"vocab_size": ' + "9" * 5000 + "}"],
    ids=["lists", "objects", "closed", "digits"],
)
def test_what_json_cannot_hold_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"config.json cannot be read as JSON \(") as e:
        load_model_config(tmp_path)
    assert "\n" not in str(e.value) and len(str(e.value)) < 400


def test_a_target_with_a_sliding_window_is_refused(tmp_path: Path) -> None:
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | kinds))
    with pytest.raises(EngineError, match="has sliding_attention layers"):
        load_model_config(tmp_path)

"""A draft's config.json, in DeepSpec's words and in MiniMax-M3.1's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.dspark_config import load_draft_config
from engine.errors import EngineError
from tests.engine.tiny import MASK, Tiny

M31 = {"dspark_target_layer_ids": [0, 2], "dspark_noise_token_id": MASK, "dspark_markov_rank": 32,
       "dspark_block_size": 7}  # fmt: skip


def folder(tiny: Tiny, tmp_path: Path, **changes: Any) -> Path:
    """The tiny draft's config.json with fields changed, or with None left out."""
    config = json.loads((tiny.draft / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return tmp_path


def test_both_spellings_say_the_same(tiny: Tiny, tmp_path: Path) -> None:
    plain = load_draft_config(tiny.draft)
    bare = dict.fromkeys(("target_layer_ids", "mask_token_id", "markov_rank", "block_size"))
    assert load_draft_config(folder(tiny, tmp_path, **bare, **M31)) == plain
    assert load_draft_config(folder(tiny, tmp_path, **M31)) == plain  # both, and they agree


def test_fields_of_the_published_m31_draft(tiny: Tiny, tmp_path: Path) -> None:
    cfg = load_draft_config(
        folder(
            tiny, tmp_path, architectures=["DSparkMiniMaxDraftModel"], layer_types=["sliding_attention"] * 2,
            sliding_window=16, dspark_markov_head_type="vanilla", dspark_ffn_hidden_size=48, dspark_use_dense_ffn=True,
            dspark_hybrid_context_fusion=False, confidence_head_with_markov=True,
        )
    )  # fmt: skip
    assert cfg.window == 16 and cfg.model.family == "minimax_m3" and cfg.model.intermediate_size == 48
    assert cfg.confidence and cfg.confidence_with_markov


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dspark_block_size": 5}, "block_size and dspark_block_size different values"),
        ({"dspark_noise_token_id": 3}, "mask_token_id and dspark_noise_token_id different values"),
        ({"dspark_markov_rank": 16}, "markov_rank and dspark_markov_rank different values"),
        ({"dspark_target_layer_ids": [0]}, "target_layer_ids and dspark_target_layer_ids different values"),
        ({"mask_token_id": None}, "has no mask_token_id or dspark_noise_token_id"),
        ({"mask_token_id": 999}, "mask token 999 of"),
        ({"markov_head_type": "lstm"}, "'lstm' Markov head; fix: use a draft with one of vanilla, gated, rnn"),
        ({"dspark_hybrid_context_fusion": True}, "hybrid context fusion"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of kinds full_attention, sliding_attention"),
        ({"architectures": ["MiniMaxM3ForCausalLM"]}, "and no dspark_target_layer_ids; fix: use a DSpark draft"),
        ({"confidence_temperatures": [0.0]}, "confidence_temperatures"),
    ],
    ids=str,
)
def test_a_draft_that_contradicts_itself(tiny: Tiny, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        load_draft_config(folder(tiny, tmp_path, **changes))


@pytest.mark.parametrize(
    "name",
    ["block_size", "mask_token_id", "markov_rank", "target_layer_ids", "num_hidden_layers", "markov_head_type",
     "enable_confidence_head", "confidence_head_alpha", "confidence_head_with_markov", "confidence_temperatures",
     "layer_types", "sliding_window", "capture_convention", "num_target_layers", "text_config",
     "dspark_ffn_hidden_size", "dspark_use_dense_ffn"],
)  # fmt: skip
def test_nonsense_in_a_field_is_one_line_or_harmless(tiny: Tiny, tmp_path: Path, name: str) -> None:
    for value in (0, -1, 1.5, float("nan"), True, "abc", [], [1], ["x", None], {}, {"a": 1}):
        try:
            cfg = load_draft_config(folder(tiny, tmp_path, **{name: value}))
        except EngineError as e:
            assert "\n" not in str(e) and e.fix
            continue
        assert cfg.block_size >= 1 and cfg.model.num_layers >= 1 and cfg.target_layer_ids
        assert all(type(i) is int for i in (cfg.mask_token_id, cfg.markov_rank, cfg.window, *cfg.target_layer_ids))

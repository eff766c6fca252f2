"""config.json of a checkpoint to ModelConfig and DraftConfig. Standard library only.

A field that two spellings give differently is an error, and so is a shape that contradicts itself: found
here, before a weight is read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import DraftConfig, ModelConfig, MoEConfig, SparseConfig
from engine.errors import EngineError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises EngineError when it is absent, unreadable or no object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path} does not exist", "give the folder of a checkpoint") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise EngineError(f"{path} cannot be read as JSON ({e})", "restore the file") from None
    if not isinstance(data, dict):
        raise EngineError(f"{path} holds a {type(data).__name__}, not an object", "restore the file")
    return data


def _get(raw: dict[str, Any], path: Path, *names: str, default: Any = None) -> Any:
    """The value under the first of `names` that is there; an error where two are there and disagree."""
    found = {n: raw[n] for n in names if raw.get(n) is not None}
    if len({json.dumps(v) for v in found.values()}) > 1:
        raise EngineError(f"{path} gives {' and '.join(found)} different values", "keep one of them")
    if found:
        return next(iter(found.values()))
    if default is None:
        raise EngineError(f"{path} has no {' or '.join(names)}", "use a complete config.json")
    return default


def _eos(raw: dict[str, Any]) -> tuple[int, ...]:
    eos = raw.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(int(e) for e in eos) if isinstance(eos, list) else (int(eos),)


def parse_model_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """ModelConfig of a config.json's content. Raises EngineError for an architecture it cannot compute."""
    raw = raw.get("text_config", raw)
    arch = str((raw.get("architectures") or [raw.get("model_type", "?")])[0]).lower()
    if "minimaxm3" in arch.replace("_", ""):
        family = "minimax_m3"
    elif "qwen3" in arch and "moe" not in arch:
        family = "qwen3"
    else:
        raise EngineError(f"{path} names the architecture {arch!r}", "use MiniMax-M3 or Qwen3")
    m3 = family == "minimax_m3"
    head_dim = int(_get(raw, path, "head_dim"))
    layers, kv_heads = int(_get(raw, path, "num_hidden_layers")), int(_get(raw, path, "num_key_value_heads"))
    return ModelConfig(
        family=family,
        vocab_size=int(_get(raw, path, "vocab_size")),
        hidden_size=int(_get(raw, path, "hidden_size")),
        num_layers=layers,
        num_heads=int(_get(raw, path, "num_attention_heads")),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=round(head_dim * float(raw.get("partial_rotary_factor", 0.5 if m3 else 1.0))),
        rope_theta=_rope_theta(raw, path),
        intermediate_size=int(_get(raw, path, "dense_intermediate_size" if m3 else "intermediate_size")),
        activation=str(raw.get("hidden_act", "swigluoai" if m3 else "silu")),
        gemma_norm=bool(raw.get("use_gemma_norm", m3)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", not m3)),
        max_positions=int(_get(raw, path, "max_position_embeddings")),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        swiglu_alpha=float(raw.get("swiglu_alpha", 1.702)),
        swiglu_limit=float(raw.get("swiglu_limit", 7.0)),
        moe=_moe(raw, path, layers) if m3 else None,
        sparse=_sparse(raw, path, layers, kv_heads) if m3 else None,
        eos_token_ids=_eos(raw),
        raw=raw,
    )


def _rope_theta(raw: dict[str, Any], path: Path) -> float:
    rope = raw.get("rope_parameters") or {}
    theta = raw.get("rope_theta", rope.get("rope_theta"))
    if theta is None:
        raise EngineError(f"{path} has no rope_theta", "use a complete config.json")
    if raw.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise EngineError(f"{path} asks for scaled RoPE", "use a checkpoint with plain RoPE")
    return float(theta)


def _flags(values: list[Any], name: str, layers: int, path: Path) -> tuple[bool, ...]:
    """A list with one number a layer, as flags."""
    if len(values) != layers:
        raise EngineError(f"{path} has {len(values)} entries in {name} for {layers} layers", "give one a layer")
    return tuple(bool(v) for v in values)


def _moe(raw: dict[str, Any], path: Path, layers: int) -> MoEConfig | None:
    """The experts of MiniMax-M3; a missing moe_layer_freq means that all layers have them."""
    flags = _flags(raw.get("moe_layer_freq", [1] * layers), "moe_layer_freq", layers, path)
    if not any(flags):
        return None
    scoring = str(raw.get("scoring_func", "sigmoid"))
    if scoring != "sigmoid":
        raise EngineError(f"{path} routes with {scoring!r}", "use a checkpoint with sigmoid routing")
    size, shared = int(_get(raw, path, "intermediate_size")), int(raw.get("n_shared_experts", 1))
    shared_size = int(raw.get("shared_intermediate_size", size)) if shared else 0
    if shared and shared_size not in (size, size * shared):
        raise EngineError(f"{path}: shared_intermediate_size {shared_size} is not n_shared_experts {shared} of "
                          f"intermediate_size {size}", "correct one of the three")  # fmt: skip
    experts, chosen = int(_get(raw, path, "num_local_experts")), int(_get(raw, path, "num_experts_per_tok"))
    if not 1 <= chosen <= experts:
        raise EngineError(f"{path} chooses {chosen} of {experts} experts", "correct num_experts_per_tok")
    return MoEConfig(
        layers=flags,
        experts=experts,
        experts_per_token=chosen,
        expert_size=size,
        shared_size=size * shared,
        scaling=float(raw.get("routed_scaling_factor", 1.0)),
        routing_bias=bool(raw.get("use_routing_bias", True)),
    )


def _sparse(raw: dict[str, Any], path: Path, layers: int, kv_heads: int) -> SparseConfig | None:
    """The block-sparse attention of MiniMax-M3; a missing sparse_attention_freq means that no layer has it."""
    given = raw.get("sparse_attention_config") or {}
    flags = _flags(given.get("sparse_attention_freq", [0] * layers), "sparse_attention_freq", layers, path)
    if not any(flags):
        return None
    for key, only in (("sparse_score_type", "max"), ("sparse_disable_index_value", True)):
        if given.get(key, only) != only:
            raise EngineError(f"{path} has {key} {given[key]!r}", f"use a checkpoint with {only!r}, the only one known")
    cfg = SparseConfig(
        layers=flags,
        computes=_index_computes(raw, path, flags),
        index_heads=int(_get(given, path, "sparse_num_index_heads")),
        index_dim=int(_get(given, path, "sparse_index_dim")),
        block_size=int(_get(given, path, "sparse_block_size")),
        topk=int(_get(given, path, "sparse_topk_blocks")),
        init_blocks=int(given.get("sparse_init_block", 0)),
        local_blocks=int(given.get("sparse_local_block", 1)),
    )
    if cfg.index_heads != kv_heads:
        raise EngineError(f"{path} has {cfg.index_heads} index heads and {kv_heads} KV heads", "they must be equal")
    if cfg.block_size < 1 or cfg.topk < max(1, cfg.init_blocks + cfg.local_blocks):
        raise EngineError(f"{path} sees {cfg.topk} blocks of {cfg.block_size} keys, {cfg.init_blocks} first and "
                          f"{cfg.local_blocks} last ones forced", "correct sparse_attention_config")  # fmt: skip
    return cfg


def _index_computes(raw: dict[str, Any], path: Path, sparse: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which sparse layers pick blocks themselves, counted by sparse ordinal (ATOM's index_topk_* overrides)."""
    freq, offset = int(raw.get("index_topk_freq", 1)), int(raw.get("index_skip_topk_offset", 0))
    if freq < 1:
        raise EngineError(f"{path} has index_topk_freq {freq}", "give 1 (no sharing) or more")
    pattern = raw.get("index_topk_pattern") if raw.get("use_index_cache") else None
    computes, ordinal = [], 0
    for flag in sparse:
        if pattern is not None:
            skips = ordinal < len(pattern) and pattern[ordinal] == "S"
        else:
            skips = bool(raw.get("use_index_cache")) and max(ordinal - offset, 0) % freq != 0
        if flag and skips and ordinal == 0:
            raise EngineError(f"{path}: the first sparse layer shares an index, but none is before it",
                              "let it compute its own")  # fmt: skip
        computes.append(flag and not skips)
        ordinal += flag
    return tuple(computes)


def load_model_config(folder: Path) -> ModelConfig:
    """ModelConfig of a checkpoint folder; generation_config.json may name more end-of-text tokens."""
    cfg = parse_model_config(read_json(folder / "config.json"), folder / "config.json")
    more = folder / "generation_config.json"
    eos = _eos(read_json(more)) if more.exists() else ()
    return replace(cfg, eos_token_ids=tuple(dict.fromkeys(cfg.eos_token_ids + eos)))


def _temperatures(raw: dict[str, Any], path: Path) -> tuple[float, ...]:
    found = tuple(float(t) for t in raw.get("confidence_temperatures", ()))
    if any(not 0.0 < t < 1e6 for t in found):
        raise EngineError(f"{path} has confidence_temperatures {list(found)}", "use positive numbers")
    return found


def load_draft_config(folder: Path) -> DraftConfig:
    """DraftConfig of a DSpark checkpoint folder; both spellings of its fields are taken."""
    path = folder / "config.json"
    raw = read_json(path)
    arch = str((raw.get("architectures") or ["?"])[0])
    if "dspark" not in arch.lower():
        raise EngineError(f"{path} names the architecture {arch!r}", "use a DSpark draft")
    ids = _get(raw, path, "target_layer_ids", "dspark_target_layer_ids")
    head = raw.get("markov_head_type", "vanilla")
    if head != "vanilla":
        raise EngineError(f"{path} has a {head!r} Markov head", "use a draft with a vanilla Markov head")
    return DraftConfig(
        model=parse_model_config(
            raw | {"moe_layer_freq": [0] * int(raw["num_hidden_layers"]), "sparse_attention_config": None}, path
        ),
        block_size=int(_get(raw, path, "block_size", "dspark_block_size")),
        target_layer_ids=tuple(int(i) for i in ids),
        mask_token_id=int(_get(raw, path, "mask_token_id", "dspark_noise_token_id")),
        markov_rank=int(_get(raw, path, "markov_rank", "dspark_markov_rank")),
        confidence=bool(raw.get("enable_confidence_head", float(raw.get("confidence_head_alpha", 0.0)) > 0)),
        confidence_temperatures=_temperatures(raw, path),
        capture_convention=str(raw.get("capture_convention", "post_layer")),
    )

"""The parts of MiniMax-M3's config.json that other families lack: experts and block-sparse attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config import MoEConfig, SparseConfig
from engine.config_fields import MAX_EXPERTS, real, switch, table, whole
from engine.config_fields import flags as read_flags
from engine.errors import EngineError

_OTHERS = ("mlp_layer_types", "index_n_heads")


def parse_moe(raw: dict[str, Any], path: Path, layers: int) -> MoEConfig | None:
    """The experts of MiniMax-M3; a missing moe_layer_freq means that all layers have them."""
    other = [n for n in _OTHERS if n in raw]
    if other and raw.get("moe_layer_freq") is None:  # every layer would get experts, and none an index
        raise EngineError(f"{path} has {other[0]}: it was written by transformers, which names M3's layers otherwise",
                          "use the config.json of the published checkpoint")  # fmt: skip
    flags = read_flags(raw, path, "moe_layer_freq", layers, 1)
    if not any(flags):
        return None
    scoring = str(raw.get("scoring_func", "sigmoid"))
    if scoring != "sigmoid":
        raise EngineError(f"{path} routes with {scoring!r}", "use a checkpoint with sigmoid routing")
    size, shared = whole(raw, path, "intermediate_size", low=1), whole(raw, path, "n_shared_experts", default=1)
    shared_size = whole(raw, path, "shared_intermediate_size", default=size) if shared else 0
    if shared and shared_size not in (size, size * shared):
        raise EngineError(f"{path}: shared_intermediate_size {shared_size} is not n_shared_experts {shared} of "
                          f"intermediate_size {size}", "correct one of the three")  # fmt: skip
    experts = whole(raw, path, "num_local_experts", high=MAX_EXPERTS // sum(flags))
    chosen = whole(raw, path, "num_experts_per_tok")
    if not 1 <= chosen <= experts:
        raise EngineError(f"{path} chooses {chosen} of {experts} experts", "correct num_experts_per_tok")
    return MoEConfig(
        layers=flags,
        experts=experts,
        experts_per_token=chosen,
        expert_size=size,
        shared_size=size * shared,
        scaling=real(raw, path, "routed_scaling_factor", default=1.0, above=0.0),
        routing_bias=switch(raw, path, "use_routing_bias", True),
    )


def parse_sparse(raw: dict[str, Any], path: Path, layers: int, kv_heads: int) -> SparseConfig | None:
    """The block-sparse attention of MiniMax-M3; a missing sparse_attention_freq means that no layer has it."""
    given = table(raw, path, "sparse_attention_config")
    flags = read_flags(given, path, "sparse_attention_freq", layers, 0)
    if not any(flags):
        return None
    for key, only in (("sparse_score_type", "max"), ("sparse_disable_index_value", True)):
        found = given.get(key, only)  # the second one is a flag, or one a layer
        if any(f != only for f in (found if isinstance(found, list) else [found])):
            raise EngineError(f"{path} has {key} {found!r}", f"use a checkpoint with {only!r}, the only one known")
    cfg = SparseConfig(
        layers=flags,
        computes=_index_computes(raw, path, flags),
        index_heads=whole(given, path, "sparse_num_index_heads"),
        index_dim=whole(given, path, "sparse_index_dim", low=1),
        block_size=whole(given, path, "sparse_block_size", low=1),
        topk=whole(given, path, "sparse_topk_blocks"),
        init_blocks=whole(given, path, "sparse_init_block", default=0),
        local_blocks=whole(given, path, "sparse_local_block", default=1),
    )
    if cfg.index_heads != kv_heads:
        raise EngineError(f"{path} has {cfg.index_heads} index heads and {kv_heads} KV heads", "they must be equal")
    if cfg.topk < max(1, cfg.init_blocks + cfg.local_blocks):
        raise EngineError(f"{path} sees {cfg.topk} blocks of {cfg.block_size} keys, {cfg.init_blocks} first and "
                          f"{cfg.local_blocks} last ones forced", "correct sparse_attention_config")  # fmt: skip
    return cfg


def _index_computes(raw: dict[str, Any], path: Path, sparse: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which sparse layers pick blocks themselves, counted by sparse ordinal (ATOM's index_topk_* overrides)."""
    freq = whole(raw, path, "index_topk_freq", default=1, low=1)
    offset = whole(raw, path, "index_skip_topk_offset", default=0)
    shares = switch(raw, path, "use_index_cache", False)
    pattern = raw.get("index_topk_pattern") if shares else None
    if pattern is not None and not isinstance(pattern, str):
        raise EngineError(
            f"{path} gives index_topk_pattern as {pattern!r}", "give a text with S for a layer that shares"
        )
    computes, ordinal = [], 0
    for flag in sparse:
        if pattern is not None:
            skips = ordinal < len(pattern) and pattern[ordinal] == "S"
        else:
            skips = shares and max(ordinal - offset, 0) % freq != 0
        if flag and skips and ordinal == 0:
            raise EngineError(f"{path}: the first sparse layer shares an index, but none is before it",
                              "let it compute its own")  # fmt: skip
        computes.append(flag and not skips)
        ordinal += flag
    return tuple(computes)

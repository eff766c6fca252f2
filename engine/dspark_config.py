"""config.json of a DSpark draft to DraftConfig: DeepSpec's fields, or MiniMax-M3.1's `dspark_*`. Standard library only.

A draft is a checkpoint of its own, a folder `dspark` inside the target's, or tensors among the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.checkpoint_config import parse_model_config
from engine.config import DraftConfig
from engine.config_fields import MAX_LAYERS, architecture, field, listed, read_json, real, switch, text_config, whole
from engine.errors import EngineError

MARKOV_HEADS = ("vanilla", "gated", "rnn")
NESTED = "dspark"  # the folder in which MiniMax-M3.1 ships its draft


def has_draft(raw: dict[str, Any]) -> bool:
    """Does this config.json describe a DSpark draft, alone or beside a target?"""
    inner = raw.get("text_config")
    return any("dspark_target_layer_ids" in r for r in (raw, inner if isinstance(inner, dict) else {}))


def draft_folder(folder: Path) -> Path:
    """Where the draft of `folder` is: the folder itself, or the one that its checkpoint ships inside."""
    raw = read_json(folder / "config.json")
    nested = folder / NESTED
    alone = "dspark" in architecture(raw).lower()
    return nested if not alone and (nested / "config.json").is_file() else folder


def ships_draft(folder: Path) -> bool:
    """Does a target's checkpoint have a DSpark draft, in a folder inside or among its tensors?"""
    return draft_folder(folder) != folder or has_draft(read_json(folder / "config.json"))


def load_draft_config(folder: Path, *, layers: int | None = None) -> DraftConfig:
    """DraftConfig of a checkpoint folder. Raises EngineError where it has no DSpark draft or contradicts itself.

    layers: draft layers among the target's tensors, for a config.json that is the target's and does not say.
    """
    path = folder / "config.json"
    raw = read_json(path)
    alone = "dspark" in architecture(raw).lower()
    if not alone and not has_draft(raw):
        raise EngineError(f"{path} names the architecture {architecture(raw)!r} and no dspark_target_layer_ids",
                          "use a DSpark draft")  # fmt: skip
    text = text_config(raw, path)
    count = (
        whole(text, path, "num_hidden_layers", low=1, high=MAX_LAYERS) if alone else _inline_layers(text, path, layers)
    )
    shape = raw | {"text_config": None} | text | _dense(text, path, count)
    head = str(field(text, path, "markov_head_type", "dspark_markov_head_type", default="vanilla"))
    if head not in MARKOV_HEADS:
        raise EngineError(f"{path} has a {head!r} Markov head", f"use a draft with one of {', '.join(MARKOV_HEADS)}")
    fused = switch(text, path, "dspark_hybrid_context_fusion", False)
    if fused or not switch(text, path, "dspark_use_dense_ffn", True):
        raise EngineError(f"{path} asks for hybrid context fusion, or for experts in the draft",
                          "use a draft with dense layers and plain context")  # fmt: skip
    block, mask, rank = (whole(text, path, *n) for n in (("block_size", "dspark_block_size"),
                                                         ("mask_token_id", "dspark_noise_token_id"),
                                                         ("markov_rank", "dspark_markov_rank")))  # fmt: skip
    ids = tuple(listed(text, path, "target_layer_ids", "dspark_target_layer_ids"))
    model = parse_model_config(shape, path)
    alpha = real(text, path, "confidence_head_alpha", default=0.0)
    if block < 1 or mask >= model.vocab_size or not ids or any(type(i) is not int for i in ids):
        raise EngineError(f"{path} has block_size {block}, mask token {mask} of {model.vocab_size}, markov_rank {rank} "
                          f"and target_layer_ids {list(ids)}", "correct the one that cannot be")  # fmt: skip
    return DraftConfig(
        model=model,
        block_size=block,
        target_layer_ids=ids,
        mask_token_id=mask,
        markov_rank=rank,
        markov_head=head,
        confidence=switch(text, path, "enable_confidence_head", alpha > 0),
        confidence_with_markov=switch(text, path, "confidence_head_with_markov", True) and rank > 0,
        confidence_temperatures=_temperatures(text, path),
        capture_convention=str(text.get("capture_convention", "post_layer")),
        window=_window(text, path) if alone else 0,
        made_for=_made_for(text) if alone else {},
    )


def _inline_layers(text: dict[str, Any], path: Path, found: int | None) -> int:
    """Layers of a draft inside a target's checkpoint: as config.json says, else as many as there are."""
    said = text.get("dspark_num_hidden_layers") or text.get("dspark_num_layers") or found
    if not said:
        raise EngineError(f"{path} does not say how many layers its DSpark draft has", "give dspark_num_hidden_layers")
    return _layers({"dspark_num_hidden_layers": said}, path, "dspark_num_hidden_layers")


def _layers(raw: dict[str, Any], path: Path, name: str) -> int:
    return whole(raw, path, name, low=1, high=MAX_LAYERS)


def _dense(text: dict[str, Any], path: Path, layers: int) -> dict[str, Any]:
    """What makes a draft's layers of the target's shape: no experts, no block-sparse attention."""
    out: dict[str, Any] = {"num_hidden_layers": layers, "moe_layer_freq": [0] * layers, "sparse_attention_config": None}
    given = whole(text, path, "dspark_ffn_hidden_size", default=0)
    if given:
        size = text.get("dense_intermediate_size", given)
        if "target_layer_ids" in text and size != given:
            raise EngineError(f"{path} gives dspark_ffn_hidden_size and dense_intermediate_size that differ",
                              "keep one of them")  # fmt: skip
        out["dense_intermediate_size"] = given
    return out


def _window(text: dict[str, Any], path: Path) -> int:
    """Context keys that a block sees, 0 for all: M3.1's draft slides over the last `sliding_window`."""
    kinds = {str(kind) for kind in listed(text, path, "layer_types", default=[]) or ["full_attention"]}
    if kinds == {"full_attention"}:
        return 0
    size = whole(text, path, "sliding_window", default=0)
    if kinds != {"sliding_attention"} or not size:
        raise EngineError(f"{path} has layers of kinds {', '.join(sorted(kinds))} and sliding_window {size}",
                          "use a draft whose layers are alike")  # fmt: skip
    return size


def _made_for(text: dict[str, Any]) -> dict[str, Any]:
    """What the draft records of its target."""
    return {n: text[n] for n in ("num_target_layers", "target_fingerprint") if text.get(n) is not None}


def _temperatures(raw: dict[str, Any], path: Path) -> tuple[float, ...]:
    found = tuple(listed(raw, path, "confidence_temperatures", default=[]))
    if any(not isinstance(t, int | float) or not 0.0 < t < 1e6 for t in found):
        raise EngineError(f"{path} has confidence_temperatures {list(found)}", "use positive numbers")
    return tuple(map(float, found))

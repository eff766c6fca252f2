"""config.json of an EAGLE3 draft. Standard library only.

The published drafts are Llama layers and differ in small switches. Those known here are read, any other that
changes what is computed is refused by name: a draft run in the wrong variant loses acceptance and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelConfig
from engine.config_fields import MAX_POSITIONS, architecture, listed, read_json, real, switch, table, whole
from engine.errors import EngineError

CONVENTIONS = ("pre_layer", "post_layer")
# What this engine computes; a config.json that says something else is for another engine.
_ONLY: dict[str, tuple[Any, ...]] = {
    "num_hidden_layers": (1,),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "norm_before_fc": (False,),
    "use_sliding_window": (False,),
    "parallel_drafting": (False,),
    "partial_rotary_factor": (1.0,),
    "rope_scaling": (),  # None alone
    "kv_lora_rank": (),
    "transformer_layer_config": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """Shape of an EAGLE3 draft: `model` is its one decoder layer.

    layer_ids as the file gives them, under `capture_convention`: "pre_layer" id i is the residual stream
    entering layer i (ATOM, vLLM), "post_layer" the one after it (SGLang's reading of the same field, and
    DSpark's). The file's own `capture_convention` says which; without it ids are pre-layer. () is the
    field's default: 2, half and all but three of the target's layers, always pre-layer.
    """

    model: ModelConfig
    layer_ids: tuple[int, ...]
    capture_convention: str
    target_hidden_size: int
    draft_vocab_size: int  # rows of the head; fewer than the vocabulary need the map d2t
    norm_output: bool  # the next pass gets the normed hidden (EAGLE 3.1), else the one before the norm
    fc_norm: bool  # each captured layer is normed before fc (EAGLE 3.1)
    norm_before_residual: bool  # the residual starts from the normed hidden (speculators), else the raw one

    @property
    def captured(self) -> int:
        """How many target layers are fused."""
        return len(self.layer_ids) or 3

    def capture(self, layers: int) -> tuple[int, ...]:
        """The ids as Target captures them, post-layer, for a target of `layers`: pre-layer id i is i - 1.

        Raises ValueError, saying what does not fit.
        """
        ids, pre = self.layer_ids, self.capture_convention == "pre_layer"
        if not ids:
            ids, pre = (2, layers // 2, layers - 3), True
        post = tuple(i - 1 for i in ids) if pre else ids
        # nothing enters a layer after the last, so pre-layer ids end one earlier
        last = layers - 2 if pre else layers - 1
        if any(not -1 <= i <= last for i in post) or len(set(post)) < len(post):
            raise ValueError(f"captures layers {list(ids)} ({'pre' if pre else 'post'}_layer), the target has {layers}")
        return post


def load_eagle3_config(folder: Path) -> Eagle3Config:
    """Eagle3Config of a checkpoint folder. Raises EngineError for a draft that this engine does not compute."""
    path = folder / "config.json"
    return parse_eagle3_config(read_json(path), path)


def parse_eagle3_config(raw: dict[str, Any], path: Path) -> Eagle3Config:
    """The same of a config.json's content."""
    arch = architecture(raw)
    if not is_eagle3(arch):
        raise EngineError(f"{path} names the architecture {arch!r}", "use an EAGLE3 draft")
    eagle = table(raw, path, "eagle_config")
    if not switch(eagle, path, "use_aux_hidden_state", True):
        raise EngineError(f"{path} says use_aux_hidden_state false", "use a draft that fuses captured layers")
    for key, known in _ONLY.items():
        if raw.get(key) is not None and raw[key] not in known:
            wanted = f"with {key} {known[0]!r}" if known else f"without {key}"
            raise EngineError(f"{path} has {key} {raw[key]!r}", f"use a draft {wanted}, the only form known")
    model = _model(raw, path)
    convention = str(raw.get("capture_convention", "pre_layer"))
    if convention not in CONVENTIONS:
        raise EngineError(f"{path} has capture_convention {convention!r}", f"use {' or '.join(CONVENTIONS)}")
    return Eagle3Config(
        model=model,
        layer_ids=_layer_ids(raw, eagle, path),
        capture_convention=convention,
        target_hidden_size=whole(raw, path, "target_hidden_size", default=model.hidden_size, low=1),
        draft_vocab_size=whole(raw, path, "draft_vocab_size", default=model.vocab_size, low=1),
        norm_output=switch(raw, path, "norm_output", False),
        fc_norm=switch(raw, path, "fc_norm", False),
        norm_before_residual=switch(raw, path, "norm_before_residual", False),
    )


def is_eagle3(arch: str) -> bool:
    """Whether an architecture's name is one of EAGLE3's: LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM."""
    return "eagle3" in arch.lower()


def _layer_ids(raw: dict[str, Any], eagle: dict[str, Any], path: Path) -> tuple[int, ...]:
    name = "eagle_aux_hidden_state_layer_ids"
    found = [tuple(listed(place, path, name)) for place in (eagle, raw) if place.get(name)]
    if any(type(i) is not int for ids in found for i in ids):
        raise EngineError(f"{path} gives {name} as {list(found[0])}", "give layer numbers")
    if len(set(found)) > 1:
        raise EngineError(f"{path} gives {name} twice, and different", "keep one of them")
    return found[0] if found else ()


def _model(raw: dict[str, Any], path: Path) -> ModelConfig:
    """A Llama layer in this engine's terms."""

    hidden, heads = (whole(raw, path, n, low=1) for n in ("hidden_size", "num_attention_heads"))
    head_dim = whole(raw, path, "head_dim", default=hidden // heads, low=1)
    kv_heads = whole(raw, path, "num_key_value_heads", default=heads, low=1)
    if heads % kv_heads or head_dim % 2:
        raise EngineError(f"{path} has {heads} heads of {head_dim} on {kv_heads} KV heads",
                          "use a number of heads that the KV heads divide, of an even size")  # fmt: skip
    return ModelConfig(
        family="llama",
        vocab_size=whole(raw, path, "vocab_size", low=1),
        hidden_size=hidden,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=head_dim,
        rope_theta=_rope_theta(raw, path),
        intermediate_size=whole(raw, path, "intermediate_size", low=1),
        activation="silu",
        gemma_norm=False,
        tie_embeddings=False,
        qk_norm=False,
        max_positions=whole(raw, path, "max_position_embeddings", low=1, high=MAX_POSITIONS),
        eps=real(raw, path, "rms_norm_eps", default=1e-6, above=0.0),
        raw=raw,
    )


def _rope_theta(raw: dict[str, Any], path: Path) -> float:
    """From either spelling; 10000 where a file says nothing, as ATOM and transformers take it."""
    rope = table(raw, path, "rope_parameters")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise EngineError(f"{path} has rope_type {kind!r}", "use a draft with plain RoPE")
    found = {real(place, path, "rope_theta", above=0.0) for place in (raw, rope) if place.get("rope_theta") is not None}
    if len(found) > 1:
        raise EngineError(f"{path} gives rope_theta twice, and different", "keep one of them")
    return found.pop() if found else 10000.0

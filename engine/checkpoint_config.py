"""config.json of a target to ModelConfig. Standard library only.

A field that two spellings give differently is an error, and so is a shape that contradicts itself: found
here, before a weight is read. Drafts: see dspark_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import ModelConfig, RopeScaling
from engine.config_fields import (
    MAX_LAYERS,
    MAX_POSITIONS,
    architecture,
    field,
    listed,
    read_json,
    real,
    switch,
    table,
    text_config,
    whole,
)
from engine.errors import EngineError
from engine.m3_config import parse_moe, parse_sparse

# the architecture's name without its ending, or a model_type -> family
FAMILIES = {
    "minimaxm3": "minimax_m3",
    "minimaxm3sparse": "minimax_m3",
    "minimaxm3vl": "minimax_m3",
    "dsparkminimaxdraft": "minimax_m3",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
SLIDING = "sliding_attention"
_ENDINGS = ("forconditionalgeneration", "forcausallm", "dsparkmodel", "model")


def parse_model_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """ModelConfig of a config.json's content. Raises EngineError for an architecture it cannot compute."""
    family = _family(architecture(raw), path)
    raw = text_config(raw, path)
    m3, llama = family == "minimax_m3", family == "llama"
    layers = whole(raw, path, "num_hidden_layers", low=1, high=MAX_LAYERS)
    hidden, heads = (whole(raw, path, n, low=1) for n in ("hidden_size", "num_attention_heads"))
    kv_heads = whole(raw, path, "num_key_value_heads", default=heads if llama else None, low=1)
    head_dim = whole(
        raw, path, "head_dim", default=None if m3 or hidden % heads else hidden // heads, low=1, high=2**16
    )
    if heads % kv_heads:
        raise EngineError(f"{path} has {heads} heads and {kv_heads} KV heads", "the first must be a multiple")
    rope = _rope(raw, path)
    return ModelConfig(
        family=family,
        vocab_size=whole(raw, path, "vocab_size", low=1),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=_rotary_dim(raw | rope, path, head_dim, 0.5) if m3 else _whole_head(raw | rope, path, head_dim),
        rope_theta=real(raw | rope, path, "rope_theta", default=1e4 if llama else None, above=0.0),
        rope_scaling=_scaling(rope, path),
        intermediate_size=whole(raw, path, "dense_intermediate_size" if m3 else "intermediate_size", low=1),
        activation=_activation(raw, path, "swigluoai" if m3 else "silu"),
        gemma_norm=switch(raw, path, "use_gemma_norm", m3),
        qk_norm=_qk_norm(raw, path, family),
        attention_bias=_attention_bias(raw, path, family),
        tie_embeddings=switch(raw, path, "tie_word_embeddings", False),
        max_positions=whole(raw, path, "max_position_embeddings", low=1, high=MAX_POSITIONS),
        eps=real(raw, path, "rms_norm_eps", default=1e-6, above=0.0),
        swiglu_alpha=real(raw, path, "swiglu_alpha", default=1.702),
        swiglu_limit=real(raw, path, "swiglu_limit", default=7.0, above=0.0),
        moe=parse_moe(raw, path, layers) if m3 else None,
        sparse=parse_sparse(raw, path, layers, kv_heads) if m3 else None,
        mtp_modules=whole(raw, path, "num_mtp_modules", default=0, high=MAX_LAYERS),
        eos_token_ids=_eos(raw, path),
        raw=raw,
    )


def load_model_config(folder: Path) -> ModelConfig:
    """ModelConfig of a checkpoint folder; generation_config.json may name more end-of-text tokens."""
    path = folder / "config.json"
    raw = read_json(path)
    cfg = parse_model_config(raw, path)
    _refuse_windows(cfg, path)
    more = folder / "generation_config.json"
    eos = _eos(read_json(more), more) if more.exists() else ()
    if outside := [i for i in (*cfg.eos_token_ids, *eos) if not 0 <= i < cfg.vocab_size]:
        raise EngineError(f"{path} or {more.name} names the end-of-text token {outside[0]}, the vocabulary has 0 to "
                          f"{cfg.vocab_size - 1}", "correct eos_token_id")  # fmt: skip
    return replace(cfg, eos_token_ids=tuple(dict.fromkeys(cfg.eos_token_ids + eos)))


def _family(arch: str, path: Path) -> str:
    word = arch.lower().replace("_", "")
    for ending in _ENDINGS:
        word = word.removesuffix(ending)
    if word not in FAMILIES:
        raise EngineError(f"{path} names the architecture {arch!r}",
                          "use a checkpoint of MiniMax-M3, Llama, Qwen2 or Qwen3 (dense)")  # fmt: skip
    return FAMILIES[word]


def _eos(raw: dict[str, Any], path: Path) -> tuple[int, ...]:
    eos = raw.get("eos_token_id")
    found = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if any(not isinstance(e, int) or isinstance(e, bool) for e in found):
        raise EngineError(f"{path} gives eos_token_id as {eos!r}", "give a token id, or a list of them")
    return tuple(found)


def _activation(raw: dict[str, Any], path: Path, only: str) -> str:
    found = str(field(raw, path, "hidden_act", default=only))
    if found not in ("silu", "swigluoai"):
        raise EngineError(f"{path} has the activation {found!r}", f"use a checkpoint with {only}")
    return found


def _qk_norm(raw: dict[str, Any], path: Path, family: str) -> bool:
    """Whether q and k are normed per head. M3 has a switch for it, which no public checkpoint turns off."""
    if family != "minimax_m3":
        return family == "qwen3"
    if switch(raw, path, "attention_output_gate", False) or not switch(raw, path, "use_qk_norm", True):
        raise EngineError(f"{path} asks for an output gate, or for no QK norm, in its attention",
                          "use a published MiniMax-M3 checkpoint")  # fmt: skip
    return True


def _attention_bias(raw: dict[str, Any], path: Path, family: str) -> str:
    """Which projections have a bias: "", "qkv" or "qkvo"."""
    if switch(raw, path, "mlp_bias", False):
        raise EngineError(f"{path} has biases in its MLP", "use a checkpoint without mlp_bias")
    bias = switch(raw, path, "attention_bias", False)
    return "qkv" if family == "qwen2" else "qkvo" if bias else ""


def _refuse_windows(cfg: ModelConfig, path: Path) -> None:
    """A target that does not attend to all keys, other than by M3's blocks, is not computed here."""
    given = [] if cfg.family == "minimax_m3" else listed(cfg.raw, path, "layer_types", default=[])
    if given and len(given) != cfg.num_layers:
        raise EngineError(f"{path} has {len(given)} entries in layer_types for {cfg.num_layers} layers",
                          "give one a layer")  # fmt: skip
    kinds = {str(kind) for kind in given} - {"full_attention"}
    if not given and _slides(cfg, path):  # layer_types say it where they are there
        kinds = {SLIDING}
    window = whole(cfg.raw, path, "sliding_window", default=0) if kinds == {SLIDING} else 0
    if kinds and window < cfg.max_positions:  # a window as long as the context leaves no key out
        size = f" of {window} keys" if window else ""
        raise EngineError(f"{path} has {', '.join(sorted(kinds))} layers{size}", "use a target with full attention")


def _slides(cfg: ModelConfig, path: Path) -> bool:
    """Whether a config.json without layer_types has sliding layers. In Qwen2 and Qwen3 those are the layers from
    `max_window_layers` on (28 where it does not say, as in transformers), so mostly none."""
    if not switch(cfg.raw, path, "use_sliding_window", False) or not cfg.raw.get("sliding_window"):
        return False
    first = 0 if cfg.family == "llama" else whole(cfg.raw, path, "max_window_layers", default=28)
    return first < cfg.num_layers


def _rope(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """rope_parameters, or rope_scaling in its place: one object, with rope_type."""
    found = [dict(r) for n in ("rope_parameters", "rope_scaling") if (r := table(raw, path, n))]
    for rope in found:
        named = rope.get("rope_type") is not None or rope.get("type") is not None
        if not named and (odd := sorted(set(rope) - {"rope_theta", "partial_rotary_factor"})):
            raise EngineError(f"{path} scales RoPE by {', '.join(odd)[:60]} and gives no rope_type",
                              "give rope_type, or leave the scaling out")  # fmt: skip
        rope["rope_type"] = field(rope, path, "rope_type", "type", default="default")
        rope.pop("type", None)
    if len(found) == 2 and any(found[0].get(k, v) != v for k, v in found[1].items()):
        raise EngineError(f"{path} gives rope_parameters and rope_scaling that differ", "keep one of them")
    rope = found[0] if found else {"rope_type": "default"}
    theta = rope.get("rope_theta")
    if theta is not None and raw.get("rope_theta") is not None and raw["rope_theta"] != theta:
        raise EngineError(f"{path} gives rope_theta as {raw['rope_theta']} and in rope_parameters as {theta}",
                          "keep one of them")  # fmt: skip
    return rope


def _whole_head(raw: dict[str, Any], path: Path, head_dim: int) -> int:
    """All of a head: in Llama, Qwen2 and Qwen3 transformers turns it whole, whatever partial_rotary_factor says."""
    size = _rotary_dim(raw, path, head_dim, 1.0)
    if size != head_dim:
        raise EngineError(f"{path} turns {size} of {head_dim} dims by RoPE, this family turns a head whole",
                          "leave partial_rotary_factor and rotary_dim out")  # fmt: skip
    return size


def _rotary_dim(raw: dict[str, Any], path: Path, head_dim: int, share: float) -> int:
    turned = round(head_dim * real(raw, path, "partial_rotary_factor", default=share))
    size = whole(raw, path, "rotary_dim", default=0) or turned
    if raw.get("partial_rotary_factor") is not None and size != turned:
        raise EngineError(f"{path} gives rotary_dim {size} and partial_rotary_factor {raw['partial_rotary_factor']} of "
                          f"{head_dim}", "keep one of them")  # fmt: skip
    if size % 2 or not 0 < size <= head_dim:
        raise EngineError(f"{path} turns {size} of {head_dim} dims", "give an even number, at most head_dim")
    return size


def _scaling(rope: dict[str, Any], path: Path) -> RopeScaling | None:
    """Llama 3's scaling of frequencies, the only one known; None for plain RoPE."""
    kind = rope["rope_type"]
    if kind == "default":
        return None
    if kind != "llama3":
        raise EngineError(f"{path} scales RoPE by {kind!r}", "use a checkpoint with plain or llama3 RoPE")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, positions = (real(rope, path, n) for n in names)
    if not (factor >= 1 and 0 < low < high and positions >= 1):
        raise EngineError(f"{path} has llama3 RoPE with factor {factor:g}, low {low:g}, high {high:g} and "
                          f"{positions:g} positions", "give factor >= 1 and 0 < low < high")  # fmt: skip
    return RopeScaling(factor=factor, low_freq_factor=low, high_freq_factor=high, original_positions=positions)

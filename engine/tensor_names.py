"""What the tensors of a checkpoint are called, by family: parameter of our modules -> tensors of the files.

The modules pack q, k, v and gate, up into one matrix each, and stack experts; the files keep them apart. Names are the
canonical ones of `target_name` and `draft_name`, which take the published layouts to one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from engine.config import DraftConfig, ModelConfig, MoEConfig
from engine.eagle3_config import Eagle3Config

Names = dict[str, tuple[str, ...]]  # parameter -> the tensors it is made of, joined along dim 0

ATTENTION: Names = {
    "input_norm.weight": ("input_layernorm.weight",),
    "post_norm.weight": ("post_attention_layernorm.weight",),
    "attn.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attn.o.weight": ("self_attn.o_proj.weight",),
}
QK_NORM: Names = {
    "attn.q_norm.weight": ("self_attn.q_norm.weight",),
    "attn.k_norm.weight": ("self_attn.k_norm.weight",),
}
DENSE: Names = {
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight",),
}
INDEX: Names = {
    "indexer.qk.weight": ("self_attn.index_q_proj.weight", "self_attn.index_k_proj.weight"),
    "indexer.q_norm.weight": ("self_attn.index_q_norm.weight",),
    "indexer.k_norm.weight": ("self_attn.index_k_norm.weight",),
}
# what a multimodal checkpoint holds beside its text model, and what old ones hold that follows from config.json
NOT_TEXT = ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")
DERIVED = "rotary_emb.inv_freq"
# other words for a draft's tensors: Kimi-K3, DeepSeek-V4, MiniMax-M3.1
ALIASES = {"context_proj": "fc", "main_proj": "fc", "context_norm": "hidden_norm", "main_norm": "hidden_norm",
           "final_norm": "norm"}  # fmt: skip


def _biases(which: str) -> Names:
    """Of the projections that have one: "", "qkv" or "qkvo"."""
    qkv: Names = {"attn.qkv.bias": tuple(f"self_attn.{p}_proj.bias" for p in "qkv")} if which else {}
    return qkv | ({"attn.o.bias": ("self_attn.o_proj.bias",)} if which == "qkvo" else {})


def _experts(moe: MoEConfig) -> Names:
    """Tensors of a layer's experts: w1 is the gate, w3 up, w2 down; in turn they fill the stacked parameter."""
    m, each = "block_sparse_moe.", range(moe.experts)
    names = {
        "mlp.gate.weight": (f"{m}gate.weight",),
        "mlp.gate_up": tuple(f"{m}experts.{e}.{w}.weight" for e in each for w in ("w1", "w3")),
        "mlp.down": tuple(f"{m}experts.{e}.w2.weight" for e in each),
    }
    if moe.routing_bias:
        names["mlp.correction_bias"] = (f"{m}e_score_correction_bias",)
    if moe.shared_size:
        shared = f"{m}shared_experts."
        names["mlp.shared.gate_up.weight"] = (f"{shared}gate_proj.weight", f"{shared}up_proj.weight")
        names["mlp.shared.down.weight"] = (f"{shared}down_proj.weight",)
    return names


def layer_names(prefix: str, cfg: ModelConfig) -> Names:
    """Of all decoder layers, which are `prefix`layers.N in the files."""
    names: Names = {}
    for i in range(cfg.num_layers):
        parts = ATTENTION | _biases(cfg.attention_bias) | (QK_NORM if cfg.qk_norm else {})
        parts |= _experts(cfg.moe) if cfg.moe and cfg.moe.layers[i] else DENSE
        parts |= INDEX if cfg.sparse and cfg.sparse.computes[i] else {}
        names |= {f"layers.{i}.{o}": tuple(f"{prefix}layers.{i}.{t}" for t in theirs) for o, theirs in parts.items()}
    return names


def target_names(cfg: ModelConfig) -> Names:
    """Parameter of a Target -> the tensors it is joined from."""
    names = {"embed.weight": ("model.embed_tokens.weight",), "norm.weight": ("model.norm.weight",)}
    names |= layer_names("model.", cfg)
    return names if cfg.tie_embeddings else names | {"head.weight": ("lm_head.weight",)}


def draft_names(cfg: DraftConfig | Eagle3Config) -> Names:
    """The same for a draft: DSpark's in DeepSpec's layout, EAGLE3's in EAGLE's and SpecForge's."""
    if isinstance(cfg, Eagle3Config):
        return _eagle3_names(cfg)
    names: Names = {n: (n,) for n in ("fc.weight", "hidden_norm.weight", "norm.weight")}
    if cfg.markov_rank:
        names["markov_in.weight"] = ("markov_head.markov_w1.weight",)
        names["markov_out.weight"] = ("markov_head.markov_w2.weight",)
        ours = {"gated": "gate_proj", "rnn": "joint_proj"}.get(cfg.markov_head)
        names |= {f"markov_mix.{n}": (f"markov_head.{ours}.{n}",) for n in ("weight", "bias") if ours}
    if cfg.confidence:
        names |= {f"confidence.{n}": (f"confidence_head.proj.{n}",) for n in ("weight", "bias")}
    return names | layer_names("", cfg.model)


def _eagle3_names(cfg: Eagle3Config) -> Names:
    names: Names = {"fc.weight": ("fc.weight",), "norm.weight": ("norm.weight",), "head.weight": ("lm_head.weight",)}
    names |= {f"fc_norm.{i}.weight": (f"fc_norm.{i}.weight",) for i in range(cfg.captured if cfg.fc_norm else 0)}
    parts: Names = {"hidden_norm.weight": ("hidden_norm.weight",)} | ATTENTION | DENSE
    return names | {f"midlayer.{ours}": tuple(f"midlayer.{t}" for t in theirs) for ours, theirs in parts.items()}


def target_name(cfg: ModelConfig, *, draft_inside: bool) -> Callable[[str], str | None]:
    """Name in the files -> canonical name of a target's tensor; None for one that is no part of the text model.

    draft_inside: tensors below `model.dspark.` are a draft's. M3's MTP modules count on after the last layer.
    """
    mtp = range(cfg.num_layers, cfg.num_layers + cfg.mtp_modules)
    skipped = (*NOT_TEXT, *(f"model.layers.{i}." for i in mtp), *(["model.dspark."] if draft_inside else []))

    def rename(name: str) -> str | None:
        name = name.removeprefix("language_model.")
        return None if name.startswith(skipped) or name.endswith(DERIVED) else name

    return rename


def draft_name(*, inside: bool) -> Callable[[str], str | None]:
    """Name in the files -> canonical name of a draft's tensor. inside: among a target's, which give None."""

    def rename(name: str) -> str | None:
        found = re.fullmatch(r"(?:(?:language_model\.)?model\.dspark\.)(.+)", name)
        if found is None and inside:
            return None
        name = found[1] if found else name
        first, _, rest = name.partition(".")
        name = f"{ALIASES.get(first, first)}.{rest}"
        return re.sub(r"^(layers\.\d+\.)decoder_layer\.", r"\1", name)

    return rename

"""Checkpoints on disk to modules and back: safetensors beside a config.json, with the published names.

The modules pack q, k, v and gate, up into one matrix each; the files keep them apart.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.checkpoint_config import load_draft_config, load_model_config
from engine.config import DraftConfig, ModelConfig, MoEConfig
from engine.draft.block import BlockDraft
from engine.draft.eagle3_model import Eagle3Draft
from engine.eagle3_config import Eagle3Config, load_eagle3_config
from engine.errors import EngineError
from engine.layers import packed_rows
from engine.model import Target

_ATTENTION = {  # parameter of a DecoderLayer -> the tensors it is made of, joined along dim 0
    "input_norm.weight": ("input_layernorm.weight",),
    "post_norm.weight": ("post_attention_layernorm.weight",),
    "attn.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attn.o.weight": ("self_attn.o_proj.weight",),
    "attn.q_norm.weight": ("self_attn.q_norm.weight",),
    "attn.k_norm.weight": ("self_attn.k_norm.weight",),
}
_DENSE = {
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight",),
}
_INDEX = {
    "indexer.qk.weight": ("self_attn.index_q_proj.weight", "self_attn.index_k_proj.weight"),
    "indexer.q_norm.weight": ("self_attn.index_q_norm.weight",),
    "indexer.k_norm.weight": ("self_attn.index_k_norm.weight",),
}


def _experts(moe: MoEConfig) -> dict[str, tuple[str, ...]]:
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


def _layer_names(prefix: str, cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for i in range(cfg.num_layers):
        parts = _ATTENTION | (_experts(cfg.moe) if cfg.moe and cfg.moe.layers[i] else _DENSE)
        parts |= _INDEX if cfg.sparse and cfg.sparse.computes[i] else {}
        names |= {f"layers.{i}.{o}": tuple(f"{prefix}layers.{i}.{t}" for t in theirs) for o, theirs in parts.items()}
    return names


def target_names(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Parameter name -> the file's tensor names it is joined from."""
    names = {"embed.weight": ("model.embed_tokens.weight",), "norm.weight": ("model.norm.weight",)}
    names |= _layer_names("model.", cfg)
    return names if cfg.tie_embeddings else names | {"head.weight": ("lm_head.weight",)}


def draft_names(cfg: DraftConfig | Eagle3Config) -> dict[str, tuple[str, ...]]:
    """The same for a draft: DSpark's in DeepSpec's layout, EAGLE3's in EAGLE's and SpecForge's."""
    if isinstance(cfg, Eagle3Config):
        return _eagle3_names(cfg)
    names = {n: (n,) for n in ("fc.weight", "hidden_norm.weight", "norm.weight")}
    names["markov_in.weight"] = ("markov_head.markov_w1.weight",)
    names["markov_out.weight"] = ("markov_head.markov_w2.weight",)
    if cfg.confidence:
        names |= {f"confidence.{n}": (f"confidence_head.proj.{n}",) for n in ("weight", "bias")}
    return names | _layer_names("", cfg.model)


def _eagle3_names(cfg: Eagle3Config) -> dict[str, tuple[str, ...]]:
    names = {"fc.weight": ("fc.weight",), "norm.weight": ("norm.weight",), "head.weight": ("lm_head.weight",)}
    names |= {f"fc_norm.{i}.weight": (f"fc_norm.{i}.weight",) for i in range(cfg.captured if cfg.fc_norm else 0)}
    parts = {n: t for n, t in (_ATTENTION | _DENSE).items() if n not in ("attn.q_norm.weight", "attn.k_norm.weight")}
    parts["hidden_norm.weight"] = ("hidden_norm.weight",)
    return names | {f"midlayer.{ours}": tuple(f"midlayer.{t}" for t in theirs) for ours, theirs in parts.items()}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder. Raises EngineError for a missing, truncated or odd file."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    files = [single]
    if index.exists():
        files = sorted({folder / str(f) for f in json.loads(index.read_text())["weight_map"].values()})
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise EngineError(f"weight file {file} does not exist", "restore the checkpoint folder")
        try:
            with safe_open(file, "pt") as f:
                tensors |= {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as e:
            size = file.stat().st_size
            raise EngineError(f"weight file {file} ({size} bytes) is damaged or truncated ({e})",
                              "restore it from its source") from None  # fmt: skip
    return tensors


def _fill(module: nn.Module, names: dict[str, tuple[str, ...]], tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy the named tensors into the module and drop them from `tensors`."""
    missing = [t for parts in names.values() for t in parts if t not in tensors]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise EngineError(f"{folder} lacks the tensor {missing[0]}{more}", "use a complete checkpoint")
    params = dict(module.named_parameters())
    with torch.no_grad():
        for ours, parts in names.items():
            pieces = [tensors.pop(t) for t in parts]
            flat = params[ours].flatten(0, 1) if params[ours].ndim == 3 else params[ours]  # experts are stacked
            try:
                whole = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
            except RuntimeError:
                whole = None
            if whole is None or whole.shape != flat.shape:
                shapes = ", ".join(str(list(p.shape)) for p in pieces[:4]) + (" ..." if len(pieces) > 4 else "")
                raise EngineError(f"{folder}: {_named(parts)} have shape {shapes}, config.json says "
                                  f"{list(flat.shape)} together", "use files that belong together")  # fmt: skip
            if not torch.isfinite(whole.float()).all():
                raise EngineError(f"{folder}: {_named(parts)} holds a NaN or an infinity", "restore the checkpoint")
            flat.copy_(whole)


def _named(parts: tuple[str, ...]) -> str:
    return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def load_target(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Target:
    """The target of a checkpoint folder, ready for inference. Raises EngineError."""
    cfg = load_model_config(folder)
    target, tensors = Target(cfg), read_tensors(folder)
    _fill(target, target_names(cfg), tensors, folder)
    if cfg.tie_embeddings:
        tensors.pop("lm_head.weight", None)
    _refuse_rest(tensors, folder)
    return target.to(device=device, dtype=dtype).eval().requires_grad_(False)


def load_draft(folder: Path, target: Target, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> BlockDraft:
    """The DSpark draft of a checkpoint folder for `target`. Raises EngineError when they do not fit."""
    cfg = load_draft_config(folder)
    t, m = target.cfg, cfg.model
    for what, ours, theirs in (
        ("hidden size", m.hidden_size, t.hidden_size),
        ("vocabulary", m.vocab_size, t.vocab_size),
    ):
        if ours != theirs:
            raise EngineError(
                f"the draft {folder} has {what} {ours}, the target {theirs}", "use the target's own draft"
            )
    bad = [i for i in cfg.target_layer_ids if not -1 <= i < t.num_layers]
    if bad or cfg.capture_convention != "post_layer":
        raise EngineError(f"the draft {folder} captures layers {list(cfg.target_layer_ids)} "
                          f"({cfg.capture_convention}); the target has {t.num_layers}",
                          "use the target's own draft, with post-layer ids")  # fmt: skip
    tensors = read_tensors(folder)
    embed, head = target.embed, target.head
    if "embed_tokens.weight" in tensors:
        embed = nn.Embedding.from_pretrained(tensors.pop("embed_tokens.weight"))
    if "lm_head.weight" in tensors:
        head = nn.Linear(m.hidden_size, m.vocab_size, bias=False)
        head.weight = nn.Parameter(tensors.pop("lm_head.weight"))
    embed, head = embed.to(device=device, dtype=dtype), head.to(device=device, dtype=dtype)
    draft = BlockDraft(cfg, embed, head)
    _fill(draft, draft_names(cfg), tensors, folder)
    _refuse_rest(tensors, folder)
    return draft.to(device=device, dtype=dtype).eval().requires_grad_(False)


def load_eagle3(
    folder: Path, target: Target, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Eagle3Draft:
    """The EAGLE3 draft of a checkpoint folder for `target`. Raises EngineError when they do not fit.

    Its layer is called midlayer or layers.0; without embed_tokens the embedding is the target's.
    """
    cfg = load_eagle3_config(folder)
    tensors = {n.replace("layers.0.", "midlayer.", 1): t for n, t in read_tensors(folder).items()}
    own = tensors.pop("embed_tokens.weight", None)
    t, m = target.cfg, cfg.model
    for what, ours, theirs in (
        ("reads a hidden size of", cfg.target_hidden_size, t.hidden_size),
        ("has vocabulary", m.vocab_size, t.vocab_size),
        ("embeds in", m.hidden_size, t.hidden_size if own is None else own.shape[-1]),
    ):
        if ours != theirs:
            raise EngineError(f"the draft {folder} {what} {ours}, not {theirs}", "use the target's own draft")
    try:
        capture = cfg.capture(t.num_layers)
    except ValueError as e:
        raise EngineError(f"the draft {folder} {e}", "use the target's own draft, or say its capture_convention") from e
    embed = target.embed if own is None else nn.Embedding.from_pretrained(own).to(device=device, dtype=dtype)
    draft = Eagle3Draft(cfg, embed, capture, _draft_vocabulary(cfg, tensors, folder))
    _fill(draft, draft_names(cfg), tensors, folder)
    _refuse_rest(tensors, folder)
    return draft.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _draft_vocabulary(cfg: Eagle3Config, tensors: dict[str, Tensor], folder: Path) -> Tensor | None:
    """Take d2t and t2d out: the target's id of each draft id, None where the vocabularies are one.

    The files hold offsets, d2t[i] = id of the target - i, and the mask t2d of the ids that the draft has.
    """
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    vocab, size = cfg.model.vocab_size, cfg.draft_vocab_size
    if offsets is None:
        if size != vocab:
            raise EngineError(f"{folder} drafts {size} of {vocab} tokens and has no d2t", "use a complete checkpoint")
        return None
    ids = torch.arange(len(offsets)) + offsets.long() if offsets.ndim == 1 else offsets
    if ids.shape != (size,) or int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) < size:
        raise EngineError(f"{folder}: d2t does not give {size} different ids below {vocab}", "restore the checkpoint")
    if mask is not None and (mask.shape != (vocab,) or not torch.equal(mask.bool().nonzero().flatten(), ids.sort()[0])):
        raise EngineError(f"{folder}: d2t and t2d disagree", "restore the checkpoint")
    return None if torch.equal(ids, torch.arange(vocab)) else ids


def _refuse_rest(tensors: dict[str, Tensor], folder: Path) -> None:
    if tensors:
        name = sorted(tensors)[0]
        raise EngineError(f"{folder} holds {len(tensors)} tensors that its config.json does not account for, "
                          f"{name} among them", "use a checkpoint of a supported architecture")  # fmt: skip


def save_checkpoint(
    module: nn.Module, names: dict[str, tuple[str, ...]], folder: Path, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write model.safetensors with the published names: each packed matrix is split as `_fill` joins it."""
    params, out = dict(module.named_parameters()), {}
    for ours, parts in names.items():
        whole = params[ours].detach()
        whole = whole.flatten(0, 1) if whole.ndim == 3 else whole
        for name, piece in zip(parts, whole.split(packed_rows(module, ours), dim=0), strict=True):
            out[name] = piece.to(dtype).contiguous().clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "model.safetensors.tmp", metadata={"format": "pt"})
    (folder / "model.safetensors.tmp").chmod(0o644)  # safetensors makes it private
    (folder / "model.safetensors.tmp").replace(folder / "model.safetensors")

"""Checkpoints on disk to modules and back: safetensors beside a config.json, with the published names.

A module is made without memory and takes each tensor as it is read, in the dtype and on the device where it will
stay: at no time is more in memory than the model and one tensor, see tensor_files. Of a rank's share (engine.shard) the
same holds: of a tensor that is cut only the rank's part is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.checkpoint_config import load_model_config
from engine.config import DraftConfig, ModelConfig
from engine.config_fields import architecture, read_json
from engine.draft.block import BlockDraft
from engine.dspark_config import draft_folder, has_draft, load_draft_config
from engine.errors import EngineError
from engine.layers import packed_rows
from engine.model import Target
from engine.quant.stored import StoredQuant, StoredTensors
from engine.shard import WHOLE, Share
from engine.tensor_files import Cut, TensorFiles, Tensors
from engine.tensor_names import Names, draft_name, draft_names, target_name, target_names

MADE_FOR = "target_fingerprint"
__all__ = [
    "draft_names",
    "fill",
    "load_draft",
    "load_target",
    "made_for",
    "read_tensors",
    "save_checkpoint",
    "target_names",
]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a small checkpoint folder at once. Raises EngineError for a missing, truncated or odd file."""
    files = TensorFiles(folder)
    return {name: files.pop(name) for name in files.names()}


def fill(
    module: nn.Module, names: Names, tensors: Tensors, folder: Path, *, dtype: torch.dtype | None = None,
    device: str | torch.device | None = None, share: Share = WHOLE, whole: ModelConfig | None = None,
) -> None:  # fmt: skip
    """Copy the named tensors into the module, popping them from `tensors`. `folder` is for messages.

    Parameters without memory ("meta") get it here, in `dtype` and on `device`. A module of a share's shape gets that
    share of each tensor; `whole` is the shape of the whole model. Raises EngineError for a tensor that is missing, of
    another shape than config.json says, no number type, or not finite.
    """
    missing = [t for parts in names.values() for t in parts if t not in tensors]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(f"{folder} lacks {_plural(missing)} {', '.join(missing[:3])}{more}",
                          "use a complete checkpoint whose config.json is its own")  # fmt: skip
    with torch.no_grad():
        for ours in sorted(names, key=lambda ours: tensors.order(names[ours][0])):  # so that each file is mapped once
            cuts = [share.cut(whole, ours, i) if whole else None for i in range(len(names[ours]))]
            for name, part, cut in zip(names[ours], _parts(module, ours), cuts, strict=True):  # before memory is taken
                _check_shape(tensors.shape(name), name, _uncut(part, cut), folder)
            _with_memory(module, ours, dtype, device)
            amax: list[Tensor] = []
            for name, part, cut in zip(names[ours], _parts(module, ours), cuts, strict=True):
                if cut is not None and cut.dim == 1 and share.row_amax:
                    found = _checked(tensors.pop(name), name, folder)
                    amax.append(found.to(part.dtype).abs().amax(1, keepdim=True).float().to(part.device))
                    part.copy_(found[:, cut.start : cut.stop])
                else:
                    part.copy_(_checked(tensors.pop(name, cut), name, folder))
            if amax:
                _keep_amax(module, ours, amax)
    left = [n for n, p in module.named_parameters() if p.is_meta]
    if left:
        raise RuntimeError(f"no tensor fills {left[0]}")


def _parts(module: nn.Module, name: str) -> tuple[Tensor, ...]:
    """Views of what a parameter is joined from; experts are stacked."""
    p = module.get_parameter(name)
    return (p.flatten(0, 1) if p.ndim == 3 else p).split(packed_rows(module, name))


def _uncut(part: Tensor, cut: Cut | None) -> list[int]:
    """The shape of the whole tensor that `part` is cut from."""
    return [cut.whole if cut and dim == cut.dim else n for dim, n in enumerate(part.shape)]


class Undrawn(TorchFunctionMode):
    """Modules made under it get no first values: drawing them without memory would load half of torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("kaiming_uniform_", "uniform_", "normal_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _keep_amax(module: nn.Module, name: str, amax: list[Tensor]) -> None:
    """Note the largest magnitude of each whole row of columns: float32 [out, 1] or [experts, out, 1]."""
    if name.endswith(".weight"):
        module.get_submodule(name.removesuffix(".weight")).register_buffer("row_amax", amax[0], persistent=False)
    else:
        owner, _, stack = name.rpartition(".")
        module.get_submodule(owner).register_buffer(f"{stack}_amax", torch.stack(amax), persistent=False)


def _with_memory(module: nn.Module, name: str, dtype: torch.dtype | None, device: str | torch.device | None) -> None:
    """Give a meta parameter its memory, in each place that shares it."""
    old = module.get_parameter(name)
    if not old.is_meta:
        return
    stays = name.endswith("correction_bias")  # rounded to bf16 it would change which experts are chosen
    new = nn.Parameter(torch.empty(old.shape, dtype=torch.float32 if stays else dtype, device=device), False)
    for path, p in list(module.named_parameters(remove_duplicate=False)):
        if p is old:
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, new)


def _check_shape(found: tuple[int, ...], name: str, shape: list[int], folder: Path) -> None:
    if list(found) != shape:
        raise EngineError(f"{folder}: {name} has shape {list(found)}, config.json says {shape}",
                          "use files that belong together")  # fmt: skip


def _checked(tensor: Tensor, name: str, folder: Path) -> Tensor:
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise EngineError(f"{folder}: {name} is stored as {str(tensor.dtype).removeprefix('torch.')} and without "
                          "scales", "use a checkpoint in bf16, float16, float32 or a quantised form that config.json "
                          "describes")  # fmt: skip
    if not bool(torch.isfinite(tensor).all()):
        raise EngineError(f"{folder}: {name} holds a NaN or an infinity", "restore the checkpoint")
    return tensor


def load_target(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", share: Share = WHOLE
) -> Target:
    """The target of a checkpoint folder, ready for inference, or a rank's share of it. Raises EngineError."""
    whole = load_model_config(folder)
    cfg = share.local(whole)
    raw = read_json(folder / "config.json")
    tensors = StoredTensors(
        TensorFiles(folder, target_name(cfg, draft_inside=has_draft(raw))), StoredQuant.of(raw, folder)
    )
    with torch.device("meta"), Undrawn():
        target = Target(cfg)
    fill(target, target_names(cfg), tensors, folder, dtype=dtype, device=device, share=share, whole=whole)
    add_once(target, share)
    if cfg.tie_embeddings and "lm_head.weight" in tensors:
        head = tensors.pop("lm_head.weight")
        if head.shape != target.embed.weight.shape or not torch.equal(head.to(device, dtype), target.embed.weight):
            raise EngineError(f"{folder} says tie_word_embeddings and holds an lm_head.weight of its own",
                              "set tie_word_embeddings to what the model was trained with")  # fmt: skip
    refuse_rest(tensors, folder)
    target.stored = tensors.sources
    return target.to(device=device, dtype=dtype).eval().requires_grad_(False)


def load_draft(
    folder: Path, target: Target, *, dtype: torch.dtype = torch.float32, device: str = "cpu", share: Share = WHOLE
) -> BlockDraft:
    """The DSpark draft of a checkpoint folder for `target`, or a rank's share of it: of its decoder layers.

    Raises EngineError when they do not fit.

    The folder may be the target's, where that ships its draft: in a folder inside, or among its tensors.
    """
    folder = draft_folder(folder)
    raw = read_json(folder / "config.json")
    inside = has_draft(raw) and "dspark" not in architecture(raw).lower()
    tensors = StoredTensors(TensorFiles(folder, draft_name(inside=inside)), StoredQuant.of(raw, folder))
    cfg = load_draft_config(folder, layers=_layer_count(tensors) if inside else None)
    check_fit(cfg, target, folder)
    m = cfg.model
    with torch.device("meta"), Undrawn():
        embed, head = nn.Embedding(m.vocab_size, m.hidden_size), nn.Linear(m.hidden_size, m.vocab_size, bias=False)
    for own, name in ((embed, "embed_tokens.weight"), (head, "lm_head.weight")):
        if name in tensors:
            fill(own, {"weight": (name,)}, tensors, folder, dtype=dtype, device=device)
    shared = (target.embed if embed.weight.is_meta else embed, target.head if head.weight.is_meta else head)
    with torch.device("meta"), Undrawn():
        draft = BlockDraft(replace(cfg, model=share.local(m, "draft")), *shared)
    fill(draft, draft_names(cfg), tensors, folder, dtype=dtype, device=device, share=share, whole=m)
    add_once(draft, share)
    if not cfg.confidence:  # a head that config.json turns off may be there all the same
        tensors.drop(n for n in tensors.names() if n.startswith("confidence_head."))
    refuse_rest(tensors, folder)
    draft.stored = tensors.sources
    return draft.to(device=device, dtype=dtype).eval().requires_grad_(False)


def add_once(module: nn.Module, share: Share) -> None:
    """Keep the bias of an attention's last projection on the first rank alone: the ranks' products are summed."""
    for name, p in module.named_parameters():
        if share.rank and name.endswith("attn.o.bias"):
            p.data.zero_()


def check_fit(cfg: DraftConfig, target: Target, folder: Path) -> None:
    """Raises EngineError where the draft of `folder` was made for another target, as far as its config.json says."""
    t, m, made = target.cfg, cfg.model, cfg.made_for
    for what, ours, theirs in (
        ("hidden size", m.hidden_size, t.hidden_size),
        ("vocabulary", m.vocab_size, t.vocab_size),
        ("num_target_layers", made.get("num_target_layers", t.num_layers), t.num_layers),
    ):
        if ours != theirs:
            raise EngineError(
                f"the draft {folder} has {what} {ours}, the target {theirs}", "use the target's own draft"
            )
    check_made_for(made.get(MADE_FOR), target, folder)
    bad = [i for i in cfg.target_layer_ids if not -1 <= i < t.num_layers]
    if bad or cfg.capture_convention != "post_layer":
        raise EngineError(f"the draft {folder} captures layers {list(cfg.target_layer_ids)} "
                          f"({cfg.capture_convention}); the target has {t.num_layers}",
                          "use the target's own draft, with post-layer ids")  # fmt: skip


def check_made_for(recorded: object, target: Target, folder: Path) -> None:
    """Raises EngineError where the draft of `folder` records a fingerprint and `target` has another one."""
    if recorded is not None and recorded != (own := fingerprint(target)):
        raise EngineError(
            f"the draft {folder} has {MADE_FOR} {recorded}, the target {own}: it was made for another one",
            f"use the target's own draft; to run it all the same, take {MADE_FOR} out of its config.json",
        )


def made_for(target: Target) -> dict[str, str]:
    """The field of a draft's config.json that names the target it was trained for; see check_made_for."""
    return {MADE_FOR: fingerprint(target)}


def fingerprint(target: Target) -> str:
    """What a draft may record of its target: sha256 of all norm weights as bf16, in the order of their names.

    Cheap, the same for a sharded, quantised or converted target, and another one for any other training run that moves
    a norm.
    """
    digest = hashlib.sha256()
    for name, p in sorted(target.named_parameters()):
        if name.endswith("norm.weight"):
            digest.update(p.detach().to("cpu", torch.bfloat16).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _layer_count(tensors: StoredTensors) -> int:
    found = {n.split(".")[1] for n in tensors.names() if n.startswith("layers.")}
    return len(found)


def _plural(names: list[str]) -> str:
    return "the tensor" if len(names) == 1 else f"{len(names)} tensors:"


def refuse_rest(tensors: StoredTensors, folder: Path) -> None:
    """Raises EngineError, naming them, where tensors are left that nothing took."""
    if names := tensors.names():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise EngineError(f"{folder} holds {_plural(names)} {', '.join(names[:3])}{more}, which its config.json does "
                          "not account for", "use a checkpoint of a supported architecture")  # fmt: skip


def save_checkpoint(module: nn.Module, names: Names, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write model.safetensors with the published names: each packed matrix is split as `fill` joins it."""
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

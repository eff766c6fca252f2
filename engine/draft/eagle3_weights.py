"""An EAGLE3 checkpoint's folder to an Eagle3Draft, with its draft vocabulary and its embedding where it has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.config_fields import read_json
from engine.draft.eagle3_model import Eagle3Draft
from engine.eagle3_config import Eagle3Config, parse_eagle3_config
from engine.errors import EngineError
from engine.model import Target
from engine.quant.stored import StoredQuant, StoredTensors
from engine.shard import WHOLE, Share
from engine.tensor_files import TensorFiles
from engine.weights import MADE_FOR, Undrawn, check_made_for, draft_names, fill, refuse_rest


def load_eagle3(
    folder: Path, target: Target, *, dtype: torch.dtype = torch.float32, device: str = "cpu", share: Share = WHOLE
) -> Eagle3Draft:
    """The EAGLE3 draft of a checkpoint folder for `target`, or a rank's share of its layer.

    Raises EngineError when they do not fit.

    Its layer is called midlayer or layers.0; without embed_tokens the embedding is the target's.
    """
    raw = read_json(folder / "config.json")
    cfg = parse_eagle3_config(raw, folder / "config.json")
    files = TensorFiles(folder, lambda name: name.replace("layers.0.", "midlayer.", 1))
    tensors = StoredTensors(files, StoredQuant.of(raw, folder))
    capture = _fit(cfg, target, folder, own_embedding="embed_tokens.weight" in tensors)
    d2t = _draft_vocabulary(cfg, tensors, folder)
    embed = target.embed
    if "embed_tokens.weight" in tensors:
        with torch.device("meta"), Undrawn():
            embed = nn.Embedding(cfg.model.vocab_size, cfg.model.hidden_size)
        fill(embed, {"weight": ("embed_tokens.weight",)}, tensors, folder, dtype=dtype, device=device)
    with torch.device("meta"), Undrawn():
        draft = Eagle3Draft(replace(cfg, model=share.local(cfg.model, "draft")), embed, capture)
    draft.d2t = d2t
    fill(draft, draft_names(cfg), tensors, folder, dtype=dtype, device=device, share=share, whole=cfg.model)
    refuse_rest(tensors, folder)
    draft.stored = tensors.sources
    return draft.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _fit(cfg: Eagle3Config, target: Target, folder: Path, *, own_embedding: bool) -> tuple[int, ...]:
    """The layers to capture. Raises EngineError where the draft was made for another target."""
    t, m = target.cfg, cfg.model
    for what, ours, theirs in (
        ("reads a hidden size of", cfg.target_hidden_size, t.hidden_size),
        ("has vocabulary", m.vocab_size, t.vocab_size),
        ("embeds in", m.hidden_size, m.hidden_size if own_embedding else t.hidden_size),
    ):
        if ours != theirs:
            raise EngineError(f"the draft {folder} {what} {ours}, not {theirs}", "use the target's own draft")
    check_made_for(m.raw.get(MADE_FOR), target, folder)
    try:
        return cfg.capture(t.num_layers)
    except ValueError as e:
        raise EngineError(f"the draft {folder} {e}", "use the target's own draft, or say its capture_convention") from e


def _draft_vocabulary(cfg: Eagle3Config, tensors: StoredTensors, folder: Path) -> Tensor | None:
    """Take d2t and t2d out: the target's id of each draft id, None where the vocabularies are one.

    The files hold offsets, d2t[i] = id of the target - i, and the mask t2d of the ids that the draft has.
    """
    offsets, mask = (tensors.pop(name) if name in tensors else None for name in ("d2t", "t2d"))
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

"""What an LLM is put together from: its device, its draft, the cache's layers, how long and how much it holds."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import nn

from engine.config import EngineConfig, QuantMode
from engine.draft import DRAFTERS, Drafter
from engine.errors import EngineError
from engine.kv_cache import LayerSpec
from engine.model import Target
from engine.parallel import Parallel
from engine.quant import FORMATS, INDEX_FORMATS, KVFormat
from engine.shard import Share
from engine.weights import draft_names, target_names


def device_of(name: str, parallel: Parallel) -> torch.device:
    """The device of this rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise EngineError(f"device is {name}", "use auto, cpu or cuda (ROCm calls its devices cuda too)")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EngineError("device is cuda, but torch finds none", "use device cpu")
    if name == "cuda" and parallel.size > 1:
        if (count := torch.cuda.device_count()) < parallel.size:
            raise EngineError(f"tp is {parallel.size}, torch finds {count} devices", f"use tp={count}, or device cpu")
        torch.cuda.set_device(parallel.rank)
        name = f"cuda:{parallel.rank}"
    return torch.device(name)


def make_drafter(config: EngineConfig, target: Target, share: Share, given: Drafter | None) -> Drafter:
    """`given`, or what config.draft names."""
    if given is not None:
        return given
    if config.draft not in DRAFTERS:
        raise EngineError(f"the draft {config.draft} has no checkpoint to load", "hand LLM a drafter object")
    made = DRAFTERS[config.draft](config, target, share)
    if config.scheduled and getattr(made.weights(), "confidence", None) is None:
        raise EngineError(f"the draft {config.draft} gives no confidences to choose drafts by",
                          "leave confidence_threshold and verify_rows at 0")  # fmt: skip
    return made


def quantisable(target: Target, drafter: Drafter | None) -> dict[str, tuple[nn.Module, dict[str, tuple[str, ...]]]]:
    """What may be quantised, with the checkpoint's names of its parameters."""
    found: dict[str, tuple[nn.Module, dict[str, tuple[str, ...]]]] = {"target": (target, target_names(target.cfg))}
    if drafter and (draft := drafter.weights()):
        found["draft"] = (draft, draft_names(draft.cfg))
    return found


def cache_layers(target: Target, drafter: Drafter | None, quant: QuantMode) -> list[LayerSpec]:
    """Cache of the target's layers, then of the draft's, each in the format that the mode gives it.

    A block-sparse layer that picks for itself keeps index keys beside its keys and values.
    """
    t, d = target.cfg, drafter.kv if drafter else None
    sparse = t.sparse.layers if t.sparse else (False,) * t.num_layers
    formats = quant.kv_formats(sparse=sparse, draft_layers=d.num_layers if d else 0)
    layers = []
    for i, name in enumerate(formats):
        cfg = t if i < t.num_layers or d is None else d
        picks = t.sparse if t.sparse and i < t.num_layers and t.sparse.computes[i] else None
        layers.append(
            LayerSpec(
                format=name,
                kv_heads=cfg.num_kv_heads,
                head_dim=cfg.head_dim,
                index_format=quant.index_format if picks else "",
                index_dim=picks.index_dim if picks else 0,
            )
        )
    if drafter and drafter.kept_size:
        kept = {"index_format": quant.dtype, "index_dim": drafter.kept_size}
        layers[t.num_layers] = replace(layers[t.num_layers], **kept)
    for spec in layers:
        _check_width(FORMATS[spec.format], spec.head_dim, "kv")
        if spec.index_dim:
            _check_width(INDEX_FORMATS[spec.index_format], spec.index_dim, "index")
    return layers


def _check_width(fmt: KVFormat, dim: int, family: str) -> None:
    if dim % fmt.block:
        raise EngineError(f"{family} vectors are {dim} wide, {fmt.name} needs a multiple of {fmt.block}",
                          f"use another format for {family}=")  # fmt: skip


def longest_context(config: EngineConfig, target: Target, drafter: Drafter | None) -> int:
    """Tokens of a sequence at most: what is asked for, which the checkpoints must allow, or all that they allow."""
    longest = target.cfg.max_positions
    if drafter and drafter.kv:
        longest = min(longest, drafter.kv.max_positions)
    if config.max_model_len > longest:
        raise EngineError(f"max_model_len is {config.max_model_len}, the checkpoints allow {longest}",
                          f"use at most {longest}")  # fmt: skip
    return config.max_model_len or longest


def default_pages(config: EngineConfig, per_token: int, max_model_len: int) -> int:
    """Pages for max_batch full-length sequences, as far as memory_limit_mb allows (1 MB is 2**20 bytes)."""
    size = config.page_size
    limit = config.memory_limit_mb * 2**20 // (per_token * size)
    if limit < 1:
        raise EngineError(f"memory_limit_mb is {config.memory_limit_mb}, one KV page takes "
                          f"{per_token * size} bytes", "raise memory_limit_mb")  # fmt: skip
    return min(limit, config.max_batch * -(-max_model_len // size))

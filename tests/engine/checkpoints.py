"""Checkpoints for tests, in the layouts that are published: shards with an index, multimodal nesting, quantised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ModelConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def copy(source: Path, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
         *, shards: int = 1, config: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Path:  # fmt: skip
    """`source` again in `folder`, with its tensors and its config.json changed, in one file or in shards."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "config.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    tensors = load_file(source / SINGLE)
    write(folder, change(tensors) if change else tensors, shards)
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(config(json.loads(path.read_text()))))
    return folder


def write(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    if shards == 1:
        save_file(tensors, folder / SINGLE)
        return
    (folder / SINGLE).unlink(missing_ok=True)
    names, where = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i::shards]
        save_file({n: tensors[n] for n in part}, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def multimodal(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json whose text model is nested, as MiniMax-M3's is."""
    text = {k: v for k, v in config.items() if k != "architectures"}
    return {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
            "tie_word_embeddings": True, "text_config": text}  # fmt: skip


def part_of(name: str, p: Tensor, cfg: ModelConfig, rank: int, size: int) -> Tensor:
    """What rank `rank` of `size` has of the whole parameter `name`: the slow twin of engine.shard's cut.

    Heads and sizes go to the ranks in order; with fewer KV heads than ranks, neighbours have the same one.
    """
    dim, n, kv = cfg.head_dim, cfg.num_heads, cfg.num_kv_heads

    def of_kv(x: Tensor) -> Tensor:
        return torch.cat(
            [h for i, h in enumerate(x.chunk(kv)) if rank * kv < (i + 1) * size and i * size < (rank + 1) * kv]
        )

    if ".attn.qkv." in name:
        q, k, v = p.split([n * dim, kv * dim, kv * dim])
        return torch.cat([q.chunk(size)[rank], of_kv(k), of_kv(v)])
    if ".indexer.qk." in name and cfg.sparse is not None:
        q, k = p.split([kv * cfg.sparse.index_dim, cfg.sparse.index_dim])
        return torch.cat([of_kv(q), k])
    if ".gate_up" in name:
        return torch.cat([half.chunk(size, dim=-2)[rank] for half in p.chunk(2, dim=-2)], dim=-2)
    if ".attn.o.bias" in name:
        return p if rank == 0 else torch.zeros_like(p)
    if ".attn.o." in name or ".down" in name:
        return p.chunk(size, dim=-1)[rank]
    return p

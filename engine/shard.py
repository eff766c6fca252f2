"""A rank's share of a model: the tensor-parallel cut of a loaded target or draft.

    q, k, v, index q, gate, up     rows (a head, or a part of the intermediate size) go to one rank each
    o, down                        columns likewise; each rank's product is a part of the sum over ranks
    experts, shared experts        along their intermediate size, so that every rank has a part of each expert
    index k, norms, router         whole on every rank: all must choose alike
    embedding, head, fc, Markov    whole on every rank: each then has all logits from the same bits, and no exchange
                                   of [rows, vocab] comes before a choice; the price is their memory, once a rank

With fewer KV heads than ranks a KV head lies on several ranks, as in the engines that serve such models: rank r has
head r * kv // size, the one its query heads read. The sums over ranks are taken where a layer adds to the residual
stream, so what a draft captures is the whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.draft import Drafter
from engine.errors import EngineError
from engine.indexer import Indexer
from engine.layers import MLP, Attention
from engine.model import Target
from engine.moe import MoE
from engine.parallel import Parallel

SIZES = (1, 2, 4, 8)


def local_config(cfg: ModelConfig, size: int, what: str = "target") -> ModelConfig:
    """The shape of one rank's share. Raises EngineError where heads or sizes do not divide; `what` is for it."""
    if size == 1:
        return cfg
    if (reason := _misfit(cfg, size)) is not None:
        fits = ", ".join(str(n) for n in SIZES if n == 1 or _misfit(cfg, n) is None)
        raise EngineError(f"the {what} has {reason}, which tp={size} does not divide", f"use tp={fits}")
    kv = max(1, cfg.num_kv_heads // size)
    moe, sparse = cfg.moe, cfg.sparse
    if moe is not None:
        moe = replace(moe, expert_size=moe.expert_size // size, shared_size=moe.shared_size // size)
    if sparse is not None:
        sparse = replace(sparse, index_heads=kv)
    return replace(
        cfg, num_heads=cfg.num_heads // size, num_kv_heads=kv, intermediate_size=cfg.intermediate_size // size,
        moe=moe, sparse=sparse,
    )  # fmt: skip


def shard_target(target: Target, parallel: Parallel) -> None:
    """Keep this rank's share of a whole target, in place; its cfg becomes the share's."""
    cfg = local_config(target.cfg, parallel.size)
    _shard(target, target.cfg, parallel)
    target.cfg = cfg


def shard_drafter(drafter: Drafter, parallel: Parallel) -> None:
    """The same for a draft's decoder layers; a draft without layers of its own stays as it is."""
    draft = drafter.weights()
    if parallel.size > 1 and draft is not None and drafter.kv is not None:
        cfg = local_config(drafter.kv, parallel.size, "draft")
        _shard(draft, drafter.kv, parallel)
        drafter.kv = cfg


def sum_over_ranks(module: nn.Module, parallel: Parallel) -> None:
    """Make every decoder layer of `module` add whole sums. To be called when its linear layers are the final ones.

    A hook and not a line of the layers' own, so that it reaches the layer of any draft that has an attention with `o`
    and an `mlp`, and training never sees it.
    """
    if parallel.size == 1:
        return
    for layer in module.modules():
        attention = getattr(layer, "attn", None)
        if isinstance(attention, Attention):
            for partial in (attention.o, layer.get_submodule("mlp")):
                partial.register_forward_hook(_summed(parallel))


class RowParallel(nn.Linear):
    """The columns of a linear layer that one rank has. Its outputs are parts of a sum.

    row_amax: float32 [out, 1], the largest magnitude of each whole row: a format with one scale a row is then the same
    at every tp.
    """

    row_amax: Tensor

    def __init__(self, whole: nn.Linear, part: slice, *, first: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = part.stop - part.start, whole.out_features
        self.weight = nn.Parameter(whole.weight[:, part].clone(), requires_grad=False)
        self.bias = whole.bias if first else None  # added once
        self.register_buffer("row_amax", whole.weight.abs().amax(1, keepdim=True).float(), persistent=False)


def _summed(parallel: Parallel) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda _module, _inputs, out: parallel.sum(out)


def _misfit(cfg: ModelConfig, size: int) -> str | None:
    """What of a model cannot be cut into `size` parts, in words; None where all can."""
    kv = cfg.num_kv_heads
    if kv % size and size % kv:
        return f"{kv} KV heads"
    dense = cfg.moe is None or not all(cfg.moe.layers)
    sizes = {"attention heads": cfg.num_heads, "as its intermediate size": cfg.intermediate_size if dense else 0}
    if cfg.moe is not None:
        sizes |= {"as its experts' size": cfg.moe.expert_size, "as its shared experts' size": cfg.moe.shared_size}
    return next((f"{n} {name}" for name, n in sizes.items() if n % size), None)


def _shard(module: nn.Module, cfg: ModelConfig, parallel: Parallel) -> None:
    if parallel.size == 1:
        return
    heads = _span(cfg.num_heads, parallel)
    first = parallel.rank * cfg.num_kv_heads // parallel.size
    kv = range(first, first + max(1, cfg.num_kv_heads // parallel.size))
    for child in list(module.modules()):
        if isinstance(child, Attention):
            _attention(child, heads, kv, parallel)
        elif isinstance(child, Indexer):
            rows = _rows([(kv, child.dim), (range(child.heads, child.heads + 1), child.dim)])
            child.qk, child.heads = _columns_of(child.qk, rows), len(kv)
        elif isinstance(child, MLP):
            part = _span(child.down.in_features, parallel)
            child.gate_up = _columns_of(child.gate_up, _rows([(part, 1), (_after(part, child.down.in_features), 1)]))
            child.down = _row_parallel(child.down, part, parallel)
        elif isinstance(child, MoE):
            assert isinstance(child.gate_up, Tensor) and isinstance(child.down, Tensor)
            size = child.down.shape[2]
            part = _span(size, parallel)
            rows = _rows([(part, 1), (_after(part, size), 1)])
            child.register_buffer("down_amax", child.down.abs().amax(2, keepdim=True).float(), persistent=False)
            child.gate_up = nn.Parameter(child.gate_up[:, rows].contiguous(), requires_grad=False)
            child.down = nn.Parameter(child.down[..., part.start : part.stop].contiguous(), requires_grad=False)


def _attention(attention: Attention, heads: range, kv: range, parallel: Parallel) -> None:
    dim, q = attention.head_dim, attention.heads
    keys = _after(kv, q)
    rows = _rows([(heads, dim), (keys, dim), (_after(keys, attention.kv_heads), dim)])
    attention.qkv = _columns_of(attention.qkv, rows)
    attention.o = _row_parallel(attention.o, range(heads.start * dim, heads.stop * dim), parallel)
    attention.heads, attention.kv_heads = len(heads), len(kv)


def _span(count: int, parallel: Parallel) -> range:
    """This rank's part of `count` things."""
    each = count // parallel.size
    return range(parallel.rank * each, (parallel.rank + 1) * each)


def _after(part: range, offset: int) -> range:
    return range(part.start + offset, part.stop + offset)


def _rows(parts: list[tuple[range, int]]) -> Tensor:
    """int64: the rows of some things of so many rows each, in order."""
    return torch.cat([torch.arange(part.start * each, part.stop * each) for part, each in parts])


def _columns_of(whole: nn.Linear, rows: Tensor) -> nn.Linear:
    """A column-parallel layer: the outputs `rows` of a linear layer."""
    part = nn.Linear(whole.in_features, len(rows), bias=whole.bias is not None, device="meta")
    rows = rows.to(whole.weight.device)
    part.weight = nn.Parameter(whole.weight[rows], requires_grad=False)
    if whole.bias is not None:
        part.bias = nn.Parameter(whole.bias[rows], requires_grad=False)
    return part


def _row_parallel(whole: nn.Linear, part: range, parallel: Parallel) -> RowParallel:
    return RowParallel(whole, slice(part.start, part.stop), first=parallel.rank == 0)

"""A rank's share of a model: the tensor-parallel cut, taken while a target or a draft is loaded.

    q, k, v, index q, gate, up     rows (a head, or a part of the intermediate size) go to one rank each
    o, down                        columns likewise; each rank's product is a part of the sum over ranks
    experts, shared experts        along their intermediate size, so that every rank has a part of each expert
    index k, norms, router         whole on every rank: all must choose alike
    embedding, head, fc, Markov    whole on every rank: each then has all logits from the same bits, and no exchange
                                   of [rows, vocab] comes before a choice; the price is their memory, once a rank

With fewer KV heads than ranks a KV head lies on several ranks, as in the engines that serve such models: rank r has
head r * kv // size, the one its query heads read, and of a block-sparse layer the index head that picks for it. The
sums over ranks are taken where a layer adds to the residual stream, so what a draft captures is the whole stream.

A module is made in the shape of `Share.local` and takes of each tensor in the files what `Share.cut` says, so that a
rank never holds the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.layers import Attention
from engine.parallel import Parallel
from engine.tensor_files import Cut

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rank `rank` of `size`. row_amax: what is cut by columns also keeps the largest magnitude of its whole rows, for
    formats with one scale a row, which are then the same at every size; the price is that these matrices are read
    whole, one at a time."""

    rank: int = 0
    size: int = 1
    row_amax: bool = False

    def local(self, cfg: ModelConfig, what: str = "target") -> ModelConfig:
        """The shape of this share. Raises EngineError as local_config."""
        return local_config(cfg, self.size, what)

    def cut(self, cfg: ModelConfig, name: str, part: int) -> Cut | None:
        """What this share takes of part `part` of the parameter `name` of a whole model of shape `cfg`; None: all.

        Parts are the tensors that a parameter is made of, in the order of tensor_names: q, k, v; gate, up; and so on.
        """
        if self.size == 1:
            return None
        first, shared = self.rank * cfg.num_kv_heads // self.size, cfg.moe.shared_size if cfg.moe else 0
        kv = range(first, first + max(1, cfg.num_kv_heads // self.size))
        q, keys = (self._span(cfg.num_heads), cfg.num_heads), (kv, cfg.num_kv_heads)
        dense, beside, expert = ((self._span(n), n) for n in (cfg.intermediate_size, shared, _expert_size(cfg)))
        places = {  # name -> dim, which of how many things, places of each
            "attn.qkv.weight": (0, keys if part else q, cfg.head_dim),
            "attn.qkv.bias": (0, keys if part else q, cfg.head_dim),
            "attn.o.weight": (1, q, cfg.head_dim),
            "mlp.gate_up.weight": (0, dense, 1),
            "mlp.down.weight": (1, dense, 1),
            "mlp.shared.gate_up.weight": (0, beside, 1),
            "mlp.shared.down.weight": (1, beside, 1),
            "mlp.gate_up": (0, expert, 1),
            "mlp.down": (1, expert, 1),
        }
        if cfg.sparse is not None and not part:
            places["indexer.qk.weight"] = (0, (kv, cfg.sparse.index_heads), cfg.sparse.index_dim)
        found = places.get(re.sub(r"^(layers\.\d+|midlayer)\.", "", name))
        if found is None:
            return None
        dim, (things, count), each = found
        return Cut(dim=dim, start=things.start * each, stop=things.stop * each, whole=count * each)

    def _span(self, count: int) -> range:
        """This rank's part of `count` things."""
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)


WHOLE = Share()


def _expert_size(cfg: ModelConfig) -> int:
    return cfg.moe.expert_size if cfg.moe else 0


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

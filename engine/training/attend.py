"""Attention over whole rows for training: causal, block-sparse where asked, and the index's own loss.

Top-k passes no gradient, so the index learns from an auxiliary loss: the share of the layer's own (full,
causal) attention that falls on each block, against the softmax of the block scores. The query's own block
is left out of both, since it is seen anyway, and each query counts by its attention outside it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import SparseConfig
from engine.indexer import block_scores, choose_blocks
from engine.layers import Index


class CausalAttend:
    """`layers.Attend` over rows of one length, K, V and index keys optionally through the cache's format.

    sparse: of the target, None where no layer has it. pick: attend to the picked blocks alone. queries:
    int64 positions at which the index loss is taken; its terms come together in `index_losses`.
    """

    def __init__(
        self,
        length: int,
        *,
        quant: Callable[[Tensor], Tensor] | None = None,
        sparse: SparseConfig | None = None,
        pick: bool = False,
        queries: Tensor | None = None,
    ) -> None:
        self.length, self.quant, self.sparse, self.pick, self.queries = length, quant, sparse, pick, queries
        self.index_losses: list[Tensor] = []
        self.later = torch.ones(length, length, dtype=torch.bool).triu_(1)  # keys after the query
        self.seen: Tensor | None = None  # of the last layer that picked

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        if self.quant is not None:
            k, v = self.quant(k), self.quant(v)
            index = index and Index(index.q, self.quant(index.k))
        q, k, v = (x.view(-1, self.length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        group = q.shape[1] // k.shape[1]
        if index is not None and self.queries is not None:
            self.index_losses.append(self._index_loss(q.detach(), k.detach(), index))
        mask = None
        if self.sparse is not None and self.pick and self.sparse.layers[layer]:
            mask = self._picked(index).repeat_interleave(group, dim=1)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    def _scores(self, index: Index, queries: Tensor) -> Tensor:
        """[rows, index_heads, queries, blocks] of the queries at these positions; keys after a query are hidden."""
        cfg = self._sparse()
        iq = index.q.view(-1, self.length, cfg.index_heads, cfg.index_dim)[:, queries].transpose(1, 2)
        ik = index.k.view(-1, 1, self.length, cfg.index_dim)
        scores = (iq @ ik.transpose(2, 3)) * cfg.index_dim**-0.5
        return block_scores(scores.masked_fill(self.later[queries], -torch.inf), cfg.block_size)

    @torch.no_grad()
    def _picked(self, index: Index | None) -> Tensor:
        """bool [rows, kv_heads, length, length]: which key each query sees."""
        cfg = self._sparse()
        if index is not None:
            queries = torch.arange(self.length)
            seen = choose_blocks(self._scores(index, queries), queries // cfg.block_size, cfg)
            self.seen = seen.repeat_interleave(cfg.block_size, dim=-1)[..., : self.length] & ~self.later
        if self.seen is None:
            raise RuntimeError("a layer shares an index, and no layer before it has one")
        return self.seen

    def _index_loss(self, q: Tensor, k: Tensor, index: Index) -> Tensor:
        cfg, queries = self._sparse(), self.queries
        assert queries is not None
        rows, kv_heads = k.shape[:2]
        grouped = q[:, :, queries].view(rows, kv_heads, -1, len(queries), q.shape[-1])
        logits = (grouped @ k.unsqueeze(2).transpose(3, 4)) * q.shape[-1] ** -0.5
        mass = logits.masked_fill(self.later[queries], -torch.inf).softmax(-1).mean(2)  # over the group's heads
        mass = F.pad(mass, (0, -self.length % cfg.block_size)).unflatten(-1, (-1, cfg.block_size)).sum(-1)
        scores = self._scores(index, queries)
        outside = torch.arange(scores.shape[-1]) < (queries // cfg.block_size)[:, None]  # [queries, blocks]
        mass = mass * outside
        weight = mass.sum(-1)
        target = mass / weight.clamp(min=1e-9).unsqueeze(-1)
        log_q = scores.masked_fill(~outside, -1e9).log_softmax(-1)
        divergence = (torch.special.xlogy(target, target) - target * log_q).sum(-1)
        return (weight * divergence).sum() / weight.sum().clamp(min=1e-9)

    def _sparse(self) -> SparseConfig:
        if self.sparse is None:
            raise RuntimeError("the target has no block-sparse attention")
        return self.sparse

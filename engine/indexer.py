"""The index of block-sparse attention (MiniMax-M3's MSA): which blocks of keys a query sees.

For query position t and KV head h: the score of block b is the largest iq_h . ik_s over its keys s <= t;
the first `init_blocks` and, over those, the last `local_blocks` are forced; the `topk` best of the
t // block_size + 1 visible blocks are seen, ties going to the lower block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import ModelConfig, SparseConfig
from engine.layers import Index, RMSNorm, Rope

FORCED_INIT, FORCED_LOCAL, NO_SCORE = 1e30, 1e29, -1e30
FEW_BLOCKS = 16  # up to which a sort is the faster way


class Indexer(nn.Module):
    """Projections of one layer's index: a query vector for each KV head, one key vector shared by all."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        if cfg.sparse is None:
            raise ValueError("the configuration has no block-sparse attention")
        self.heads, self.dim = cfg.sparse.index_heads, cfg.sparse.index_dim
        self.qk = nn.Linear(cfg.hidden_size, (self.heads + 1) * self.dim, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.dim, cfg), RMSNorm(self.dim, cfg)

    def forward(self, x: Tensor, rope: Rope, table: tuple[Tensor, Tensor]) -> Index:
        """Index of rows x [rows, hidden]: normed, then turned by the same partial RoPE as q and k."""
        y = self.qk(x).view(x.shape[0], self.heads + 1, self.dim)
        q, k = y.split((self.heads, 1), dim=1)
        return Index(rope(self.q_norm(q), table), rope(self.k_norm(k), table).squeeze(1))


def block_scores(scores: Tensor, block_size: int) -> Tensor:
    """Largest score of each block: [..., places] -> [..., blocks]; hidden places hold -inf. NaN becomes NO_SCORE."""
    scores = scores.masked_fill(scores.isnan(), NO_SCORE)
    short = -scores.shape[-1] % block_size
    if short:
        scores = F.pad(scores, (0, short), value=-torch.inf)
    return scores.unflatten(-1, (-1, block_size)).amax(-1)


def choose_blocks(scores: Tensor, last: Tensor, cfg: SparseConfig) -> Tensor:
    """bool [..., blocks]: the blocks seen. scores: float [..., blocks], -inf for blocks wholly hidden.

    last: int64, broadcastable to [...]: the block that holds the query's own position.
    """
    blocks = torch.arange(scores.shape[-1], device=scores.device)
    last = last.unsqueeze(-1)
    scores = scores.masked_fill(blocks > last, -torch.inf)
    if cfg.init_blocks:
        scores = scores.masked_fill((blocks < cfg.init_blocks) & (blocks <= last), FORCED_INIT)
    scores = scores.masked_fill((blocks > last - cfg.local_blocks) & (blocks <= last), FORCED_LOCAL)
    return best_blocks(scores, cfg.topk) & (blocks <= last)


def best_blocks(scores: Tensor, count: int) -> Tensor:
    """bool [..., blocks]: the `count` best of scores [..., blocks], equal ones from the lowest id on. No NaN.

    By the worst score that is still among them, which topk gives whatever it does with equal ones: what is above it is
    in, and of what equals it the first. From some blocks on that takes a CPU less time than sorting all.
    """
    if count >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    if scores.shape[-1] <= FEW_BLOCKS:
        return best_blocks_by_sort(scores, count)
    worst = scores.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > worst, scores == worst
    room = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


def best_blocks_by_sort(scores: Tensor, count: int) -> Tensor:
    """Plain twin of best_blocks: a stable sort of all, which keeps equal ones in the order of their ids."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)


def reference_blocks(iq: Tensor, ik: Tensor, position: int, cfg: SparseConfig) -> list[list[int]]:
    """Slow twin, one query: for each head of iq [heads, dim] the sorted ids of the blocks seen. ik: [places, dim]."""
    out = []
    count = position // cfg.block_size + 1
    for head in iq.double():
        score: list[float] = []
        for b in range(count):
            keys = ik[b * cfg.block_size : min((b + 1) * cfg.block_size, position + 1)].double()
            score.append(max(NO_SCORE if s != s else s for s in (keys @ head).tolist()))
        for b in range(min(cfg.init_blocks, count)):
            score[b] = FORCED_INIT
        for b in range(max(0, count - cfg.local_blocks), count):
            score[b] = FORCED_LOCAL
        out.append(sorted(sorted(range(count), key=lambda b: (-score[b], b))[: cfg.topk]))
    return out

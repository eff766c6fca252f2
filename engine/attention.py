"""Attention of the runner: over KV pages for the target, over pages plus a block for the draft.

Both read keys and values back from the cache, also those of the same tick: a row then sees the same
stored numbers whether a token came by prefill, plain decode or verification.

Masked places weigh exactly 0, which hides any finite number there but not a NaN: a cache that once
stored a NaN is spoilt, and whoever sees NaN logits should stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from engine import kernels
from engine.batch import Batch
from engine.config import SparseConfig
from engine.indexer import block_scores, choose_blocks, reference_blocks
from engine.kv_cache import KVCache
from engine.layers import Index


class PagedAttend:
    """`layers.Attend` of one target pass: stores the batch's K and V, then attends over the pages.

    Row at position p sees the keys at positions 0..p of its sequence; in a block-sparse layer, for each KV
    head those of the blocks that its index picks. Padding rows give zeros. Mask and pages are worked out
    once here, for all layers. Layer i of the model is cache layer layer_offset + i. The cache's kernels do this
    straight from the pages, where they serve a layer's formats. longest: a bound of all contexts, or None to look
    (which waits for a GPU).
    """

    def __init__(
        self, batch: Batch, cache: KVCache, layer_offset: int = 0, sparse: SparseConfig | None = None,
        longest: int | None = None,
    ) -> None:  # fmt: skip
        n, width = batch.positions.shape
        if longest is None:
            longest = int(batch.lengths.max()) if n else 0
        self.cache, self.kernels, self.layer_offset, self.width = cache, cache.kernels, layer_offset, width
        # Where all blocks fit, sparse is dense, and the index is stored but not asked.
        self.sparse, self.longest = sparse, longest
        self.picks = picks_blocks(sparse, longest)
        self.positions, self.slots = batch.positions, batch.slots.flatten()
        self.page_table = batch.page_table[:, : -(-longest // cache.page_size)].contiguous()
        self.chosen: Tensor | None = None  # additive mask of the last layer that picked
        self.blocks: Tensor | None = None  # block ids of the last layer that picked, where a kernel did
        self.bias: Tensor | None = None

    @cached_property
    def hidden(self) -> Tensor:
        """bool [n, width, length]: places after a row's own."""
        places = torch.arange(self.page_table.shape[1] * self.cache.page_size, device=self.positions.device)
        return places > self.positions.unsqueeze(-1)

    @cached_property
    def padding(self) -> Tensor | None:
        """bool [rows, 1], None where there is none."""
        padding = self.positions.flatten() < 0
        return padding.unsqueeze(1) if bool(padding.any()) else None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        """q [n * width, heads, head_dim], k and v [n * width, kv_heads, head_dim] -> [n * width, heads * head_dim]."""
        at = self.layer_offset + layer
        self.cache.store(at, self.slots, k, v)
        if index is not None:
            self.cache.store_index(at, self.slots, index.k)
        cfg = self.sparse if self.picks and self.sparse is not None and self.sparse.layers[layer] else None
        if self.kernels.takes("paged_attention", self._able(at)):
            return self._by_kernels(layer, q, index, cfg)
        keys, values = self.cache.gather(at, self.page_table)
        group = q.shape[1] // k.shape[1]
        if self.bias is None:
            self.bias = _grouped_bias(self.hidden, group, q.dtype)
        bias = self.bias if cfg is None else self._picked(layer, index, cfg, group, q.dtype)
        out = _grouped_sdpa(q, keys, values, bias, self.width)
        return out if self.padding is None else out.masked_fill_(self.padding, 0.0)

    def _able(self, at: int) -> bool:
        """Whether there are kernels for a layer of the cache. Where one lacks them for its index, none picks by them:
        a layer that shares a pick must find it in the form that it reads."""
        index = {spec.index_format for spec in self.cache.layers if spec.index_dim} if self.picks else set()
        return self.cache.layers[at].format in kernels.FORMATS and index <= set(kernels.INDEX_FORMATS)

    def _by_kernels(self, layer: int, q: Tensor, index: Index | None, cfg: SparseConfig | None) -> Tensor:
        """The rest of __call__, by kernels over the pages. cfg: of a layer that sees picked blocks alone."""
        at = self.layer_offset + layer
        spec, pages = self.cache.layers[at], self.cache.pages(at)
        if cfg is not None and index is not None and self.kernels.takes("index_topk"):
            self.blocks = kernels.index_topk(
                index.q, self.cache.index_pages(at), spec.index_format, self.page_table, self.positions,
                block_size=cfg.block_size, topk=cfg.topk, init_blocks=cfg.init_blocks,
                local_blocks=cfg.local_blocks, max_length=self.longest,
            )  # fmt: skip
        if cfg is not None and self.blocks is None:
            raise RuntimeError(f"layer {layer} shares an index, and no layer before it has one")
        return kernels.paged_attention(
            q, pages, spec.format, self.page_table, self.positions, max_length=self.longest,
            blocks=None if cfg is None else self.blocks, block_size=0 if cfg is None else cfg.block_size,
        )  # fmt: skip

    def _picked(self, layer: int, index: Index | None, cfg: SparseConfig, group: int, dtype: torch.dtype) -> Tensor:
        """[n, kv_heads, group * width, length]: -inf where a key is hidden or its block is not picked.

        A layer without an index of its own takes the pick of the last one that had it.
        """
        if index is not None:
            self.kernels.takes("index_topk", False)
            n, width = self.positions.shape
            keys = self.cache.gather_index(self.layer_offset + layer, self.page_table)
            q = index.q.float().view(n, width * cfg.index_heads, cfg.index_dim)
            scores = (q @ keys.transpose(1, 2)).view(n, width, cfg.index_heads, -1)
            scores = block_scores(scores.masked_fill(self.hidden.unsqueeze(2), -torch.inf), cfg.block_size)
            last = self.positions.clamp(min=0).unsqueeze(-1) // cfg.block_size
            seen = choose_blocks(scores, last, cfg).repeat_interleave(cfg.block_size, dim=-1)
            hidden = self.hidden.unsqueeze(2) | ~seen[..., : self.hidden.shape[-1]]
            # a padding row sees nothing, and -inf throughout would make it NaN
            hidden = hidden.masked_fill((self.positions < 0)[..., None, None], False)
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self.chosen = bias.transpose(1, 2).repeat(1, 1, group, 1)
        if self.chosen is None:
            raise RuntimeError(f"layer {layer} shares an index, and no layer before it has one")
        return self.chosen


def picks_blocks(sparse: SparseConfig | None, longest: int) -> bool:
    """Whether contexts of at most `longest` tokens have more blocks than a query sees, so that the index is asked."""
    return sparse is not None and longest > sparse.topk * sparse.block_size


class BlockAttend:
    """`layers.Attend` of one draft pass: n sequences, each with a block of T rows. Stores nothing.

    Each row sees the context at positions 0..context_length-1, from the pages, and all T rows of its
    own block, later ones too; those are used as given, not through the cache's format.

    page_table: int64 [n, pages], padded with 0; context_lengths: int64 [n], the anchor's position. window: a row at
    position p sees only the context from p - window + 1 on; 0: all of it.
    """

    def __init__(
        self, cache: KVCache, layer_offset: int, page_table: Tensor, context_lengths: Tensor, window: int = 0
    ) -> None:
        self.longest = int(context_lengths.max()) if len(context_lengths) else 0
        pages = -(-self.longest // cache.page_size)
        self.cache, self.layer_offset, self.n = cache, layer_offset, page_table.shape[0]
        self.page_table = page_table[:, :pages].contiguous()
        self.lengths, self.window = context_lengths, window
        self.bias: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        """q [n * T, heads, head_dim], k and v [n * T, kv_heads, head_dim] -> [n * T, heads * head_dim]."""
        at = self.layer_offset + layer
        fmt = self.cache.layers[at].format
        if self.cache.kernels.takes("block_attention", fmt in kernels.FORMATS):
            return kernels.block_attention(
                q, k, v, self.cache.pages(at), fmt, self.page_table, self.lengths, max_length=self.longest,
                window=self.window,
            )  # fmt: skip
        width = q.shape[0] // max(self.n, 1)
        keys, values = self.cache.gather(at, self.page_table)
        keys = torch.cat((keys, k.view(self.n, width, *k.shape[1:])), dim=1)
        values = torch.cat((values, v.view(self.n, width, *v.shape[1:])), dim=1)
        if self.bias is None:
            self.bias = _grouped_bias(F.pad(self._hidden(width), (0, width)), q.shape[1] // k.shape[1], q.dtype)
        return _grouped_sdpa(q, keys, values, self.bias, width)

    def _hidden(self, width: int) -> Tensor:
        """bool [n, width, length]: context that a row does not see."""
        places = torch.arange(self.page_table.shape[1] * self.cache.page_size, device=self.lengths.device)
        hidden = (places >= self.lengths.unsqueeze(-1)).unsqueeze(1).expand(-1, width, -1)
        if not self.window:
            return hidden
        rows = self.lengths.unsqueeze(-1) + torch.arange(width, device=self.lengths.device)
        return hidden | (places <= rows.unsqueeze(-1) - self.window)


class ChainAttend:
    """`layers.Attend` of drafting one token after another: n sequences, one row of each in every pass.

    A row sees the context keys that are not hidden and the rows of all passes so far, its own included; those
    are kept here as given and go to no cache. Serves training too, so it works on whatever the caller gathered.

    keys, values: [n, length, kv_heads, head_dim]; hidden: bool [n, length].
    """

    def __init__(self, keys: Tensor, values: Tensor, hidden: Tensor) -> None:
        self.context = (keys.permute(0, 2, 3, 1), values.transpose(1, 2))  # [n, kv_heads, head_dim, length], ...
        bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
        self.bias = bias[:, None, None]
        self.own: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        """q [n, heads, head_dim], k and v [n, kv_heads, head_dim] -> [n, heads * head_dim]."""
        n, kv_heads, head_dim = k.shape
        self.own.append((k, v))
        own_k, own_v = (torch.stack(x, dim=2) for x in zip(*self.own, strict=True))
        q = q.view(n, kv_heads, -1, head_dim) * head_dim**-0.5
        keys, values = self.context
        scores = torch.cat(((q @ keys).float() + self.bias, (q @ own_k.mT).float()), dim=-1)
        weights = scores.softmax(-1).to(v.dtype)
        length = keys.shape[-1]
        return (weights[..., :length] @ values + weights[..., length:] @ own_v).reshape(n, -1)


class PagedChain:
    """ChainAttend over a context in the cache's pages, of places 1..length-1: by a kernel, or by ChainAttend itself.

    page_table: int64 [n, pages], padded with 0; lengths: int64 [n], the anchors' positions; longest: of them.
    """

    def __init__(self, cache: KVCache, layer: int, page_table: Tensor, lengths: Tensor, longest: int) -> None:
        pages = -(-longest // cache.page_size)
        self.cache, self.layer, self.longest = cache, layer, longest
        self.page_table, self.lengths = page_table[:, :pages].contiguous(), lengths
        self.fused = cache.kernels.takes("chain_attention", cache.layers[layer].format in kernels.FORMATS)
        self.own: list[tuple[Tensor, Tensor]] = []
        self.twin = None if self.fused else self._twin()

    def _twin(self) -> ChainAttend:
        keys, values = self.cache.gather(self.layer, self.page_table)
        places = torch.arange(keys.shape[1], device=self.lengths.device)
        return ChainAttend(keys, values, hidden=(places == 0) | (places >= self.lengths.unsqueeze(1)))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        """As ChainAttend's."""
        if self.twin is not None:
            return self.twin(layer, q, k, v, index)
        self.own.append((k, v))
        own_k, own_v = (torch.stack(x, dim=1).flatten(0, 1) for x in zip(*self.own, strict=True))
        return kernels.block_attention(
            q, own_k, own_v, self.cache.pages(self.layer), self.cache.layers[self.layer].format, self.page_table,
            self.lengths, max_length=self.longest, least=1,
        )  # fmt: skip


def store_context(cache: KVCache, layer_offset: int, slots: Tensor, kv: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write the draft's context K and V of committed tokens, each [rows, kv_heads, head_dim], one pair a draft layer.

    slots: int64 [rows], -1 for rows to leave out, such as those of rejected drafts.
    """
    for i, (k, v) in enumerate(kv):
        cache.store(layer_offset + i, slots, k, v)


def _grouped_bias(hidden: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """[n, 1, group * width, length]: -inf where hidden bool [n, width, length], once for each head of a group."""
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return bias.repeat(1, group, 1).unsqueeze(1)


def _grouped_sdpa(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, width: int) -> Tensor:
    """Softmax attention of q [n * width, heads, head_dim] over keys, values [n, length, kv_heads, head_dim].

    Query heads that share a KV head become rows of one head: with 4 to share, n=64 and width 8 a CPU
    needs 2.0 ms instead of the 3.7 ms of enable_gqa.
    """
    n, _, kv_heads, head_dim = keys.shape
    q = q.view(n, width, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)  # [n, kv_heads, group, width, head_dim]
    group = q.shape[2]
    q = q.reshape(n, kv_heads, group * width, head_dim)
    out = F.scaled_dot_product_attention(
        q, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias, scale=head_dim**-0.5
    )
    return out.view(n, kv_heads, group, width, head_dim).permute(0, 3, 1, 2, 4).reshape(n * width, -1)


def reference_attention(
    batch: Batch,
    cache: KVCache,
    layer: int,
    q: Tensor,
    index_q: Tensor | None = None,
    sparse: SparseConfig | None = None,
) -> Tensor:
    """Slow twin of PagedAttend after its store: one row at a time, no padding, float64. `layer` is the cache's.

    index_q [n * width, index_heads, index_dim] and sparse: of a layer that picks its blocks.
    """
    n, width = batch.positions.shape
    out = torch.zeros(n * width, q[0].numel(), dtype=q.dtype, device=q.device)
    for i in range(n):
        k, v = cache.gather(layer, batch.page_table[i : i + 1])
        ik = cache.gather_index(layer, batch.page_table[i : i + 1])[0] if index_q is not None else None
        for j in range(width):
            p, row = int(batch.positions[i, j]), i * width + j
            if p < 0:
                continue
            if index_q is None or ik is None or sparse is None:
                out[row] = _attend_one(q[row], k[0, : p + 1], v[0, : p + 1])
                continue
            parts = []
            group = q.shape[1] // k.shape[2]
            for head, blocks in enumerate(reference_blocks(index_q[row], ik, p, sparse)):
                places = [s for s in range(p + 1) if s // sparse.block_size in blocks]
                kv = slice(head, head + 1)
                parts.append(_attend_one(q[row, head * group : (head + 1) * group], k[0, places, kv], v[0, places, kv]))
            out[row] = torch.cat(parts)
    return out


def reference_block_attention(
    cache: KVCache, layer: int, page_table: Tensor, context_lengths: Tensor, q: Tensor, k: Tensor, v: Tensor,
    window: int = 0,
) -> Tensor:  # fmt: skip
    """Slow twin of BlockAttend: one row at a time, no padding, float64. `layer` is the cache's."""
    n = page_table.shape[0]
    width = q.shape[0] // n
    out = torch.zeros(n * width, q[0].numel(), dtype=q.dtype, device=q.device)
    for i, length in enumerate(context_lengths.tolist()):
        context_k, context_v = cache.gather(layer, page_table[i : i + 1])
        rows = slice(i * width, (i + 1) * width)
        for j, row in enumerate(range(rows.start, rows.stop)):
            seen = slice(max(0, length + j - window + 1) if window else 0, length)
            keys, values = torch.cat((context_k[0, seen], k[rows])), torch.cat((context_v[0, seen], v[rows]))
            out[row] = _attend_one(q[row], keys, values)
    return out


def _attend_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[heads * head_dim] of one query [heads, head_dim] over k, v [length, kv_heads, head_dim]."""
    group = q.shape[0] // k.shape[1]
    out = []
    for head, query in enumerate(q.double()):
        scores = k[:, head // group].double() @ query * query.shape[0] ** -0.5
        out.append(scores.softmax(0) @ v[:, head // group].double())
    return torch.cat(out).to(q.dtype)

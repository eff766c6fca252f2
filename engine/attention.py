"""Attention of the runner: over KV pages for the target, over pages plus a block for the draft.

Both read keys and values back from the cache, also those of the same tick: a row then sees the same
stored numbers whether a token came by prefill, plain decode or verification.

Masked places weigh exactly 0, which hides any finite number there but not a NaN: a cache that once
stored a NaN is spoilt, and whoever sees NaN logits should stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch
from engine.kv_cache import KVCache


class PagedAttend:
    """`layers.Attend` of one target pass: stores the batch's K and V, then attends over the pages.

    Row at position p sees the keys at positions 0..p of its sequence. Padding rows give zeros. Mask and
    pages are worked out once here, for all layers. Layer i of the model is cache layer layer_offset + i.
    """

    def __init__(self, batch: Batch, cache: KVCache, layer_offset: int = 0) -> None:
        n, width = batch.positions.shape
        pages = -(-int(batch.lengths.max()) // cache.page_size) if n else 0
        self.cache, self.layer_offset, self.width = cache, layer_offset, width
        self.page_table = batch.page_table[:, :pages].contiguous()
        self.slots = batch.slots.flatten()
        places = torch.arange(pages * cache.page_size, device=batch.positions.device)
        self.hidden = places > batch.positions.unsqueeze(-1)  # bool [n, width, length]
        padding = batch.positions.flatten() < 0
        self.padding = padding.unsqueeze(1) if bool(padding.any()) else None
        self.bias: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n * width, heads, head_dim], k and v [n * width, kv_heads, head_dim] -> [n * width, heads * head_dim]."""
        self.cache.store(self.layer_offset + layer, self.slots, k, v)
        keys, values = self.cache.gather(self.layer_offset + layer, self.page_table)
        if self.bias is None:
            self.bias = _grouped_bias(self.hidden, q.shape[1] // k.shape[1], q.dtype)
        out = _grouped_sdpa(q, keys, values, self.bias, self.width)
        return out if self.padding is None else out.masked_fill_(self.padding, 0.0)


class BlockAttend:
    """`layers.Attend` of one draft pass: n sequences, each with a block of T rows. Stores nothing.

    Each row sees the context at positions 0..context_length-1, from the pages, and all T rows of its
    own block, later ones too; those are used as given, not through the cache's format.

    page_table: int64 [n, pages], padded with 0; context_lengths: int64 [n], the anchor's position.
    """

    def __init__(self, cache: KVCache, layer_offset: int, page_table: Tensor, context_lengths: Tensor) -> None:
        pages = -(-int(context_lengths.max()) // cache.page_size) if len(context_lengths) else 0
        self.cache, self.layer_offset, self.n = cache, layer_offset, page_table.shape[0]
        self.page_table = page_table[:, :pages].contiguous()
        places = torch.arange(pages * cache.page_size, device=page_table.device)
        self.hidden = places >= context_lengths.unsqueeze(-1)  # bool [n, length]
        self.bias: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n * T, heads, head_dim], k and v [n * T, kv_heads, head_dim] -> [n * T, heads * head_dim]."""
        width = q.shape[0] // max(self.n, 1)
        keys, values = self.cache.gather(self.layer_offset + layer, self.page_table)
        keys = torch.cat((keys, k.view(self.n, width, *k.shape[1:])), dim=1)
        values = torch.cat((values, v.view(self.n, width, *v.shape[1:])), dim=1)
        if self.bias is None:
            hidden = F.pad(self.hidden, (0, width)).unsqueeze(1).expand(-1, width, -1)
            self.bias = _grouped_bias(hidden, q.shape[1] // k.shape[1], q.dtype)
        return _grouped_sdpa(q, keys, values, self.bias, width)


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


def reference_attention(batch: Batch, cache: KVCache, layer: int, q: Tensor) -> Tensor:
    """Slow twin of PagedAttend after its store: one row at a time, no padding, float64. `layer` is the cache's."""
    n, width = batch.positions.shape
    out = torch.zeros(n * width, q[0].numel(), dtype=q.dtype, device=q.device)
    for i in range(n):
        k, v = cache.gather(layer, batch.page_table[i : i + 1])
        for j in range(width):
            p = int(batch.positions[i, j])
            if p >= 0:
                out[i * width + j] = _attend_one(q[i * width + j], k[0, : p + 1], v[0, : p + 1])
    return out


def reference_block_attention(
    cache: KVCache, layer: int, page_table: Tensor, context_lengths: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Slow twin of BlockAttend: one row at a time, no padding, float64. `layer` is the cache's."""
    n = page_table.shape[0]
    width = q.shape[0] // n
    out = torch.zeros(n * width, q[0].numel(), dtype=q.dtype, device=q.device)
    for i, length in enumerate(context_lengths.tolist()):
        context_k, context_v = cache.gather(layer, page_table[i : i + 1])
        rows = slice(i * width, (i + 1) * width)
        keys = torch.cat((context_k[0, :length], k[rows]))
        values = torch.cat((context_v[0, :length], v[rows]))
        for row in range(rows.start, rows.stop):
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

"""The plain-torch twin of every kernel: same arguments, same results, written to be read.

Formats, draws and rejection are those of engine.quant, engine.sampling and engine.verify, which are only called here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine import sampling, verify
from engine.indexer import FORCED_INIT, FORCED_LOCAL, NO_SCORE
from engine.kernels.groups import Groups
from engine.quant import FORMATS, INDEX_FORMATS, decode_fp8, decode_mxfp4, decode_mxfp8, encode_fp8
from engine.verify import Decision


def store_kv(k: Tensor, v: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Twin of kernels.store_kv."""
    live = slots >= 0
    for part, codes in zip(pages, FORMATS[fmt].encode(torch.stack((k, v), dim=1)), strict=True):
        part.flatten(0, 1)[slots[live]] = codes[live].to(part.dtype)


def store_index(index_k: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Twin of kernels.store_index."""
    live = slots >= 0
    for part, codes in zip(pages, INDEX_FORMATS[fmt].encode(index_k), strict=True):
        part.flatten(0, 1)[slots[live]] = codes[live]


def paged_attention(
    q: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    positions: Tensor,
    *,
    max_length: int,
    blocks: Tensor | None = None,
    block_size: int = 0,
) -> Tensor:
    """Twin of kernels.paged_attention: one row at a time, float64."""
    (n, width), (rows, heads, d) = positions.shape, q.shape
    kv_heads = pages[0].shape[3]
    out = torch.zeros(rows, heads, d, dtype=torch.float64, device=q.device)
    for i in range(n):
        found = tuple(part[page_table[i]] for part in pages)
        kv = FORMATS[fmt].decode(found, torch.float32).flatten(0, 1)  # [length, 2, kv_heads, d]
        for j in range(width):
            length, row = min(int(positions[i, j]) + 1, max_length), i * width + j
            for h in range(kv_heads if length else 0):
                keep = torch.ones(length, dtype=torch.bool, device=q.device)
                if blocks is not None:
                    chosen = torch.arange(length, device=q.device) // block_size
                    keep = torch.isin(chosen, blocks[row, h][blocks[row, h] >= 0])
                k, v = kv[:length, :, h][keep].double().unbind(1)
                group = slice(h * heads // kv_heads, (h + 1) * heads // kv_heads)
                if keep.any():
                    out[row, group] = (q[row, group].double() @ k.T * d**-0.5).softmax(-1) @ v
    return out.flatten(1).to(q.dtype)


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    lengths: Tensor,
    *,
    max_length: int,
    window: int = 0,
) -> Tensor:
    """Twin of kernels.block_attention: one row at a time, float64."""
    n, (rows, heads, d) = page_table.shape[0], q.shape
    width, kv_heads = rows // n, k.shape[1]
    out = torch.zeros(rows, heads, d, dtype=torch.float64, device=q.device)
    for i, length in enumerate(lengths.tolist()):
        found = FORMATS[fmt].decode(tuple(part[page_table[i]] for part in pages), torch.float32).flatten(0, 1)
        block = slice(i * width, (i + 1) * width)
        for j, row in enumerate(range(block.start, block.stop)):
            seen = slice(max(0, length + j - window + 1) if window else 0, length)
            for h in range(kv_heads):
                keys = torch.cat((found[seen, 0, h], k[block, h].float())).double()
                values = torch.cat((found[seen, 1, h], v[block, h].float())).double()
                group = slice(h * heads // kv_heads, (h + 1) * heads // kv_heads)
                out[row, group] = (q[row, group].double() @ keys.T * d**-0.5).softmax(-1) @ values
    return out.flatten(1).to(q.dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of kernels.quantise_rows."""
    return encode_fp8(x)


def ptpc_matmul(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Twin of kernels.ptpc_matmul. Sums of products of fp8 numbers are close to exact in float32."""
    one = torch.ones(1, device=x.device)
    y = decode_fp8(x, one) @ decode_fp8(w, one).T
    return (y * x_scale * w_scale.view(1, -1)).to(dtype)


def ptpc_experts(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, groups: Groups, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Twin of kernels.ptpc_experts: one expert at a time. The order and the tiles play no part."""
    y = torch.empty(len(groups.ids), w.shape[1], dtype=dtype, device=x.device)
    for expert, (places, rows) in enumerate(_by_expert(groups, len(x), len(w))):
        y[places] = ptpc_matmul(x[rows], x_scale[rows], w[expert], w_scale[expert], dtype)
    return y


def mx_experts(x: Tensor, w: Tensor, w_scale: Tensor, groups: Groups) -> Tensor:
    """Twin of kernels.mx_experts: one expert at a time, float32."""
    y = torch.empty(len(groups.ids), w.shape[1], dtype=x.dtype, device=x.device)
    decode = decode_mxfp4 if w.shape[2] < x.shape[1] else decode_mxfp8
    for expert, (places, rows) in enumerate(_by_expert(groups, len(x), len(w))):
        y[places] = (x[rows].float() @ decode(w[expert], w_scale[expert]).T).to(x.dtype)
    return y


def _by_expert(groups: Groups, rows: int, experts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The places of each expert and their rows."""
    for expert in range(experts):
        places = (groups.ids == expert).nonzero().squeeze(1)
        yield places, places // max(len(groups.ids) // max(rows, 1), 1)


def index_topk(
    iq: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    positions: Tensor,
    *,
    block_size: int,
    topk: int,
    init_blocks: int,
    local_blocks: int,
    max_length: int,
) -> Tensor:
    """Twin of kernels.index_topk: one row at a time."""
    (n, width), (rows, heads, _) = positions.shape, iq.shape
    out = torch.full((rows, heads, topk), -1, dtype=torch.int32, device=iq.device)
    for i in range(n):
        keys = INDEX_FORMATS[fmt].decode(tuple(part[page_table[i]].flatten(0, 1) for part in pages), torch.float32)
        for j in range(width):
            length, row = min(int(positions[i, j]) + 1, max_length), i * width + j
            if length:
                scores = iq[row].float() @ keys[:length].T
                out[row] = choose_blocks(scores, block_size, topk, init_blocks, local_blocks)
    return out


def choose_blocks(scores: Tensor, block_size: int, topk: int, init_blocks: int, local_blocks: int) -> Tensor:
    """int32 [heads, topk] of scores [heads, length]: best block first, ties to the lowest id, then -1.

    A block's score is the largest of its visible tokens. The first `init_blocks` and then the last
    `local_blocks` are forced; a NaN counts as -1e30. As engine/indexer.py has it, with an order.
    """
    heads, length = scores.shape
    count = -(-length // block_size)
    padded = torch.full((heads, count * block_size), -torch.inf, device=scores.device)
    padded[:, :length] = scores.masked_fill(scores.isnan(), NO_SCORE)
    best = padded.view(heads, count, block_size).amax(-1)
    best[:, :init_blocks] = FORCED_INIT
    best[:, max(count - local_blocks, 0) :] = FORCED_LOCAL
    order = best.sort(dim=-1, descending=True, stable=True).indices[:, :topk].int()
    return torch.nn.functional.pad(order, (0, topk - order.shape[1]), value=-1)


def markov_logits(base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """Twin of kernels.markov_logits."""
    return base.float() + w_in[previous].float() @ w_out.float().T


def markov_greedy(base: Tensor, anchors: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """Twin of kernels.markov_greedy."""
    chain = [anchors]
    for i in range(base.shape[1]):
        chain.append(markov_logits(base[:, i], chain[-1], w_in, w_out).argmax(-1))
    return torch.stack(chain[1:], dim=1) if len(chain) > 1 else anchors.new_empty(len(anchors), 0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Twin of kernels.draw."""
    return sampling.draw(weights, u)


def accept_greedy(targets: Tensor, drafts: Tensor, counts: Tensor) -> Decision:
    """Twin of kernels.accept_greedy."""
    return verify.accept_greedy(targets, drafts, counts)


def accept_sampled(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor
) -> Decision:
    """Twin of kernels.accept_sampled."""
    return verify.accept_sampled(p, q, drafts, u_accept, u_token, counts)


def accept_block(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor
) -> Decision:
    """Twin of kernels.accept_block."""
    return verify.accept_block(p, q, drafts, u_accept, u_token, counts)

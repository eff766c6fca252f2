"""The engine's kernels: Triton on a GPU, their plain-torch twins elsewhere. Importing this imports no Triton.

Pages are those of engine/kv_cache.py: parts [num_pages + 1, page_size, 2, kv_heads, width], K before V; index
pages are parts [num_pages + 1, page_size, width]. A page table is int64 [n, pages]; positions are int64
[n, width], -1 for a padding row; rows = n * width. Arguments are read as they are: what a caller promises here
is not checked again, since a check would wait for the GPU.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from engine.kernels import reference
from engine.verify import MIN_MASS, Decision


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def use_triton(device: torch.device | str) -> bool:
    """Whether kernels run on this device: an NVIDIA or AMD GPU (torch calls both "cuda"), with Triton installed."""
    return torch.device(device).type == "cuda" and _has_triton()


FP4_INDEX = {"fp4_nv": "nvfp4", "fp4_mx": "mxfp4"}  # an index format -> the number format of its vectors


def store_kv(k: Tensor, v: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Encode k and v [rows, kv_heads, head_dim] in a format of quant.FORMATS into slots int64 [rows]; -1: nowhere."""
    if use_triton(k.device):
        from engine.kernels import store

        return store.store_kv(k, v, slots, pages, fmt)
    return reference.store_kv(k, v, slots, pages, fmt)


def store_index(index_k: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Encode index keys [rows, width] into slots int64 [rows]; -1 writes nothing.

    fmt: one of quant.INDEX_FORMATS, as fp8 (a saturating cast, no scale), fp4_nv (blocks of 16, E4M3 scales) or fp4_mx
    (32, E8M0).
    """
    fmt = FP4_INDEX.get(fmt, fmt)
    if use_triton(index_k.device):
        from engine.kernels import store

        return store.store_index(index_k, slots, pages, fmt)
    return reference.store_index(index_k, slots, pages, fmt)


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
    """[rows, heads * head_dim] of q [rows, heads, head_dim], in the type of q; a padding row gives zeros.

    The row at position p sees the keys at 0..p of its sequence. max_length: at least every position + 1.
    blocks: int32 [rows, kv_heads, topk] or None for all: block ids of `block_size` tokens, those in use first,
    then -1; the row then sees only tokens of these blocks, for all query heads of the KV head.
    """
    if use_triton(q.device):
        from engine.kernels import attention as chosen
    else:
        chosen = reference
    return chosen.paged_attention(
        q, pages, fmt, page_table, positions, max_length=max_length, blocks=blocks, block_size=block_size
    )


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn [m, k] and scale float32 [m, 1] = amax / 448 (1 for a zero row) of x [m, k]."""
    if use_triton(x.device):
        from engine.kernels import linear

        return linear.quantise_rows(x)
    return reference.quantise_rows(x)


def ptpc_matmul(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """[m, n] in `dtype`: (x . w^T in float32) * x_scale * w_scale.

    x, w: float8_e4m3fn [m, k] and [n, k]; x_scale, w_scale: float32 [m, 1] and [n, 1].
    """
    if use_triton(x.device):
        from engine.kernels import linear

        return linear.ptpc_matmul(x, x_scale, w, w_scale, dtype)
    return reference.ptpc_matmul(x, x_scale, w, w_scale, dtype)


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
    """int32 [rows, heads, topk]: the blocks each row and index head attends to, best first, unused places -1.

    iq: [rows, heads, width]. A block's score is max(iq . ik) over its tokens at or before the row, a NaN
    counting as -1e30. The first `init_blocks` score 1e30 and the last `local_blocks` that the row
    sees 1e29, whatever they hold. Order: score descending, id ascending. All rows of a sequence (K+1 of a
    verification) share one reading of its index blocks; each has its own causal length and list.
    """
    fmt = FP4_INDEX.get(fmt, fmt)
    if use_triton(iq.device):
        from engine.kernels import index as chosen
    else:
        chosen = reference
    return chosen.index_topk(
        iq, pages, fmt, page_table, positions, block_size=block_size, topk=topk, init_blocks=init_blocks,
        local_blocks=local_blocks, max_length=max_length,
    )  # fmt: skip


def markov_greedy(base: Tensor, anchors: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """int64 [n, K]: token i is the argmax of base[:, i] + w_out . w_in[token before it], ties to the lowest id.

    base: [n, K, vocab]; anchors: int64 [n]; w_in, w_out: [vocab, rank]. Sums are float32.
    """
    if use_triton(base.device):
        from engine.kernels import sample

        return sample.markov_greedy(base, anchors, w_in, w_out)
    return reference.markov_greedy(base, anchors, w_in, w_out)


def markov_logits(base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """float32 [n, vocab] base + w_out . w_in[previous], for one sampled step; base [n, vocab], previous int64 [n]."""
    if use_triton(base.device):
        from engine.kernels import sample

        return sample.markov_logits(base, previous, w_in, w_out)
    return reference.markov_logits(base, previous, w_in, w_out)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """int64 [rows]: sampling.draw of weights float32 [rows, vocab] and u float64 [rows]."""
    if use_triton(weights.device):
        from engine.kernels import sample

        return sample.draw(weights, u)
    return reference.draw(weights, u)


def accept_greedy(targets: Tensor, drafts: Tensor, counts: Tensor) -> Decision:
    """verify.accept_greedy: targets int64 [n, K+1], drafts int64 [n, K], counts int64 [n]."""
    if use_triton(drafts.device) and drafts.shape[1]:
        from engine.kernels import sample

        return Decision(*sample.accept_greedy(targets, drafts, counts))
    return Decision(*reference.accept_greedy(targets, drafts, counts))


def accept_sampled(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor
) -> Decision:
    """verify.accept_sampled with its arguments; the uniforms are float64, so every draw is given."""
    if use_triton(p.device) and drafts.shape[1]:
        from engine.kernels import sample

        return Decision(*sample.accept_sampled(p, q, drafts, u_accept, u_token, counts, MIN_MASS))
    return Decision(*reference.accept_sampled(p, q, drafts, u_accept, u_token, counts))

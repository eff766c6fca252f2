"""Attention of a draft's blocks: pages of context, then the block's own rows as they are, in one kernel.

A program takes one tile of a block's rows with all query heads that share a KV head and walks over its share of the
context with an online softmax, as attention.py does; the first share begins with the block itself, every row of which
sees all of it. A long context is split and put together by the same second kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention import (
    LOG2_E,
    choose_splits,
    combine,
    key_tile,
    load_wide,
    row_tile,
    softmax_step,
    split_parts,
    store_rows,
)
from engine.kernels.formats import load_vectors
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all

FAR = 1 << 30  # a window that hides nothing


@triton.jit
def _own_block(q_low, q_high, k, v, first, live, kv_heads, softmax_scale, D: tl.constexpr, PACKED: tl.constexpr,
               M: tl.constexpr, B: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """Softmax state of rows q over the first `live` of a block's keys; first: the vector of the block's first."""
    t, at = tl.arange(0, B), tl.arange(0, P)
    dtype: tl.constexpr = k.dtype.element_ty
    there = (t < live)[:, None]
    vectors = (first + t * kv_heads)[:, None] * D
    k_low, k_high = load_wide(k + vectors, at, D, PACKED, there)
    score = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
    if PACKED:
        score = tl.dot(q_high, tl.trans(k_high), score, input_precision="ieee")
    score = tl.where((t < live)[None, :], score * softmax_scale, float("-inf"))
    nothing = tl.full((M,), float("-inf"), tl.float32)
    weight, _, best, mass = softmax_step(score, nothing, tl.zeros((M,), tl.float32))
    v_low, v_high = load_wide(v + vectors, at, D, PACKED, there)
    weight = weight.to(dtype)
    acc_low = tl.dot(weight, v_low, input_precision="ieee")
    acc_high = tl.zeros((M, P), tl.float32)
    if PACKED:
        acc_high = tl.dot(weight, v_high, input_precision="ieee")
    return best, mass, acc_low, acc_high


@triton.jit(do_not_specialize=["width", "block", "tiles", "pages", "chunk", "splits", "kv_heads", "window", "least"])
def block_attend_kernel(q, k, v, out, partial, stats, codes, scales, page_table, lengths, width, block, tiles, pages,
                        chunk, splits, kv_heads, window, least, softmax_scale, FORMAT: tl.constexpr,
                        GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
                        SPLIT: tl.constexpr, WHOLE: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr,
                        N: tl.constexpr, B: tl.constexpr, P: tl.constexpr):  # fmt: skip
    dtype: tl.constexpr = q.dtype.element_ty
    PACKED: tl.constexpr = FORMAT == "nvfp4"
    seq, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    head, split = tl.program_id(1), tl.program_id(2)
    m = tl.arange(0, M)
    j = tl.minimum(tile * ROWS + m // GROUP, width - 1)  # rows beyond the tile's own repeat its last, unstored
    row = (seq * width + j).to(tl.int64)
    at = tl.arange(0, P)
    place = (row * kv_heads + head) * GROUP + m % GROUP
    q_low, q_high = load_wide(q + place[:, None] * D, at, D, PACKED, True)

    # The block itself first: after the loop its addresses would be held through it. In the first share alone.
    own, live = (seq * block).to(tl.int64) * kv_heads + head, tl.where(split == 0, block, 0)
    best, mass, acc_low, acc_high = _own_block(q_low, q_high, k, v, own, live, kv_heads, softmax_scale, D, PACKED, M, B,
                                               P)  # fmt: skip

    length = tl.load(lengths + seq).to(tl.int32)
    # The first key that a row sees.
    oldest = tl.maximum(length + j - window + 1, least) if WINDOW else j * 0
    start = tl.maximum(tl.min(oldest, 0), 0) // N * N + split * chunk
    end = tl.minimum(start + chunk, length)

    for first in range(start, end, N):
        token = first + tl.arange(0, N)
        inside = tl.minimum(token, end - 1)  # what lies beyond is read from there, and weighs 0
        codes_at, scales_at = codes, scales
        if WHOLE:
            base = tl.load(page_table + seq * pages + first // PAGE).to(tl.int64) * PAGE * (2 * kv_heads)
            vector = (inside - first // PAGE * PAGE) * (2 * kv_heads) + head
            codes_at += base * (D // 2 if PACKED else D)
            if FORMAT != "plain":
                scales_at += base * (D // 16 if PACKED else 1)
        else:
            page = tl.load(page_table + seq * pages + inside // PAGE).to(tl.int64)
            vector = (page * PAGE + inside % PAGE) * (2 * kv_heads) + head
        k_low, k_high = load_vectors(codes_at, scales_at, vector, FORMAT, D, N, P, dtype)
        score = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
        if PACKED:
            score = tl.dot(q_high, tl.trans(k_high), score, input_precision="ieee")
        score *= softmax_scale
        if FORMAT == "fp8":
            score *= tl.load(scales_at + vector)[None, :]
        score += tl.where(token < end, 0.0, float("-inf"))[None, :]
        if WINDOW:  # as numbers: a mask of every place would be spilled
            score += tl.minimum(token[None, :] - oldest[:, None], 0).to(tl.float32) * 1e30
        weight, shrink, best, mass = softmax_step(score, best, mass)
        v_low, v_high = load_vectors(codes_at, scales_at, vector + kv_heads, FORMAT, D, N, P, dtype)
        if FORMAT == "fp8":
            weight *= tl.load(scales_at + vector + kv_heads)[None, :]
        weight = weight.to(dtype)
        acc_low = tl.dot(weight, v_low, acc_low * shrink[:, None], input_precision="ieee")
        if PACKED:
            acc_high = tl.dot(weight, v_high, acc_high * shrink[:, None], input_precision="ieee")

    real = (m < ROWS * GROUP) & (tile * ROWS + m // GROUP < width)
    store_rows(out, partial, stats, acc_low, acc_high, best, mass, place, split, splits, real, at, D, PACKED,
               SPLIT)  # fmt: skip


def block_attention_launches(
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
    least: int = 0,
) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.block_attention."""
    n, (rows, heads, d) = page_table.shape[0], q.shape
    page_size, kv_heads = pages[0].shape[1], pages[0].shape[3]
    width, own, group = rows // max(n, 1), k.shape[0] // max(n, 1), heads // kv_heads
    m = row_tile(width, group)
    tiles = ceil_div(width, m // group)
    block_n = 32 if fmt == "fp8" and m >= 64 else key_tile(fmt, q.dtype, m, page_size)
    places = min(max_length, window + block_n) if window else max_length
    splits = choose_splits(n * tiles * kv_heads, places)
    chunk = ceil_div(ceil_div(max(places, 1), splits), block_n) * block_n
    out = torch.empty(rows, heads * d, dtype=q.dtype, device=q.device)
    partial, stats = split_parts(rows * heads, splits, d, q.device)
    args = (q.contiguous(), k.contiguous(), v.contiguous(), out, partial, stats, pages[0],
            pages[1] if len(pages) > 1 else None, page_table.contiguous(), lengths, width, own,
            tiles, page_table.shape[1], chunk, splits, kv_heads, window or FAR, least, d**-0.5 * LOG2_E)  # fmt: skip
    constants = {
        "FORMAT": fmt if fmt in ("fp8", "nvfp4") else "plain",
        "GROUP": group, "D": d, "PAGE": page_size, "ROWS": m // group, "SPLIT": splits > 1,
        "WHOLE": page_size % block_n == 0, "WINDOW": window > 0 or least > 0, "M": m, "N": block_n,
        "B": power_of_2(own, 16), "P": power_of_2(d // 2 if fmt == "nvfp4" else d, 16),
    }  # fmt: skip
    alone = m == 64 or (m > 64 and fmt != "nvfp4")  # found by compiling: the other way spills
    launch = Launch(kernel=block_attend_kernel, grid=(n * tiles, kv_heads, splits), args=args, constants=constants,
                    warps=8 if m >= 128 else 4, stages=2, amd_stages=1 if alone else 2)  # fmt: skip
    return out, [launch, *combine(partial, stats, out, rows * heads, splits, d)]


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
    least: int = 0,
) -> Tensor:
    out, launches = block_attention_launches(
        q, k, v, pages, fmt, page_table, lengths, max_length=max_length, window=window, least=least
    )
    run_all(launches)
    return out


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

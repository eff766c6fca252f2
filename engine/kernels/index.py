"""Which blocks of the context a row attends to: index scores and their top-k in one pass.

A program takes all rows of a sequence that fit a tile (all K+1 rows of a verification) with all index heads,
and reads each index block of its share of the context once. It keeps the best blocks of every row and head as
a list of sort keys, in which a better block takes the place of the worst. A second, small kernel merges the
lists of the programs that shared a context and puts them in order. The result is the per-row rule of
`reference.index_topk`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import (
    EMPTY,
    NAN_SCORE,
    key_id,
    load_vectors,
    sort_key,
)
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all
from engine.kernels.store import FP4_INDEX

PROGRAMS = 512
SPLIT_BLOCKS = 16  # index blocks a split should at least have
MAX_SPLITS = 64
NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["width", "tiles", "pages", "share", "splits", "heads", "tile_rows"])
def score_topk_kernel(iq, codes, scales, page_table, positions, partial, width, tiles, pages, share, splits, heads,
                      tile_rows, FORMAT: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
                      BLOCK: tl.constexpr, TOPK: tl.constexpr, INIT: tl.constexpr, LOCAL: tl.constexpr,
                      WHOLE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
                      T: tl.constexpr):  # fmt: skip
    dtype: tl.constexpr = iq.dtype.element_ty
    seq, tile, split = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    m = tl.arange(0, M)
    j = tl.minimum(tile * tile_rows + m // heads, width - 1)  # rows beyond the tile's own repeat its last, unstored
    row = (seq * width + j).to(tl.int64)
    position = tl.load(positions + row).to(tl.int32)
    length = tl.max(position, 0) + 1
    visible = tl.where(position < 0, 0, position // BLOCK + 1)  # blocks a row may see

    at = tl.arange(0, P)
    iq_at = iq + (row * heads + m % heads)[:, None] * D
    packed: tl.constexpr = (FORMAT == "nvfp4") or (FORMAT == "mxfp4")
    if packed:
        iq_low = tl.load(iq_at + 2 * at[None, :], mask=(at < D // 2)[None, :], other=0.0)
        iq_high = tl.load(iq_at + 2 * at[None, :] + 1, mask=(at < D // 2)[None, :], other=0.0)
    else:
        iq_low = tl.load(iq_at + at[None, :], mask=(at < D)[None, :], other=0.0)
        iq_high = iq_low

    place = tl.arange(0, T)
    # Places beyond TOPK hold a key no block beats, so they are never the worst of the list.
    keys = tl.where(place < TOPK, EMPTY + place.to(tl.int64), 0x7FFFFFFFFFFFFFFF - (place - TOPK).to(tl.int64))
    keys = tl.broadcast_to(keys[None, :], (M, T))
    for block in range(split * share, tl.minimum(split * share + share, tl.cdiv(length, BLOCK))):
        inner = tl.arange(0, N)
        token = block * BLOCK + inner
        if N > BLOCK:
            token = tl.where(inner < BLOCK, token, NOWHERE)
        inside = tl.minimum(token, length - 1)
        codes_at, scales_at = codes, scales
        if WHOLE:
            origin = block * BLOCK
            base = tl.load(page_table + seq * pages + origin // PAGE).to(tl.int64) * PAGE
            vector = inside - origin // PAGE * PAGE
            codes_at += base * (D // 2 if packed else D)
            if packed:
                scales_at += base * (D // (16 if FORMAT == "nvfp4" else 32))
        else:
            vector = tl.load(page_table + seq * pages + inside // PAGE).to(tl.int64) * PAGE + inside % PAGE
        low, high = load_vectors(codes_at, scales_at, vector, FORMAT, D, N, P, dtype)
        score = tl.dot(iq_low, tl.trans(low), input_precision="ieee")
        if packed:
            score = tl.dot(iq_high, tl.trans(high), score, input_precision="ieee")
        score = tl.where(score == score, score, NAN_SCORE)
        value = tl.max(tl.where(token[None, :] <= position[:, None], score, float("-inf")), 1)
        value = tl.where(block < INIT, 1e30, value)
        value = tl.where(block >= visible - LOCAL, 1e29, value)
        key = tl.where(block < visible, sort_key(value, tl.full((M,), 0, tl.int32) + block), EMPTY)
        worst = tl.min(keys, 1)
        better = key > worst
        keys = tl.where((keys == worst[:, None]) & better[:, None], key[:, None], keys)

    real = (m < tile_rows * heads) & (tile * tile_rows + m // heads < width)
    base = ((row * heads + m % heads) * splits + split) * TOPK
    tl.store(partial + base[:, None] + place[None, :], keys, mask=real[:, None] & (place < TOPK)[None, :])


@triton.jit(do_not_specialize=["splits"])
def merge_topk_kernel(partial, out, splits, TOPK: tl.constexpr, C: tl.constexpr):
    """The best TOPK of the `splits` lists of one row and head, best first."""
    at = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, C)
    keys = tl.load(partial + at * (splits * TOPK) + place, mask=place < splits * TOPK, other=EMPTY)
    for rank in range(TOPK):
        best = tl.max(keys, 0)
        tl.store(out + at * TOPK + rank, tl.where((best >> 32) == -(2**31), -1, key_id(best)).to(tl.int32))
        keys = tl.where(keys == best, EMPTY, keys)


def index_topk_launches(
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
) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.index_topk."""
    (n, width), (rows, heads, d), page_size = positions.shape, iq.shape, pages[0].shape[1]
    m = next(m for m in (16, 64, power_of_2(heads)) if m >= min(width * heads, 64) and m >= heads)
    rows_per_tile = m // heads
    tiles, nb = ceil_div(width, rows_per_tile), ceil_div(max_length, block_size)
    splits = 1
    while splits < MAX_SPLITS and n * tiles * splits < PROGRAMS and nb > splits * SPLIT_BLOCKS:
        splits *= 2
    out = torch.empty(rows, heads, topk, dtype=torch.int32, device=iq.device)
    partial = torch.empty(rows * heads * splits * topk, dtype=torch.int64, device=iq.device)
    scales = pages[1] if len(pages) > 1 else None
    args = (iq.contiguous(), pages[0], scales, page_table.contiguous(), positions.contiguous(), partial, width, tiles,
            page_table.shape[1], ceil_div(nb, splits), splits, heads, rows_per_tile)  # fmt: skip
    fmt = FP4_INDEX.get(fmt, fmt)
    packed = fmt in ("nvfp4", "mxfp4")
    constants = {
        "FORMAT": fmt if packed or fmt == "fp8" else "plain",
        "D": d, "PAGE": page_size, "BLOCK": block_size, "TOPK": topk, "INIT": init_blocks,
        "LOCAL": local_blocks,
        "WHOLE": block_size >= 16 and page_size % power_of_2(block_size, 16) == 0,
        "M": m, "N": power_of_2(block_size, 16),
        "P": power_of_2(d // 2 if packed else d, 16), "T": power_of_2(topk),
    }  # fmt: skip
    score = Launch(kernel=score_topk_kernel, grid=(n * tiles, splits), args=args, constants=constants,
                   warps=8 if m >= 64 else 4)  # fmt: skip
    constants = {"TOPK": topk, "C": power_of_2(splits * topk)}
    merge = Launch(kernel=merge_topk_kernel, grid=(rows * heads,), args=(partial, out, splits), constants=constants)
    return out, [score, merge]


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
    out, launches = index_topk_launches(
        iq, pages, fmt, page_table, positions, block_size=block_size, topk=topk, init_blocks=init_blocks,
        local_blocks=local_blocks, max_length=max_length,
    )  # fmt: skip
    run_all(launches)
    return out


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

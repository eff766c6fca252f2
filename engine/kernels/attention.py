"""Attention over pages: prefill, decode and verification in one kernel, for every storage format.

A program takes one tile of rows of one sequence and one KV head, and walks over the context with an online
softmax. The query heads that share a KV head are rows of the same tile, so each key is read once for all of
them and for all K+1 rows of a block. A long context is split between programs and put together by a second
kernel (flash-decoding). With `blocks`, each row walks over its own list of chosen blocks instead.

Keys are decoded to the type of q: exact for fp8 codes, whose scale multiplies the score, and for nvfp4, whose
code times scale has six bits. The pair of a packed byte need not lie side by side: the even and the odd half of
a head are two products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import load_vectors
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all

PROGRAMS = 512  # split the context until about so many programs run: two for each unit of a large chip
SPLIT_TOKENS = 512  # a split shorter than this costs more than it gains
MAX_SPLITS = 32
LOG2_E = 1.4426950408889634
NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def load_wide(vectors, at, D: tl.constexpr, PACKED: tl.constexpr, live):
    """Plain vectors at `vectors` [R, 1], where live [R, 1]: both halves [R, P], of even and of odd places if PACKED."""
    if PACKED:
        inside = live & (at < D // 2)[None, :]
        low = tl.load(vectors + 2 * at[None, :], mask=inside, other=0.0)
        high = tl.load(vectors + 2 * at[None, :] + 1, mask=inside, other=0.0)
    else:
        low = tl.load(vectors + at[None, :], mask=live & (at < D)[None, :], other=0.0)
        high = low
    return low, high


@triton.jit
def softmax_step(score, best, mass):
    """Weights of score [M, N] against the largest so far, what to shrink earlier sums by, and best and mass after."""
    higher = tl.maximum(best, tl.max(score, 1))
    top = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: exp2(-inf - 0) is 0, not NaN
    weight = tl.exp2(score - top[:, None])
    shrink = tl.exp2(best - top)
    return weight, shrink, higher, mass * shrink + tl.sum(weight, 1)


@triton.jit
def store_rows(out, partial, stats, acc_low, acc_high, best, mass, place, split, splits, real, at, D: tl.constexpr,
               PACKED: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Finished rows into out [rows * heads, D], or with SPLIT a part of them into partial and stats."""
    if not SPLIT:
        inverse = tl.where(mass == 0.0, 0.0, 1.0 / tl.where(mass == 0.0, 1.0, mass))
        target = out
    else:
        inverse = tl.full(mass.shape, 1.0, tl.float32)
        place = place * splits + split
        tl.store(stats + 2 * place, best, mask=real)
        tl.store(stats + 2 * place + 1, mass, mask=real)
        target = partial
    to = target + place[:, None] * D
    kind: tl.constexpr = target.dtype.element_ty
    if PACKED:
        mask = real[:, None] & (at < D // 2)[None, :]
        tl.store(to + 2 * at[None, :], (acc_low * inverse[:, None]).to(kind), mask=mask)
        tl.store(to + 2 * at[None, :] + 1, (acc_high * inverse[:, None]).to(kind), mask=mask)
    else:
        tl.store(to + at[None, :], (acc_low * inverse[:, None]).to(kind), mask=real[:, None] & (at < D)[None, :])


@triton.jit(do_not_specialize=["width", "tiles", "pages", "chunk", "splits", "kv_heads"])
def attend_kernel(q, out, partial, stats, codes, scales, page_table, positions, blocks, width, tiles, pages, chunk,
                  splits, kv_heads, softmax_scale, FORMAT: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
                  PAGE: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
                  WHOLE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, P: tl.constexpr):  # fmt: skip
    dtype: tl.constexpr = q.dtype.element_ty
    WIDTH: tl.constexpr = D // 2 if FORMAT == "nvfp4" else D
    seq, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    head, split = tl.program_id(1), tl.program_id(2)
    # Rows beyond the tile's own repeat its last and are not stored: masks held through the loop would cost registers.
    m = tl.arange(0, M)
    j = tl.minimum(tile * ROWS + m // GROUP, width - 1)
    row = (seq * width + j).to(tl.int64)
    position = tl.load(positions + row).to(tl.int32)
    length = tl.max(position, 0) + 1

    at = tl.arange(0, P)
    q_at = q + ((row * kv_heads + head) * GROUP + m % GROUP)[:, None] * D
    q_low, q_high = load_wide(q_at, at, D, FORMAT == "nvfp4", True)

    total = length
    chosen = blocks
    if TOPK > 0:  # one row a tile; its chosen blocks, then -1
        chosen += ((seq * width + tile).to(tl.int64) * kv_heads + head) * TOPK
        slot_pad: tl.constexpr = triton.next_power_of_2(TOPK)
        listing = tl.arange(0, slot_pad)
        listed = tl.load(chosen + listing, mask=listing < TOPK, other=-1)
        total = tl.sum((listed >= 0).to(tl.int32), 0) * BLOCK
        total = tl.where(length > 0, total, 0)
    start, end = split * chunk, tl.minimum(split * chunk + chunk, total)
    last = length - 1 if TOPK > 0 else end - 1  # what lies beyond is read from here, and weighs 0

    best = tl.full((M,), float("-inf"), tl.float32)
    mass = tl.zeros((M,), tl.float32)
    acc_low = tl.zeros((M, P), tl.float32)
    acc_high = tl.zeros((M, P), tl.float32)
    for first in range(start, end, N):
        if WHOLE:
            origin = first
            if TOPK > 0:
                origin = tl.load(chosen + first // BLOCK) * BLOCK + first % BLOCK
            token = origin + tl.arange(0, N)
            inside = tl.minimum(origin, last // N * N)
            base = tl.load(page_table + seq * pages + inside // PAGE).to(tl.int64) * PAGE * (2 * kv_heads)
            vector = (tl.minimum(inside + tl.arange(0, N), last) - inside // PAGE * PAGE) * (2 * kv_heads) + head
        else:
            place = first + tl.arange(0, N)
            token = place
            if TOPK > 0:
                place = tl.minimum(place, end - 1)
                token = tl.load(chosen + place // BLOCK) * BLOCK + place % BLOCK
                token = tl.where(first + tl.arange(0, N) < end, token, NOWHERE)
            inside = tl.minimum(token, last)
            page = tl.load(page_table + seq * pages + inside // PAGE).to(tl.int64)
            base = tl.full((), 0, tl.int64)
            vector = (page * PAGE + inside % PAGE) * (2 * kv_heads) + head

        codes_at = codes + base * WIDTH
        scales_at = scales
        if FORMAT != "plain":
            scales_at += base * (D // 16 if FORMAT == "nvfp4" else 1)
        k_low, k_high = load_vectors(codes_at, scales_at, vector, FORMAT, D, N, P, dtype)
        score = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
        if FORMAT == "nvfp4":
            score = tl.dot(q_high, tl.trans(k_high), score, input_precision="ieee")
        score *= softmax_scale
        if FORMAT == "fp8":
            score *= tl.load(scales_at + vector)[None, :]
        score = tl.where(token[None, :] <= position[:, None], score, float("-inf"))

        weight, shrink, best, mass = softmax_step(score, best, mass)
        v_low, v_high = load_vectors(codes_at, scales_at, vector + kv_heads, FORMAT, D, N, P, dtype)
        if FORMAT == "fp8":
            weight *= tl.load(scales_at + vector + kv_heads)[None, :]
        weight = weight.to(dtype)
        acc_low = tl.dot(weight, v_low, acc_low * shrink[:, None], input_precision="ieee")
        if FORMAT == "nvfp4":
            acc_high = tl.dot(weight, v_high, acc_high * shrink[:, None], input_precision="ieee")

    real = (m < ROWS * GROUP) & (tile * ROWS + m // GROUP < width)
    place = (row * kv_heads + head) * GROUP + m % GROUP
    store_rows(out, partial, stats, acc_low, acc_high, best, mass, place, split, splits, real, at, D,
               FORMAT == "nvfp4", SPLIT)  # fmt: skip


@triton.jit
def combine_kernel(partial, stats, out, SPLITS: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    split, at = tl.arange(0, SPLITS), tl.arange(0, P)
    best = tl.load(stats + 2 * (place * SPLITS + split))
    mass = tl.load(stats + 2 * (place * SPLITS + split) + 1)
    top = tl.max(best, 0)
    share = tl.exp2(best - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(mass * share, 0)
    acc = tl.load(partial + (place * SPLITS + split)[:, None] * D + at[None, :], mask=(at < D)[None, :], other=0.0)
    value = tl.sum(acc * share[:, None], 0) * tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    tl.store(out + place * D + at, value.to(out.dtype.element_ty), mask=at < D)


def choose_splits(programs: int, places: int) -> int:
    """Into how many parts (a power of 2) the longest context is cut, given the programs that run without."""
    splits = 1
    while splits < MAX_SPLITS and programs * splits < PROGRAMS and places > splits * SPLIT_TOKENS:
        splits *= 2
    return splits


def row_tile(width: int, group: int) -> int:
    """Rows of a tile, heads of a group included: a power of 2 that holds `width` rows of a sequence, up to 128."""
    return next(m for m in (16, 64, 128, power_of_2(group)) if m >= min(width * group, 128) and m >= group)


def key_tile(fmt: str, dtype: torch.dtype, m: int, page_size: int) -> int:
    """Keys read in one turn, so that nothing spills (docs/kernels.md): decoding fp8 into 64 rows takes registers, and
    so do the addresses of keys that lie in several pages."""
    return 32 if (fmt == "fp8" and m == 64) or (dtype == torch.float32 and m > 16) or page_size % 64 else 64


def split_parts(rows: int, splits: int, d: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Memory for the parts that combine_kernel puts together, of `rows` rows and heads; None where nothing is split."""
    if splits == 1:
        return None, None
    partial = torch.empty(rows * splits * d, dtype=torch.float32, device=device)
    return partial, torch.empty(rows * splits * 2, dtype=torch.float32, device=device)


def combine(partial: Tensor | None, stats: Tensor | None, out: Tensor, rows: int, splits: int, d: int) -> list[Launch]:
    if splits == 1:
        return []
    constants = {"SPLITS": splits, "D": d, "P": power_of_2(d)}
    return [Launch(kernel=combine_kernel, grid=(rows,), args=(partial, stats, out), constants=constants)]


def attention_launches(
    q: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    positions: Tensor,
    *,
    max_length: int,
    blocks: Tensor | None = None,
    block_size: int = 0,
) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.paged_attention."""
    (n, width), (rows, heads, d) = positions.shape, q.shape
    page_size, kv_heads = pages[0].shape[1], pages[0].shape[3]
    group, topk = heads // kv_heads, 0 if blocks is None else blocks.shape[-1]
    if topk:
        m, rows_per_tile = power_of_2(group, 16), 1
    else:
        m = row_tile(width, group)
        rows_per_tile = m // group
    tiles, places = ceil_div(width, rows_per_tile), min(max_length, topk * block_size) if topk else max_length
    p = power_of_2(d // 2 if fmt == "nvfp4" else d, 16)
    splits = choose_splits(n * tiles * kv_heads, places)
    # With the next tile in flight, large tiles take an AMD wave more than the 256 registers that let two waves run.
    large, small_fp8 = m >= 128 or (fmt == "fp8" and m >= 64), fmt == "fp8" and m == 16
    block_n = key_tile(fmt, q.dtype, m, page_size)
    chunk = ceil_div(ceil_div(max(places, 1), splits), block_n) * block_n
    if topk:  # a list may name blocks near the end of a row: its places, not its tokens, are split
        chunk = ceil_div(ceil_div(topk * block_size, splits), block_n) * block_n
    out = torch.empty(rows, heads * d, dtype=q.dtype, device=q.device)
    partial, stats = split_parts(rows * heads, splits, d, q.device)
    scales = pages[1] if len(pages) > 1 else None
    args = (q.contiguous(), out, partial, stats, pages[0], scales, page_table.contiguous(), positions.contiguous(),
            blocks, width, tiles, page_table.shape[1], chunk, splits, kv_heads,
            d**-0.5 * LOG2_E)  # fmt: skip
    constants = {
        "FORMAT": fmt if fmt in ("fp8", "nvfp4") else "plain",
        "GROUP": group, "D": d, "PAGE": page_size, "TOPK": topk, "BLOCK": block_size or 1,
        "ROWS": rows_per_tile, "SPLIT": splits > 1,
        "WHOLE": page_size % block_n == 0 and (not topk or block_size % block_n == 0), "M": m, "N": block_n, "P": p,
    }  # fmt: skip
    grid = (n * tiles, kv_heads, splits)
    launches = [
        Launch(kernel=attend_kernel, grid=grid, args=args, constants=constants, warps=8 if m >= 128 else 4,
               stages=3 if small_fp8 else 2, amd_stages=1 if large else 2)
    ]  # fmt: skip
    return out, launches + combine(partial, stats, out, rows * heads, splits, d)


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
    out, launches = attention_launches(
        q, pages, fmt, page_table, positions, max_length=max_length, blocks=blocks, block_size=block_size
    )
    run_all(launches)
    return out


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

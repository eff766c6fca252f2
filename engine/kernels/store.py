"""Write keys, values and index keys into their pages, encoding on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import encode_fp8, encode_mxfp4, encode_nvfp4, to_fp8
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all

FP4_INDEX = {"fp4_nv": "nvfp4", "fp4_mx": "mxfp4"}  # an index format -> the number format of its vectors
VECTORS = 16  # vectors a program encodes


@triton.jit
def _write(x, at, where, live, inner, part, scales, FORMAT: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
           P: tl.constexpr):  # fmt: skip
    """Encode x [R, P] and write it as vectors `where` int64 [R] of part (and scales), where `live`."""
    if FORMAT == "fp8":
        codes, scale = encode_fp8(x)
        tl.store(part + where[:, None] * D + at[None, :], codes, mask=inner)
        tl.store(scales + where, scale, mask=live)
    elif FORMAT == "fp8cast":
        x = tl.where(tl.abs(x) == float("inf"), float("nan"), x)  # saturates, but an infinity is no number
        tl.store(part + where[:, None] * D + at[None, :], to_fp8(x), mask=inner)
    elif (FORMAT == "nvfp4") or (FORMAT == "mxfp4"):
        size: tl.constexpr = 16 if FORMAT == "nvfp4" else 32
        if FORMAT == "nvfp4":
            packed, scale = encode_nvfp4(x, R, P)
        else:
            packed, scale = encode_mxfp4(x, R, P)
        byte, block = tl.arange(0, P // 2), tl.arange(0, P // size)
        tl.store(part + where[:, None] * (D // 2) + byte[None, :], packed,
                 mask=live[:, None] & (byte < D // 2)[None, :])  # fmt: skip
        tl.store(scales + where[:, None] * (D // size) + block[None, :], scale,
                 mask=live[:, None] & (block < D // size)[None, :])  # fmt: skip
    else:
        tl.store(part + where[:, None] * D + at[None, :], x.to(part.dtype.element_ty), mask=inner)


@triton.jit(do_not_specialize=["count", "kv_heads"])
def store_kv_kernel(k, v, slots, part, scales, count, kv_heads, FORMAT: tl.constexpr, D: tl.constexpr,
                    R: tl.constexpr, P: tl.constexpr):  # fmt: skip
    vector = tl.program_id(0) * R + tl.arange(0, R)  # row, then K or V, then head: the order inside a slot
    row = (vector // (2 * kv_heads)).to(tl.int64)
    is_v, head = (vector // kv_heads) % 2 == 1, vector % kv_heads
    slot = tl.load(slots + row, mask=vector < count, other=-1)
    live = slot >= 0
    at = tl.arange(0, P)
    inner = live[:, None] & (at < D)[None, :]
    source = (row * kv_heads + head)[:, None] * D + at[None, :]
    x = tl.load(k + source, mask=inner & (is_v == 0)[:, None], other=0.0).to(tl.float32)
    x += tl.load(v + source, mask=inner & is_v[:, None], other=0.0).to(tl.float32)
    _write(x, at, slot * (2 * kv_heads) + vector % (2 * kv_heads), live, inner, part, scales, FORMAT, D, R, P)


@triton.jit(do_not_specialize=["count"])
def store_index_kernel(x_in, slots, part, scales, count, FORMAT: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
                       P: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)
    slot = tl.load(slots + row, mask=row < count, other=-1)
    live = slot >= 0
    at = tl.arange(0, P)
    inner = live[:, None] & (at < D)[None, :]
    x = tl.load(x_in + row.to(tl.int64)[:, None] * D + at[None, :], mask=inner, other=0.0).to(tl.float32)
    _write(x, at, slot, live, inner, part, scales, FORMAT, D, R, P)


def store_kv_launches(k: Tensor, v: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> list[Launch]:
    """See engine.kernels.store_kv."""
    rows, kv_heads, head_dim = k.shape
    count = rows * 2 * kv_heads
    constants = {"FORMAT": fmt, "D": head_dim, "R": VECTORS, "P": power_of_2(head_dim, 16)}
    args = (k.contiguous(), v.contiguous(), slots, pages[0], pages[1] if len(pages) > 1 else None, count, kv_heads)
    return [Launch(kernel=store_kv_kernel, grid=(ceil_div(count, VECTORS),), args=args, constants=constants)]


def store_index_launches(index_k: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> list[Launch]:
    """See engine.kernels.store_index."""
    rows, width = index_k.shape
    constants = {
        "FORMAT": "fp8cast" if fmt == "fp8" else FP4_INDEX.get(fmt, fmt),
        "D": width,
        "R": VECTORS,
        "P": power_of_2(width, 32),
    }
    args = (index_k.contiguous(), slots, pages[0], pages[1] if len(pages) > 1 else None, rows)
    return [Launch(kernel=store_index_kernel, grid=(ceil_div(rows, VECTORS),), args=args, constants=constants)]


def store_kv(k: Tensor, v: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    run_all(store_kv_launches(k, v, slots.to(torch.int64), pages, fmt))


def store_index(index_k: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    run_all(store_index_launches(index_k, slots.to(torch.int64), pages, fmt))


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

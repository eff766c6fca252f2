"""Products of rows with the matrices of their experts, all experts in one launch: each tile of rows has one matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import decode_e2m1, from_e8m0, from_fp8, spread_scales
from engine.kernels.groups import Groups
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all


@triton.jit
def _place(tiles_n, count, GROUP: tl.constexpr):
    """Row tile and column tile of this program: down GROUP row tiles first, so that those of one expert, which stand
    together, read a tile of its matrix while it is cached."""
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    height = tl.minimum(count - first, GROUP)
    inside = pid % (GROUP * tiles_n)
    return first + inside % height, inside // height


@triton.jit(do_not_specialize=["count", "share"])
def ptpc_experts_kernel(x, w, x_scale, w_scale, y, order, tiles, count, share, n, k, WHOLE_K: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                        GROUP: tl.constexpr):  # fmt: skip
    # As ptpc_matmul_kernel, K in the same steps; a place's row is x[place // share].
    tile, column = _place(tl.cdiv(n, BLOCK_N), count, GROUP)
    start, end = tl.load(tiles + count + tile), tl.load(tiles + 2 * count + tile)
    if start >= end:
        return
    expert = tl.load(tiles + tile).to(tl.int64)
    at = start + tl.arange(0, BLOCK_M)
    live = at < end
    place = tl.load(order + at, mask=live, other=0).to(tl.int32)
    row = place // share
    cols = column * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + row.to(tl.int64)[:, None] * k + inner[None, :]
    w_at = w + expert * n * k + cols.to(tl.int64)[None, :] * k + inner[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for done in range(0, k, BLOCK_K):
        if WHOLE_K:
            a = tl.load(x_at + done, mask=live[:, None], other=0.0)
            b = tl.load(w_at + done, mask=(cols < n)[None, :], other=0.0)
        else:
            a = tl.load(x_at + done, mask=live[:, None] & (done + inner < k)[None, :], other=0.0)
            b = tl.load(w_at + done, mask=(cols < n)[None, :] & (done + inner < k)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, max_num_imprecise_acc=BLOCK_K)
    sx = tl.load(x_scale + row, mask=live, other=0.0)
    sw = tl.load(w_scale + expert * n + cols, mask=cols < n, other=0.0)
    out = acc * sx[:, None] * sw[None, :]
    tl.store(y + place.to(tl.int64)[:, None] * n + cols[None, :], out.to(y.dtype.element_ty),
             mask=live[:, None] & (cols < n)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=["count", "share"])
def mx_experts_kernel(x, w, w_scale, y, order, tiles, count, share, n, k, PACKED: tl.constexpr, WHOLE_K: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                      GROUP: tl.constexpr):  # fmt: skip
    # BLOCK_K bytes of a matrix's row a step, decoded to x's type: in bf16 that is exact, but below 2^-126.
    tile, column = _place(tl.cdiv(n, BLOCK_N), count, GROUP)
    start, end = tl.load(tiles + count + tile), tl.load(tiles + 2 * count + tile)
    if start >= end:
        return
    expert = tl.load(tiles + tile).to(tl.int64)
    at = start + tl.arange(0, BLOCK_M)
    live = at < end
    place = tl.load(order + at, mask=live, other=0).to(tl.int32)
    cols = column * BLOCK_N + tl.arange(0, BLOCK_N)
    width, each = (k // 2, 2) if PACKED else (k, 1)  # bytes of a row, numbers of a byte
    size: tl.constexpr = 16 if PACKED else 32  # bytes of a block
    byte, block = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // size)
    inner = tl.arange(0, BLOCK_K * 2 if PACKED else BLOCK_K)
    x_at = x + (place // share).to(tl.int64)[:, None] * k + inner[None, :]
    line = expert * n + cols.to(tl.int64)
    w_at = w + line[:, None] * width + byte[None, :]
    s_at = w_scale + line[:, None] * (k // 32) + block[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for done in range(0, width, BLOCK_K):
        inside = (cols < n)[:, None]
        if WHOLE_K:
            a = tl.load(x_at + done * each, mask=live[:, None], other=0.0)
            codes = tl.load(w_at + done, mask=inside, other=0)
            scale = tl.load(s_at + done // size, mask=inside, other=0)
        else:
            a = tl.load(x_at + done * each, mask=live[:, None] & (done * each + inner < k)[None, :], other=0.0)
            codes = tl.load(w_at + done, mask=inside & (done + byte < width)[None, :], other=0)
            scale = tl.load(s_at + done // size, mask=inside & (done // size + block < k // 32)[None, :], other=0)
        factor = spread_scales(from_e8m0(scale), BLOCK_N, BLOCK_K // size, size)
        if PACKED:
            a_low, a_high = tl.split(tl.reshape(a, (BLOCK_M, BLOCK_K, 2)))
            low = (decode_e2m1(codes & 15) * factor).to(x.dtype.element_ty)
            high = (decode_e2m1(codes >> 4) * factor).to(x.dtype.element_ty)
            acc = tl.dot(a_low, tl.trans(low), acc, input_precision="ieee")
            acc = tl.dot(a_high, tl.trans(high), acc, input_precision="ieee")
        else:
            b = (from_fp8(codes) * factor).to(x.dtype.element_ty)
            acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
    tl.store(y + place.to(tl.int64)[:, None] * n + cols[None, :], acc.to(y.dtype.element_ty),
             mask=live[:, None] & (cols < n)[None, :])  # fmt: skip


def ptpc_experts_launches(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, groups: Groups, dtype: torch.dtype
) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.ptpc_experts."""
    (rows, k), n, places, count = x.shape, w.shape[1], len(groups.ids), groups.tiles.shape[1]
    y = torch.empty(places, n, dtype=dtype, device=x.device)
    few = groups.height == 64
    block_n, warps, stages = (64, 4, 3) if few else (128, 8, 2)
    block_k = min(power_of_2(k, 32), 128)
    constants = {
        "WHOLE_K": k % block_k == 0, "BLOCK_M": groups.height, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": 8
    }  # fmt: skip
    args = (x.contiguous(), w, x_scale, w_scale, y, groups.order, groups.tiles, count, places // max(rows, 1), n, k)
    grid = (count * ceil_div(n, block_n),)
    return y, [
        Launch(kernel=ptpc_experts_kernel, grid=grid, args=args, constants=constants, warps=warps, stages=stages)
    ]


def ptpc_experts(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, groups: Groups, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    y, launches = ptpc_experts_launches(x, x_scale, w, w_scale, groups, dtype)
    run_all(launches)
    return y


def mx_experts_launches(x: Tensor, w: Tensor, w_scale: Tensor, groups: Groups) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.mx_experts."""
    (rows, k), n, places, count = x.shape, w.shape[1], len(groups.ids), groups.tiles.shape[1]
    y = torch.empty(places, n, dtype=x.dtype, device=x.device)
    packed, height = w.shape[2] < k, groups.height
    block_n = 32 if x.dtype == torch.float32 else 64 if height < 128 else 128
    block_k = min(power_of_2(w.shape[2], 32), 32 if x.dtype == torch.float32 else 64)
    constants = {
        "PACKED": packed, "WHOLE_K": w.shape[2] % block_k == 0, "BLOCK_M": height, "BLOCK_N": block_n,
        "BLOCK_K": block_k, "GROUP": 8,
    }  # fmt: skip
    args = (x.contiguous(), w, w_scale, y, groups.order, groups.tiles, count, places // max(rows, 1), n, k)
    grid = (count * ceil_div(n, block_n),)
    warps = 8 if height == 128 else 4
    return y, [Launch(kernel=mx_experts_kernel, grid=grid, args=args, constants=constants, warps=warps, stages=2)]


def mx_experts(x: Tensor, w: Tensor, w_scale: Tensor, groups: Groups) -> Tensor:
    y, launches = mx_experts_launches(x, w, w_scale, groups)
    run_all(launches)
    return y


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

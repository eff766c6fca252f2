"""PTPC-FP8: rows quantised at run time, then an fp8 matrix product with both scales applied in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import FP8_MAX, to_fp8
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all

FP8 = torch.float8_e4m3fn


@triton.jit
def quantise_rows_kernel(x, codes, scales, k, BLOCK_K: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK_K)
    amax = tl.full((BLOCK_K,), 0.0, tl.float32)
    bad = tl.full((BLOCK_K,), 0, tl.int32)
    for start in range(0, k, BLOCK_K):
        value = tl.load(x + row * k + start + at, mask=start + at < k, other=0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.abs(value))
        bad |= (value != value).to(tl.int32)
    scale = tl.div_rn(tl.max(amax, 0), FP8_MAX)
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.where((tl.max(bad, 0) > 0) | (scale == float("inf")), float("nan"), scale)
    tl.store(scales + row, scale)
    for start in range(0, k, BLOCK_K):
        inside = start + at < k
        value = tl.load(x + row * k + start + at, mask=inside, other=0.0).to(tl.float32)
        code = to_fp8(tl.div_rn(value, tl.full((BLOCK_K,), scale, tl.float32)))
        tl.store(codes + row * k + start + at, code.to(tl.float8e4nv, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["m", "n"])
def ptpc_matmul_kernel(x, w, x_scale, w_scale, y, m, n, k, WHOLE_K: tl.constexpr, BLOCK_M: tl.constexpr,
                       BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    # Programs go down GROUP row tiles before the next column tile, so that a weight tile is read while it is cached.
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    inside = pid % (GROUP * tiles_n)
    rows = (first + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.arange(0, BLOCK_K)
    x_at = x + rows.to(tl.int64)[:, None] * k + at[None, :]
    w_at = w + cols.to(tl.int64)[None, :] * k + at[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        if WHOLE_K:
            a = tl.load(x_at + start, mask=(rows < m)[:, None], other=0.0)
            b = tl.load(w_at + start, mask=(cols < n)[None, :], other=0.0)
        else:
            a = tl.load(x_at + start, mask=(rows < m)[:, None] & (start + at < k)[None, :], other=0.0)
            b = tl.load(w_at + start, mask=(cols < n)[None, :] & (start + at < k)[:, None], other=0.0)
        # Hopper's fp8 instruction keeps fewer bits than float32: add its sums up in float32 after every tile.
        acc = tl.dot(a, b, acc, max_num_imprecise_acc=BLOCK_K)
    sx = tl.load(x_scale + rows, mask=rows < m, other=0.0)
    sw = tl.load(w_scale + cols, mask=cols < n, other=0.0)
    out = acc * sx[:, None] * sw[None, :]
    tl.store(y + rows.to(tl.int64)[:, None] * n + cols[None, :], out.to(y.dtype.element_ty),
             mask=(rows < m)[:, None] & (cols < n)[None, :])  # fmt: skip


def quantise_rows_launches(x: Tensor) -> tuple[Tensor, Tensor, list[Launch]]:
    """See engine.kernels.quantise_rows."""
    m, k = x.shape
    codes = torch.empty(m, k, dtype=FP8, device=x.device)
    scales = torch.empty(m, 1, dtype=torch.float32, device=x.device)
    constants = {"BLOCK_K": min(power_of_2(k, 16), 2048)}
    args = (x.contiguous(), codes, scales, k)
    launch = Launch(kernel=quantise_rows_kernel, grid=(m,), args=args, constants=constants)
    return codes, scales, [launch]


def ptpc_matmul_launches(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.ptpc_matmul."""
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=dtype, device=x.device)
    if m <= 64:  # not fewer rows: a Hopper multiplies fp8 in tiles of 64, and Triton turns smaller ones into half
        block_m, block_n, warps, stages = 64, 64, 4, 3
    else:
        block_m, block_n, warps, stages = 128, 128, 8, 2
    block_k = min(power_of_2(k, 32), 128)
    constants = {"WHOLE_K": k % block_k == 0, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": 8}
    grid = (ceil_div(m, block_m) * ceil_div(n, block_n),)
    args = (x.contiguous(), w.contiguous(), x_scale, w_scale, y, m, n, k)
    return y, [Launch(kernel=ptpc_matmul_kernel, grid=grid, args=args, constants=constants, warps=warps, stages=stages)]


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales, launches = quantise_rows_launches(x)
    run_all(launches)
    return codes, scales


def ptpc_matmul(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, dtype: torch.dtype) -> Tensor:
    y, launches = ptpc_matmul_launches(x, x_scale, w, w_scale, dtype)
    run_all(launches)
    return y


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

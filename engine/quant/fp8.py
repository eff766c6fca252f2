"""FP8 (E4M3) in both dialects, bit for bit: e4m3fn (OCP: NVIDIA, gfx950) and e4m3fnuz (gfx942).

A byte means half as much in fnuz as in fn, where both have it: bias 8 instead of 7. fnuz has no -0, its one
NaN is 0x80, and its largest number is 240 instead of 448.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_FNUZ = torch.float8_e4m3fnuz
FP8_MAX = torch.finfo(FP8).max  # 448
CAST_BELOW = 4096
DIALECTS = {"e4m3fn": FP8, "e4m3fnuz": FP8_FNUZ}


def cast_fp8(x: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """Codes (`dtype`) of the numbers nearest to x, ties to even; beyond the range the largest. Inf becomes NaN.

    Some casts of torch saturate and some give NaN above the range, so x is clamped first. Without a scale this
    is how an fp8 index key is stored.
    """
    top = torch.finfo(dtype).max
    x = x.float()
    return torch.where(x.isinf(), torch.nan, x.clamp(-top, top)).to(dtype)


def encode_fp8(x: Tensor, dtype: torch.dtype = FP8, *, amax: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """codes [..., hd] in `dtype` and scale float32 [..., 1] of x [..., hd]: one scale a vector.

    scale = amax / the dtype's largest number, or 1 where that is 0; code = cast(clamp(x / scale)), rounded to
    nearest even. A vector with a NaN or an infinity gets a scale that decodes all of it to NaN. Of a cached head
    this is "per token and head", of a weight's rows PTPC's per-channel scale, of a hidden state the per-token one.
    amax: float32 [..., 1], where x is a part of the vector that the scale is for.
    """
    top = torch.finfo(dtype).max
    x = x.float()
    scale = (x.abs().amax(-1, keepdim=True) if amax is None else amax) / top
    scale = torch.where(scale == 0, 1.0, scale)
    return (x / scale).clamp_(-top, top).to(dtype), scale


def decode_fp8(
    codes: Tensor, scale: Tensor | float, dtype: torch.dtype = torch.float32, *, fp8: torch.dtype | None = None
) -> Tensor:
    """codes * scale [..., hd] in `dtype`, multiplied in float32.

    Takes codes as float8, or as uint8 that holds `fp8` (e4m3fn unless said).
    """
    return fp8_values(codes, fp8).mul_(scale).to(dtype)


def fp8_values(codes: Tensor, fp8: torch.dtype | None = None) -> Tensor:
    """float32 [...] of codes, float8 or uint8 that holds `fp8` (e4m3fn unless said). New memory.

    By a table: a cast of more than some hundred codes takes a CPU several times as long.
    """
    table = _table(codes.device, fp8 or (FP8 if codes.dtype == torch.uint8 else codes.dtype))
    return table.index_select(0, codes.view(torch.uint8).flatten().int()).view(codes.shape)


def spread_fp8(codes: Tensor) -> Tensor:
    """float16 [...] of uint8 codes [...]: each number over 256 for e4m3fn, over 128 for e4m3fnuz; NaN is lost.

    The bits of a code, moved, are those of a float16 with another bias, subnormal numbers too. A third of the time of
    a look-up on a CPU. For codes that have a scale: it is NaN where a code is.
    """
    bits = codes.view(torch.int8).to(torch.int16)  # the sign goes into all upper bits
    return bits.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)


def round_fp8(x: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """What cast_fp8 and back gives of finite x or NaN, as float32.

    On a CPU the way back costs more than all else from some thousand numbers on, so these are rounded by adding and
    taking away 1.5 * 2^23 steps. The step between neighbours is an eighth of the power of two at or below |x|, and one
    size from the subnormal numbers to the smallest normal ones.
    """
    top = torch.finfo(dtype).max
    return round_fp8_(x.float().clamp(-top, top), dtype)


def round_fp8_(x: Tensor, dtype: torch.dtype) -> Tensor:
    """round_fp8 of float32 x within the range (or nearer to its end than to a next number); may overwrite x."""
    if x.numel() < CAST_BELOW or x.device.type != "cpu":
        return x.to(dtype).float()
    least = torch.finfo(dtype).smallest_normal
    power = (x.abs().clamp_(min=least).view(torch.int32) & 0x7F800000).view(torch.float32)
    big = power.mul_(1.5 * 2.0**20)
    return x.add_(big).sub_(big)


def fn_to_fnuz(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The same numbers in the other dialect: codes e4m3fnuz, and `scale` doubled.

    codes: e4m3fn, or uint8 that holds it, without NaN. scale: float, doubled; or uint8 E8M0, one more (0 and 0xFF stay,
    0xFE is the most). Byte 0x80 (-0) becomes 0x00, every other byte stays. Raises ValueError for a NaN code.
    """
    raw = codes.view(torch.uint8)
    if bool(((raw & 0x7F) == 0x7F).any()):
        raise ValueError("e4m3fn codes hold a NaN (0x7F or 0xFF), which would become a number in e4m3fnuz")
    out = torch.where(raw == 0x80, 0, raw).view(FP8_FNUZ)
    if scale.dtype != torch.uint8:
        return out, scale * 2
    more = (scale.int() + 1).clamp(max=0xFE).to(torch.uint8)
    return out, torch.where((scale == 0) | (scale == 0xFF), scale, more)


@cache
def _table(device: torch.device, dtype: torch.dtype) -> Tensor:
    """float32 [256]: the value of each byte. A gather from it is faster than a cast on a CPU."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).float().to(device)

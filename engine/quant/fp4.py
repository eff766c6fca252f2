"""E2M1 (FP4): codes, rounding, two to a byte. NVFP4 and MXFP4 put their scales on top."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FP4_MAX = 6.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of codes 0..7; bit 3 of a code is the sign


def round_fp4(x: Tensor) -> Tensor:
    """The E2M1 value nearest to each of x (float32), ties to even codes, beyond 6 to 6. Never -0.

    The step between neighbours is half the power of two at or below |x|, and 0.5 below 2. Adding and
    taking away 1.5 * 2^23 steps leaves float32 no bits below one step, so it rounds as the format does.
    """
    x = x.clamp(-FP4_MAX, FP4_MAX)
    power = (x.abs().clamp_(min=1.0).view(torch.int32) & 0x7F800000).view(torch.float32)
    big = power * (1.5 * 2.0**22)
    return x.add_(big).sub_(big)


def pack_fp4(values: Tensor) -> Tensor:
    """uint8 [..., n / 2] of E2M1 values float32 [..., n]; element 2i is the low nibble of byte i.

    Code 8 (-0) is written as 0, and so is NaN: the scale beside it says that.
    """
    index = values.nan_to_num(nan=0.0).mul_(2.0).add_(2 * FP4_MAX).int().flatten()
    codes = _codes(values.device).index_select(0, index).view(*values.shape[:-1], values.shape[-1] // 2, 2)
    return codes[..., 0] | (codes[..., 1] << 4)


def unpack_fp4(packed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """E2M1 values [..., 2n] of packed uint8 [..., n], new memory. dtype: float32 or bf16, exact in both."""
    pairs = _pairs(packed.device, dtype).index_select(0, packed.flatten().int()).view(dtype)
    return pairs.view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _codes(device: torch.device) -> Tensor:
    """uint8 [25]: the code of an E2M1 value v, at index 2 * v + 12."""
    codes = torch.zeros(25, dtype=torch.uint8)
    for code, value in enumerate(FP4_VALUES):
        codes[12 - int(2 * value)] = code | 8
        codes[12 + int(2 * value)] = code  # last, so that 0 is code 0
    return codes.to(device)


@cache
def _pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """[256]: the two values of each byte, low nibble first, seen as one integer so that one gather moves both."""
    values = torch.tensor([*FP4_VALUES, *(-v for v in FP4_VALUES)])
    byte = torch.arange(256)
    pairs = torch.stack((values[byte & 15], values[byte >> 4]), dim=1).to(dtype)
    return pairs.view(torch.int64 if dtype == torch.float32 else torch.int32).squeeze(1).to(device)

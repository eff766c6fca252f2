"""The OCP microscaling formats, bit for bit: MXFP4 and MXFP8, one E8M0 (power of two) scale for 32 values.

How the scale is chosen from a block's largest number is not one rule; SCALE_MODES names four:

even   the exponent is raised where the largest number would else round beyond the range (ATOM's online mxfp4)
down   2^(floor(log2 amax) - emax), the OCP default; the largest number may saturate
ceil   2^(ceil(log2 amax) - emax)
up     the smallest power of two that brings amax within the range

emax is 2 for E2M1 and 8 for E4M3. A scale byte e means 2^(e - 127), 0 included; 0xFF is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.fp4 import FP4_MAX, pack_fp4, round_fp4, unpack_fp4
from engine.quant.fp8 import FP8, FP8_MAX, decode_fp8

MX_BLOCK = 32
SCALE_MODES = ("even", "down", "ceil", "up")
E8M0_NAN = 0xFF
_MANTISSA = 0x7FFFFF
_EVEN = {FP4_MAX: 0x200000, FP8_MAX: 0x100000}  # what carries from the middle of the last step on: 7 of 8, 480 of 512
_TOP = {FP4_MAX: 0x400000, FP8_MAX: 0x600000}  # mantissa of the largest number: 1.5 and 1.75
_EMAX = {FP4_MAX: 2, FP8_MAX: 8}


def e8m0_scales(amax: Tensor, largest: float, mode: str) -> Tensor:
    """Scale bytes uint8 of blocks with largest numbers `amax` float32. largest: of the element format, 6 or 448.

    0 for a block of zeros, 0xFF for one with a NaN or an infinity. Raises KeyError for another `largest`, ValueError
    for an unknown mode.
    """
    bits = amax.float().view(torch.int32)
    exponent, mantissa = bits >> 23, bits & _MANTISSA
    if mode == "down":
        raised = torch.zeros_like(bits)
    elif mode == "even":
        raised = (mantissa + _EVEN[largest]) >> 23
    elif mode == "ceil":
        raised = (mantissa > 0).int()
    elif mode == "up":
        raised = (mantissa > _TOP[largest]).int()
    else:
        raise ValueError(f"unknown scale mode {mode!r}; use one of {', '.join(SCALE_MODES)}")
    found = (exponent + raised - _EMAX[largest]).clamp_(min=0)  # float32 never asks for more than 0xFD
    return torch.where(amax.isfinite(), found, E8M0_NAN).to(torch.uint8)


def decode_e8m0(scales: Tensor) -> Tensor:
    """float32 values of scale bytes uint8; 0 is 2^-127, a subnormal number, and 0xFF NaN."""
    e = scales.int()
    bits = torch.where(e == 0, 0x00400000, e << 23)
    return torch.where(e == E8M0_NAN, torch.nan, bits.view(torch.float32))


def e8m0_values(amax: Tensor, largest: float, mode: str) -> Tensor:
    """decode_e8m0(e8m0_scales(...)) of float32 amax, in a third of its operations: for activations."""
    bits = amax.view(torch.int32)
    if mode == "up":
        bits = bits + (_MANTISSA - _TOP[largest])
    elif mode == "ceil":
        bits = bits + _MANTISSA
    elif mode == "even":
        bits = bits + _EVEN[largest]
    scale = (bits & 0x7F800000).sub_(_EMAX[largest] << 23).clamp_(min=0x00400000).view(torch.float32)
    return scale.add_(amax - amax)  # NaN where amax is no number


def encode_mxfp4(x: Tensor, mode: str = "even") -> tuple[Tensor, Tensor]:
    """packed uint8 [..., n/2] and scale bytes uint8 [..., n/32] of x [..., n].

    Values round to nearest even and saturate at 6; code 8 (-0) is written as 0. Raises ValueError unless n is a
    multiple of 32.
    """
    blocks, scales = _blocks(x, FP4_MAX, mode, "mxfp4")
    return pack_fp4(round_fp4(blocks)).view(*x.shape[:-1], x.shape[-1] // 2), scales


def decode_mxfp4(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., n] in `dtype` of packed uint8 [..., n/2] and scale bytes uint8 [..., n/32]."""
    values = unpack_fp4(packed).view(*scales.shape, MX_BLOCK)
    return values.mul_(decode_e8m0(scales).unsqueeze(-1)).view(*packed.shape[:-1], 2 * packed.shape[-1]).to(dtype)


def encode_mxfp8(x: Tensor, mode: str = "down") -> tuple[Tensor, Tensor]:
    """codes float8_e4m3fn [..., n] and scale bytes uint8 [..., n/32] of x [..., n]; saturates at 448.

    Raises ValueError unless n is a multiple of 32.
    """
    blocks, scales = _blocks(x, FP8_MAX, mode, "mxfp8")
    return blocks.clamp_(-FP8_MAX, FP8_MAX).to(FP8).view(x.shape), scales


def decode_mxfp8(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., n] in `dtype` of codes [..., n] (float8_e4m3fn, or uint8 holding it) and scale bytes uint8 [..., n/32]."""
    values = decode_fp8(codes.reshape(*scales.shape, MX_BLOCK), 1.0)
    return values.mul_(decode_e8m0(scales).unsqueeze(-1)).view(codes.shape).to(dtype)


def _blocks(x: Tensor, largest: float, mode: str, name: str) -> tuple[Tensor, Tensor]:
    """x / scale float32 [..., blocks, 32] and the scale bytes [..., blocks]. A bad block is all NaN."""
    if x.shape[-1] % MX_BLOCK:
        raise ValueError(f"{name} needs a multiple of {MX_BLOCK} values, not {x.shape[-1]}")
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // MX_BLOCK, MX_BLOCK)
    scales = e8m0_scales(blocks.abs().amax(-1), largest, mode)
    return blocks / decode_e8m0(scales).unsqueeze(-1), scales

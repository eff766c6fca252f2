"""NVFP4, bit for bit: E2M1 codes, one E4M3 scale for each block of 16, one float32 scale for the tensor.

The formula is vLLM's nvfp4 emulation. The tensor's scale is named by its direction, since its two forms are
reciprocals: `global_scale_enc` multiplies before encoding, `global_scale_dec` after decoding (checkpoints store
the latter as `weight_scale_2`). A cached vector arrives alone, so a tensor's largest number is unknown and both are
1 there unless a constant is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.fp4 import FP4_MAX, pack_fp4, round_fp4, unpack_fp4
from engine.quant.fp8 import FP8, FP8_MAX, fp8_values

FP4_BLOCK = 16


def nvfp4_global_scale(x: Tensor) -> tuple[float, float]:
    """(global_scale_enc, global_scale_dec) of a whole tensor: 448 * 6 / amax and its reciprocal; 1 for zeros.

    Both are float32 numbers. Raises ValueError where x holds a NaN or an infinity.
    """
    amax = x.float().abs().amax() if x.numel() else torch.zeros(())
    if not bool(amax.isfinite()):
        raise ValueError("an nvfp4 global scale of a tensor with a NaN or an infinity")
    enc = FP8_MAX * FP4_MAX / amax
    if not bool(enc.isfinite()):
        return 1.0, 1.0
    return float(enc), float(1.0 / enc)


def encode_nvfp4(x: Tensor, *, global_scale_enc: float = 1.0) -> tuple[Tensor, Tensor]:
    """packed uint8 [..., hd/2] and block scales float8_e4m3fn [..., hd/16] of x [..., hd].

    Element 2i is the low nibble of byte i. The scale is rounded before x is divided by it, values round
    to nearest even and saturate at 6, and a block whose scale underflows becomes zero. Code 8 (-0) is
    written as 0. A block with a NaN or an infinity gets a NaN scale. Raises ValueError unless hd is a multiple of 16.
    """
    values, scales = nvfp4_values(x, global_scale_enc)
    return pack_fp4(values).view(*x.shape[:-1], x.shape[-1] // 2), scales.squeeze(-1)


def decode_nvfp4(
    packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32, *, global_scale_dec: float = 1.0
) -> Tensor:
    """[..., hd] in `dtype` of packed uint8 [..., hd/2] and scales [..., hd/16] (float8, or uint8 holding it).

    A code times an E4M3 scale has at most 6 significant bits, so bf16 holds it exactly too (where the
    global scale is a power of two).
    """
    values = unpack_fp4(packed, dtype).view(*scales.shape, FP4_BLOCK)
    factor = fp8_values(scales).to(dtype)
    if global_scale_dec != 1.0:
        factor = factor.mul_(global_scale_dec)
    return values.mul_(factor.unsqueeze(-1)).view(*packed.shape[:-1], 2 * packed.shape[-1])


def nvfp4_values(x: Tensor, global_scale_enc: float = 1.0) -> tuple[Tensor, Tensor]:
    """E2M1 values float32 [..., blocks, 16], before the scale, and scales float8 [..., blocks, 1]."""
    if x.shape[-1] % FP4_BLOCK:
        raise ValueError(f"nvfp4 needs a multiple of {FP4_BLOCK} values, not {x.shape[-1]}")
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // FP4_BLOCK, FP4_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = (amax if global_scale_enc == 1.0 else amax * global_scale_enc) / FP4_MAX
    scale = torch.where(amax.isinf(), torch.nan, scale.clamp_(max=FP8_MAX)).to(FP8)
    factor = scale.float()
    if global_scale_enc != 1.0:
        factor = factor * (1.0 / torch.tensor(global_scale_enc, dtype=torch.float32)).item()
    factor = torch.where(factor == 0, 0.0, 1.0 / factor)
    return round_fp4(blocks * factor), scale

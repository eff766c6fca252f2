"""Storage formats of cached keys and values, bit for bit, in plain torch. Works on any device.

fp8     E4M3 with one float32 scale for each vector of head_dim ("per token and head").
nvfp4   E2M1 codes, two to a byte, with one E4M3 scale for each block of 16 values.

NaN and infinity are never stored as a finite number. fp8 turns the whole vector that holds one into
NaN, nvfp4 the whole block of 16; float32 and bf16 keep them as they are. Finite values beyond a
format's range saturate (fp8 has none: its scale covers float32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max  # 448
FP4_MAX = 6.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of codes 0..7; bit 3 of a code is the sign
FP4_BLOCK = 16
GLOBAL_SCALE_DEC = 1.0  # stored value * block scale * this = value; a KV record carries none, so 1


def encode_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """codes float8_e4m3fn [..., hd] and scale float32 [..., 1] of x [..., hd].

    scale = amax / 448, or 1 where that is 0; code = cast(clamp(x / scale)), rounded to nearest even.
    A vector with a NaN or an infinity gets a scale that decodes all of it to NaN.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / FP8_MAX
    scale = torch.where(scale == 0, 1.0, scale)
    return (x / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8), scale


def cast_fp8(x: Tensor) -> Tensor:
    """float8_e4m3fn of x without a scale: rounded to nearest even, finite values beyond 448 saturate."""
    x = x.float()
    return torch.where(x.isfinite(), x.clamp(-FP8_MAX, FP8_MAX), torch.nan).to(FP8)


def decode_fp8(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """codes * scale [..., hd] in `dtype`, multiplied in float32. Takes codes as float8 or as uint8."""
    index = codes.view(torch.uint8).flatten().int()
    return _fp8_table(codes.device).index_select(0, index).view(codes.shape).mul_(scale).to(dtype)


def encode_nvfp4(x: Tensor, global_scale_dec: float = GLOBAL_SCALE_DEC) -> tuple[Tensor, Tensor]:
    """packed uint8 [..., hd/2] and block scales float8_e4m3fn [..., hd/16] of x [..., hd].

    Element 2i is the low nibble of byte i. The scale is rounded before x is divided by it, values round
    to nearest even and saturate at 6, and a block whose scale underflows becomes zero. Code 8 (-0) is
    written as 0. A block with a NaN or an infinity gets a NaN scale. The formula is vLLM's nvfp4
    emulation with g = 1 / global_scale_dec. Raises ValueError unless hd is a multiple of 16.
    """
    values, scales = _nvfp4_values(x, global_scale_dec)
    index = values.nan_to_num_(nan=0.0).mul_(2.0).add_(2 * FP4_MAX).int().flatten()
    codes = _fp4_codes(x.device).index_select(0, index).view(*x.shape[:-1], x.shape[-1] // 2, 2)
    return codes[..., 0] | (codes[..., 1] << 4), scales.squeeze(-1)


def decode_nvfp4(
    packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32, global_scale_dec: float = GLOBAL_SCALE_DEC
) -> Tensor:
    """[..., hd] in `dtype` of packed uint8 [..., hd/2] and scales [..., hd/16] (float8, or uint8 holding it).

    A code times an E4M3 scale has at most 6 significant bits, so bf16 holds it exactly too (where the
    global scale is a power of two).
    """
    pairs = _fp4_pairs(packed.device, dtype).index_select(0, packed.flatten().int()).view(dtype)
    factor = scales.view(FP8).to(dtype).mul_(global_scale_dec).unsqueeze(-1)
    return pairs.view(*scales.shape, FP4_BLOCK).mul_(factor).view(*packed.shape[:-1], 2 * packed.shape[-1])


def fake_fp8(x: Tensor) -> Tensor:
    """decode(encode(x)) in float32, with the gradient of the identity."""
    return _FakeFP8.apply(x)  # pyright: ignore[reportReturnType]


def fake_nvfp4(x: Tensor) -> Tensor:
    """decode(encode(x)) in float32, with the gradient of the identity; the codes are not packed."""
    return _FakeNVFP4.apply(x)  # pyright: ignore[reportReturnType]


class _FakeFP8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return decode_fp8(*encode_fp8(x))

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class _FakeNVFP4(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        values, scales = _nvfp4_values(x, GLOBAL_SCALE_DEC)
        return values.mul_(scales.float()).view(x.shape)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


def _nvfp4_values(x: Tensor, global_scale_dec: float) -> tuple[Tensor, Tensor]:
    """E2M1 values float32 [..., blocks, 16], before the scale, and scales float8 [..., blocks, 1]."""
    if x.shape[-1] % FP4_BLOCK:
        raise ValueError(f"nvfp4 needs a multiple of {FP4_BLOCK} values, not {x.shape[-1]}")
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // FP4_BLOCK, FP4_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = (amax / (FP4_MAX * global_scale_dec)).clamp_(max=FP8_MAX)
    scale = torch.where(amax.isinf(), torch.nan, scale).to(FP8)
    factor = scale.float() * global_scale_dec
    factor = torch.where(factor == 0, 0.0, 1.0 / factor)
    return round_fp4(blocks * factor), scale


def round_fp4(x: Tensor) -> Tensor:
    """The E2M1 value nearest to each of x (float32), ties to even codes, beyond 6 to 6. Never -0.

    The step between neighbours is half the power of two at or below |x|, and 0.5 below 2. Adding and
    taking away 1.5 * 2^23 steps leaves float32 no bits below one step, so it rounds as the format does.
    """
    x = x.clamp(-FP4_MAX, FP4_MAX)
    power = (x.abs().clamp_(min=1.0).view(torch.int32) & 0x7F800000).view(torch.float32)
    big = power * (1.5 * 2.0**22)
    return x.add_(big).sub_(big)


@cache
def _fp8_table(device: torch.device) -> Tensor:
    """float32 [256]: the value of each E4M3 byte. A gather from it is faster than a cast on a CPU."""
    return torch.arange(256, dtype=torch.uint8).view(FP8).float().to(device)


@cache
def _fp4_codes(device: torch.device) -> Tensor:
    """uint8 [25]: the code of an E2M1 value v, at index 2 * v + 12."""
    codes = torch.zeros(25, dtype=torch.uint8)
    for code, value in enumerate(FP4_VALUES):
        codes[12 - int(2 * value)] = code | 8
        codes[12 + int(2 * value)] = code  # last, so that 0 is code 0
    return codes.to(device)


@cache
def _fp4_pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """[256]: the two values of each byte, low nibble first, seen as one integer so that one gather moves both."""
    values = torch.tensor([*FP4_VALUES, *(-v for v in FP4_VALUES)])
    byte = torch.arange(256)
    pairs = torch.stack((values[byte & 15], values[byte >> 4]), dim=1).to(dtype)
    return pairs.view(torch.int64 if dtype == torch.float32 else torch.int32).squeeze(1).to(device)


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a stored vector: `width` numbers of `dtype`."""

    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.width * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFormat:
    """How one vector of head_dim is kept in the cache.

    `encode` makes the tensors of `parts`, each [..., width], from [..., head_dim]; `decode` undoes it in
    the dtype asked for. Neither mixes vectors, so leading dims (rows, kv_heads) are free.
    """

    name: str
    parts: Callable[[int], tuple[Part, ...]]
    encode: Callable[[Tensor], tuple[Tensor, ...]]
    decode: Callable[[tuple[Tensor, ...], torch.dtype], Tensor]

    def bytes_per_vector(self, head_dim: int) -> int:
        return sum(part.nbytes for part in self.parts(head_dim))


def _plain(name: str, dtype: torch.dtype) -> KVFormat:
    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim, dtype),),
        encode=lambda x: (x.to(dtype),),
        decode=lambda stored, out: stored[0].to(out),
    )


def _encode_fp8_bytes(x: Tensor) -> tuple[Tensor, ...]:
    codes, scale = encode_fp8(x)
    return codes.view(torch.uint8), scale


def _encode_nvfp4_bytes(x: Tensor) -> tuple[Tensor, ...]:
    packed, scales = encode_nvfp4(x)
    return packed, scales.view(torch.uint8)


# E4M3 is kept as uint8, for which every device has gather and scatter.
FORMATS: dict[str, KVFormat] = {
    "float32": _plain("float32", torch.float32),
    "bf16": _plain("bf16", torch.bfloat16),
    "fp8": KVFormat(
        name="fp8",
        parts=lambda head_dim: (Part(head_dim, torch.uint8), Part(1, torch.float32)),
        encode=_encode_fp8_bytes,
        decode=lambda stored, out: decode_fp8(stored[0], stored[1], out),
    ),
    "nvfp4": KVFormat(
        name="nvfp4",
        parts=lambda head_dim: (Part(head_dim // 2, torch.uint8), Part(head_dim // FP4_BLOCK, torch.uint8)),
        encode=_encode_nvfp4_bytes,
        decode=lambda stored, out: decode_nvfp4(stored[0], stored[1], out),
    ),
}


# The index key is normed, so that E4M3 holds it without a scale. FP4 is in blocks of 16 (the "nv" flavour).
INDEX_FORMATS: dict[str, KVFormat] = {
    "float32": FORMATS["float32"],
    "bf16": FORMATS["bf16"],
    "fp8": KVFormat(
        name="fp8",
        parts=lambda dim: (Part(dim, torch.uint8),),
        encode=lambda x: (cast_fp8(x).view(torch.uint8),),
        decode=lambda stored, out: _fp8_table(stored[0].device)[stored[0].int()].to(out),
    ),
    "nvfp4": FORMATS["nvfp4"],
}

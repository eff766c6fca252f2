"""Formats of cached vectors by name: FORMATS for keys and values, INDEX_FORMATS for the indexer's keys.

NaN and infinity are never stored as a finite number. fp8 turns the whole vector that holds one into NaN, the index's
fp8 that number alone, nvfp4 and mxfp4 their whole block; float32 and bf16 keep them as they are. Finite values beyond
a format's range saturate (fp8 of keys and values has none: its scale covers float32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from engine.quant.fp8 import FP8, FP8_FNUZ, cast_fp8, decode_fp8, encode_fp8, spread_fp8
from engine.quant.mx import MX_BLOCK, decode_mxfp4, encode_mxfp4
from engine.quant.nvfp4 import FP4_BLOCK, decode_nvfp4, encode_nvfp4


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
    the dtype asked for. Neither mixes vectors, so leading dims (rows, kv_heads) are free. The first part holds
    the codes, those after it the scales. `block`: head_dim has to be a multiple of it.
    """

    name: str
    parts: Callable[[int], tuple[Part, ...]]
    encode: Callable[[Tensor], tuple[Tensor, ...]]
    decode: Callable[[tuple[Tensor, ...], torch.dtype], Tensor]
    block: int = 1

    def bytes_per_vector(self, head_dim: int) -> int:
        return sum(part.nbytes for part in self.parts(head_dim))

    def scale_bytes(self, head_dim: int) -> int:
        """Of bytes_per_vector, those of scales."""
        return sum(part.nbytes for part in self.parts(head_dim)[1:])


def _plain(name: str, dtype: torch.dtype) -> KVFormat:
    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim, dtype),),
        encode=lambda x: (x.to(dtype),),
        decode=lambda stored, out: stored[0].to(out),
    )


# E4M3 is kept as uint8, for which every device has gather and scatter.
def _fp8(name: str, dtype: torch.dtype) -> KVFormat:
    def encode(x: Tensor) -> tuple[Tensor, ...]:
        codes, scale = encode_fp8(x, dtype)
        return codes.view(torch.uint8), scale

    left_out = 256.0 if dtype is FP8 else 128.0  # powers of two: the products below are those of decode_fp8

    def decode(stored: tuple[Tensor, ...], out: torch.dtype) -> Tensor:
        codes, scale = stored
        if codes.device.type != "cpu":
            return decode_fp8(codes, scale, out, fp8=dtype)
        return spread_fp8(codes).float().mul_(scale * left_out).to(out)

    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim, torch.uint8), Part(1, torch.float32)),
        encode=encode,
        decode=decode,
    )


def _index_fp8(name: str, dtype: torch.dtype) -> KVFormat:
    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim, torch.uint8),),
        encode=lambda x: (cast_fp8(x, dtype).view(torch.uint8),),
        decode=lambda stored, out: decode_fp8(stored[0], 1.0, out, fp8=dtype),
    )


@cache
def _nvfp4(name: str, global_scale_dec: float = 1.0) -> KVFormat:
    enc = 1.0 / global_scale_dec

    def encode(x: Tensor) -> tuple[Tensor, ...]:
        packed, scales = encode_nvfp4(x, global_scale_enc=enc)
        return packed, scales.view(torch.uint8)

    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim // 2, torch.uint8), Part(head_dim // FP4_BLOCK, torch.uint8)),
        encode=encode,
        decode=lambda stored, out: decode_nvfp4(stored[0], stored[1], out, global_scale_dec=global_scale_dec),
        block=FP4_BLOCK,
    )


def _mxfp4(name: str) -> KVFormat:
    return KVFormat(
        name=name,
        parts=lambda head_dim: (Part(head_dim // 2, torch.uint8), Part(head_dim // MX_BLOCK, torch.uint8)),
        encode=encode_mxfp4,
        decode=lambda stored, out: decode_mxfp4(stored[0], stored[1], out),
        block=MX_BLOCK,
    )


class _Formats(dict[str, KVFormat]):
    """A table in which `nvfp4@G` is nvfp4 with the constant global_scale_dec G."""

    def __missing__(self, name: str) -> KVFormat:
        head, mark, number = name.partition("@")
        if head != "nvfp4" or not mark:
            raise KeyError(name)
        return _nvfp4(name, float(number))


FORMATS: dict[str, KVFormat] = _Formats({
    "float32": _plain("float32", torch.float32),
    "bf16": _plain("bf16", torch.bfloat16),
    "fp8": _fp8("fp8", FP8),
    "fp8_fnuz": _fp8("fp8_fnuz", FP8_FNUZ),
    "nvfp4": _nvfp4("nvfp4"),
})  # fmt: skip
INDEX_FORMATS: dict[str, KVFormat] = {
    "float32": _plain("float32", torch.float32),
    "bf16": _plain("bf16", torch.bfloat16),
    "fp8": _index_fp8("fp8", FP8),
    "fp8_fnuz": _index_fp8("fp8_fnuz", FP8_FNUZ),
    "fp4_nv": _nvfp4("fp4_nv"),
    "fp4_mx": _mxfp4("fp4_mx"),
}

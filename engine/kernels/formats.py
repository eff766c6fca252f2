"""Encode and decode inside kernels: the formats of engine/quant.py, bit for bit for finite numbers.

Divisions are the correctly rounded ones, since a scale that is off by one unit changes codes. What holds
a NaN decodes to NaN, as in the twin; which NaN byte is stored is not promised.
"""

from __future__ import annotations

import triton
import triton.language as tl

FP8_MAX = tl.constexpr(448.0)
FP4_MAX = tl.constexpr(6.0)
NAN_SCORE = tl.constexpr(-1e30)
EMPTY = tl.constexpr(-(2**63))


@triton.jit
def to_fp8(x):
    """E4M3 bytes (uint8) of float32 x, to nearest even and saturating; NaN is byte 127.

    Rounded here, so that the cast is exact and no back-end's own rounding decides a stored bit. A step is an
    eighth of the power of two at or below |x|, and 2^-9 below 2^-6; 1.5 * 2^23 steps leave float32 no finer bits.
    """
    nan, sign = x != x, (x.to(tl.int32, bitcast=True) >> 24) & 128
    x = tl.where(x > FP8_MAX, FP8_MAX, x)
    x = tl.where((x < -FP8_MAX) | nan, -FP8_MAX, x)
    power = (tl.maximum(tl.abs(x), 0.015625).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    big = power * 1572864.0
    code = ((x + big) - big).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(nan, 127, (code & 127) | sign).to(tl.uint8)


@triton.jit
def from_fp8(codes):
    """float32 of E4M3 bytes."""
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def any_nan(x, axis: tl.constexpr):
    return tl.max((x != x).to(tl.int32), axis) > 0


@triton.jit
def encode_fp8(x):
    """Bytes [R, D] and scale float32 [R] of float32 x [R, D]; twin: quant.encode_fp8."""
    scale = tl.div_rn(tl.max(tl.abs(x), 1), FP8_MAX)
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.where(any_nan(x, 1) | (scale == float("inf")), float("nan"), scale)
    spread = tl.broadcast_to(tl.expand_dims(scale, 1), x.shape)
    return to_fp8(tl.div_rn(x, spread)), scale


@triton.jit
def encode_e2m1(x):
    """Codes (uint8 0..15) nearest to float32 x, ties to even; beyond 6 is 6; never code 8; NaN is 0."""
    a = tl.abs(x)
    code = (a > 0.25).to(tl.uint8) + (a >= 0.75).to(tl.uint8) + (a > 1.25).to(tl.uint8)
    code += (a >= 1.75).to(tl.uint8) + (a > 2.5).to(tl.uint8) + (a >= 3.5).to(tl.uint8) + (a > 5.0).to(tl.uint8)
    return tl.where((x < 0.0) & (code > 0), code + 8, code).to(tl.uint8)


@triton.jit
def decode_e2m1(code):
    """float32 of codes 0..15. The three low bits are the top of a half's exponent and mantissa, 2^14 too small."""
    wide = code.to(tl.uint16)
    half = (((wide & 7) << 9) | ((wide & 8) << 12)).to(tl.uint16)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def pack_pairs(codes, R: tl.constexpr, D: tl.constexpr):
    """uint8 [R, D/2] of codes [R, D]: element 2i in the low nibble of byte i."""
    low, high = tl.split(tl.reshape(codes, (R, D // 2, 2)))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def encode_nvfp4(x, R: tl.constexpr, D: tl.constexpr):
    """Bytes uint8 [R, D/2] and scale bytes uint8 [R, D/16] of float32 x [R, D]; twin: quant.encode_nvfp4."""
    blocks = tl.reshape(x, (R, D // 16, 16))
    amax = tl.max(tl.abs(blocks), 2)
    exact = tl.div_rn(amax, FP4_MAX)
    bad = any_nan(blocks, 2) | (amax == float("inf"))
    scale = to_fp8(tl.where(bad, float("nan"), exact))
    factor = from_fp8(scale)
    inverse = tl.div_rn(tl.full(factor.shape, 1.0, tl.float32), tl.where(factor == 0.0, 1.0, factor))
    inverse = tl.where(factor == 0.0, 0.0, inverse)
    codes = encode_e2m1(blocks * tl.expand_dims(inverse, 2))
    return pack_pairs(tl.reshape(codes, (R, D)), R, D), scale


@triton.jit
def encode_mxfp4(x, R: tl.constexpr, D: tl.constexpr):
    """Bytes uint8 [R, D/2] and E8M0 bytes uint8 [R, D/32] of float32 x [R, D]; twin: quant.mx.encode_mxfp4, "up".

    Scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)): the quotient's exponent, one more where its mantissa is not 0.
    """
    blocks = tl.reshape(x, (R, D // 32, 32))
    amax = tl.max(tl.abs(blocks), 2)
    bad = any_nan(blocks, 2) | (amax == float("inf"))
    least: tl.constexpr = 6.0 * 2.0**-126
    bits = tl.div_rn(tl.maximum(amax, least), FP4_MAX).to(tl.int32, bitcast=True)
    power = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    power = tl.where(amax == 0.0, 0, power)
    inverse = tl.where(amax == 0.0, 0, (254 - power) << 23).to(tl.float32, bitcast=True)
    codes = encode_e2m1(blocks * tl.expand_dims(inverse, 2))
    codes = tl.where(tl.expand_dims(bad, 2), 0, codes).to(tl.uint8)
    return pack_pairs(tl.reshape(codes, (R, D)), R, D), tl.where(bad, 255, power).to(tl.uint8)


@triton.jit
def from_e8m0(byte):
    """float32 of E8M0 bytes: 2^(byte - 127), 255 is NaN."""
    wide = byte.to(tl.int32)
    bits = tl.where(wide == 0, 0x00400000, wide << 23)
    return tl.where(wide == 255, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit
def load_rows(base, vector, D: tl.constexpr, P: tl.constexpr):
    """Rows `vector` int64 [N] of D elements each, as [N, P]; what is beyond D is 0. No mask where there is nothing."""
    at = tl.arange(0, P)
    if P == D:
        return tl.load(base + vector[:, None] * D + at[None, :])
    else:
        return tl.load(base + vector[:, None] * D + at[None, :], mask=(at < D)[None, :], other=0)


@triton.jit
def spread_scales(scales, R: tl.constexpr, COUNT: tl.constexpr, TIMES: tl.constexpr):
    """[R, COUNT * TIMES] of [R, COUNT]: each scale once for every byte of its block."""
    return tl.reshape(tl.broadcast_to(tl.expand_dims(scales, 2), (R, COUNT, TIMES)), (R, COUNT * TIMES))


@triton.jit
def sort_key(score, ids):
    """int64 that sorts as (score ascending, id descending): the largest key is the best score, at its lowest id.

    score: float32; ids: int32 >= 0. NaN sorts above every number, as torch.argmax has it. Above EMPTY always.
    """
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = tl.where(score != score, 0x7FFFFFFF, ordered)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def key_id(key):
    """int64 id of a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false


@triton.jit
def load_vectors(codes, scales, vector, FORMAT: tl.constexpr, D: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
                 dtype: tl.constexpr):  # fmt: skip
    """Stored vectors, K and V or index keys, [N, P] in dtype; fp4: both halves [N, P], of low and of high nibbles."""
    if (FORMAT == "nvfp4") or (FORMAT == "mxfp4"):
        size: tl.constexpr = 8 if FORMAT == "nvfp4" else 16  # bytes of a block
        packed = load_rows(codes, vector, D // 2, P)
        scale = load_rows(scales, vector, D // 2 // size, P // size)
        scale = from_fp8(scale) if FORMAT == "nvfp4" else from_e8m0(scale)
        factor = spread_scales(scale, N, P // size, size)
        low = (decode_e2m1(packed & 15) * factor).to(dtype)
        high = (decode_e2m1(packed >> 4) * factor).to(dtype)
    else:
        low = load_rows(codes, vector, D, P)
        if FORMAT == "fp8":
            low = low.to(tl.float8e4nv, bitcast=True)
        low = low.to(dtype)
        high = low
    return low, high

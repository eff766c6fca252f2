"""The number formats once more, from their definitions, in Python floats (float64): shares no code with engine.quant.

A format is a list of its non-negative numbers in the order of their codes. Where a format's formula asks for a float32
result (a division by the scale), f32() rounds it.
"""

from __future__ import annotations

import bisect
import math
import struct
from fractions import Fraction

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def f32(x: float) -> float:
    """x rounded to float32, beyond its range to an infinity."""
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def e4m3(bias: int, last: int) -> list[float]:
    """Non-negative E4M3 numbers of codes 0..last: exponent field 0 is subnormal."""
    out = []
    for code in range(last + 1):
        exponent, mantissa = code >> 3, code & 7
        out.append(mantissa / 8 * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - bias))
    return out


FN, FNUZ = e4m3(7, 0x7E), e4m3(8, 0x7F)


def nearest(x: float, values: list[float]) -> float:
    """The value nearest to x, ties to the even code, beyond the last to the last; the sign is x's. NaN stays."""
    if math.isnan(x):
        return x
    size = min(abs(x), values[-1])
    above = bisect.bisect_left(values, size)
    best = min((max(above - 1, 0), above), key=lambda i: (abs(values[i] - size), i % 2))
    return math.copysign(values[best], x)


def fp8_vector(x: list[float], values: list[float]) -> list[float]:
    """Per-vector fp8: decode(encode(x)) in float32."""
    if not all(map(math.isfinite, x)):
        return [math.nan] * len(x)
    scale = f32(max(map(abs, x)) / values[-1]) or 1.0
    return [f32(nearest(f32(v / scale), values) * scale) for v in x]


def mx_exponent(amax: float, mode: str, emax: int, largest: float) -> int:
    """The power of two that a block's scale is, by log2 of the exact number; -127 at least."""
    if amax == 0:
        return -127
    down = math.frexp(amax)[1] - 1
    ceil = down + (amax != 2.0**down)
    if mode == "down":
        found = down - emax
    elif mode == "ceil":
        found = ceil - emax
    elif mode == "up":  # the least k with amax <= largest * 2^k
        found = next(
            k for k in range(down - emax - 2, down + 3) if Fraction(amax) <= Fraction(largest) * Fraction(2) ** k
        )
    else:  # even: the step above the largest number belongs to the next binade from its middle on
        middle = {6.0: 7.0, 448.0: 480.0}[largest]
        found = down - emax + (Fraction(amax) / Fraction(2) ** (down - emax) >= Fraction(middle))
    return max(found, -127)


def mx_block(x: list[float], values: list[float], mode: str) -> list[float]:
    """decode(encode(x)) of 32 numbers with an E8M0 scale."""
    if not all(map(math.isfinite, x)):
        return [math.nan] * len(x)
    emax = math.frexp(values[-1])[1] - 1
    scale = 2.0 ** mx_exponent(max(map(abs, x)), mode, emax, values[-1])
    return [f32(nearest(f32(v / scale), values) * scale) for v in x]


def nvfp4_block(x: list[float], enc: float = 1.0) -> list[float]:
    """decode(encode(x)) of 16 numbers with an E4M3 scale and the global scale `enc`, in float32 steps."""
    if not all(map(math.isfinite, x)):
        return [math.nan] * len(x)
    dec = f32(1 / enc)
    scale = nearest(f32(f32(enc * max(map(abs, x))) / 6), FN)
    inverse = f32(1 / f32(scale * dec)) if scale else 0.0
    return [f32(nearest(f32(v * inverse), E2M1) * f32(scale * dec)) for v in x]

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.quant import (
    FORMATS,
    FP4_VALUES,
    FP8,
    decode_fp8,
    decode_nvfp4,
    encode_fp8,
    encode_nvfp4,
    fake_fp8,
    fake_nvfp4,
    round_fp4,
)

quick = settings(max_examples=50, deadline=None, derandomize=True)
vectors = st.tuples(st.integers(0, 10_000), st.sampled_from([16, 32, 64, 128]), st.integers(-12, 12))


def make(seed: int, size: int, exponent: int) -> Tensor:
    """[5, 2, size] of normal numbers times 2**exponent, some vectors thinned out to zeros."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 2, size, generator=gen) * 2.0**exponent
    x[1] *= torch.rand(2, size, generator=gen) < 0.1
    x[2] = 0
    return x


def nearest_even(x: float, values: list[float]) -> float:
    """Slow twin of a cast: values[i] is the value of code i, rising; a tie goes to the even code."""
    best = min(range(len(values)), key=lambda i: (abs(values[i] - x), i % 2))
    return values[best]


E4M3 = [float(v) for v in torch.arange(127, dtype=torch.uint8).view(FP8).float()]  # 0x7F is NaN


def slow_nvfp4(x: Tensor) -> Tensor:
    """decode(encode(x)) of [..., 16 * blocks], number by number, in float64; exact while x is float32."""
    out = []
    for block in x.reshape(-1, 16).tolist():
        scale = nearest_even(torch.tensor(max(map(abs, block))).div(6).item(), E4M3)
        inverse = torch.tensor(1 / scale).item() if scale else 0.0
        for v in block:
            scaled = torch.tensor(abs(v)).mul(inverse).item()  # a float32 product, as the format asks
            out.append(math.copysign(nearest_even(scaled, list(FP4_VALUES)) * scale, v))
    return torch.tensor(out).view(x.shape)


MIDPOINTS = [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4)]


@pytest.mark.parametrize(("x", "want"), [*MIDPOINTS, (0, 0), (6, 6), (6.5, 6), (1e9, 6), (0.2501, 0.5), (5.001, 6)])
def test_fp4_rounds_to_even_and_saturates(x: float, want: float) -> None:
    assert round_fp4(torch.tensor([x, -x])).tolist() == [want, -want]


def test_fp4_neighbours_of_every_midpoint() -> None:
    for mid, _ in MIDPOINTS:
        around = torch.tensor([mid, mid]).nextafter(torch.tensor([0.0, 9.0]))
        assert round_fp4(around).tolist() == [nearest_even(v, list(FP4_VALUES)) for v in around.tolist()]


def test_nvfp4_codes_order_and_scale() -> None:
    x = torch.tensor([6, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -6, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 0.5])
    packed, scales = encode_nvfp4(x)
    assert scales.dtype == FP8 and scales.float().tolist() == [1.0]
    assert packed.dtype == torch.uint8
    # codes 7,0 2,2 4,4 6,6 | 15,10 10,12 12,14 14,1: the first of a pair is the low nibble
    assert packed.tolist() == [0x07, 0x22, 0x44, 0x66, 0xAF, 0xCA, 0xEC, 0x1E]
    assert decode_nvfp4(packed, scales).tolist() == [6, 0, 1, 1, 2, 2, 4, 4, -6, -1, -1, -2, -2, -4, -4, 0.5]


def test_nvfp4_decodes_every_byte() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(32, 8)
    got = decode_nvfp4(packed, torch.ones(32, 1).to(FP8)).view(256, 2)
    signed = [*FP4_VALUES, *(-v for v in FP4_VALUES)]
    assert got.tolist() == [[signed[b & 15], signed[b >> 4]] for b in range(256)]


def test_nvfp4_scale_is_rounded_before_values_are_scaled() -> None:
    x = torch.full((16,), 1.0)
    x[0] = 6 * 1.05  # 1.05 rounds to the scale 1, so 6.3 saturates
    packed, scales = encode_nvfp4(x)
    assert scales.float().item() == 1.0
    assert decode_nvfp4(packed, scales).tolist() == [6.0] + [1.0] * 15


@pytest.mark.parametrize(
    ("amax", "scale", "top"),
    [(0.0, 0.0, 0.0), (6 * 2**-11, 0.0, 0.0), (6 * 2**-10, 0.0, 0.0), (6.1 * 2**-10, 2**-9, 6 * 2**-10),
     (2688.0, 448.0, 2688.0), (1e9, 448.0, 2688.0), (6 * 464.0, 448.0, 2688.0)],
)  # fmt: skip
def test_nvfp4_ends_of_the_range(amax: float, scale: float, top: float) -> None:
    x = torch.zeros(16)
    x[3] = -amax
    packed, scales = encode_nvfp4(x)
    assert scales.float().item() == scale
    y = decode_nvfp4(packed, scales)
    assert y[3].item() == -top and y.count_nonzero() == (top > 0)
    if scale == 0:
        assert not packed.any()


@pytest.mark.parametrize("value", [-1e-9, -0.0])
def test_nvfp4_has_no_negative_zero(value: float) -> None:
    x = torch.full((16,), value)
    x[0] = 6
    packed, scales = encode_nvfp4(x)
    assert packed.tolist() == [0x07] + [0] * 7
    assert not decode_nvfp4(packed, scales).signbit().any()
    assert not fake_nvfp4(x).signbit().any()


def test_nvfp4_global_scale_moves_the_range() -> None:
    x = make(0, 32, -12)
    assert not decode_nvfp4(*encode_nvfp4(x)).any()
    y = decode_nvfp4(*encode_nvfp4(x, global_scale_enc=2.0**12), global_scale_dec=2.0**-12)
    assert torch.equal(y, decode_nvfp4(*encode_nvfp4(x * 2.0**12)) * 2.0**-12)


def test_nvfp4_wants_whole_blocks() -> None:
    with pytest.raises(ValueError, match="multiple of 16 values, not 24"):
        encode_nvfp4(torch.zeros(24))


@quick
@given(vectors)
def test_nvfp4_equals_its_slow_twin(args: tuple[int, int, int]) -> None:
    x = make(*args)
    assert torch.equal(decode_nvfp4(*encode_nvfp4(x)), slow_nvfp4(x))


@quick
@given(vectors)
def test_nvfp4_error_and_idempotence(args: tuple[int, int, int]) -> None:
    x = make(*args)
    y = decode_nvfp4(*encode_nvfp4(x))
    amax = x.view(*x.shape[:-1], -1, 16).abs().amax(-1, keepdim=True)
    error = (y - x).view(*amax.shape[:-1], 16).abs()
    normal = (amax >= 6 * 2**-6) & (amax <= 2688)
    assert (error <= amax * (17 / 96)).where(normal, True).all()  # half a step of 2, scale up to 1/16 too big
    assert (error <= amax).where(amax <= 2688, True).all()
    kept = decode_nvfp4(*encode_nvfp4(y)).view_as(error)
    assert torch.equal(kept.where(normal, 0.0), y.view_as(error).where(normal, 0.0))


@quick
@given(vectors)
def test_fp8_error_and_idempotence(args: tuple[int, int, int]) -> None:
    x = make(*args)
    codes, scale = encode_fp8(x)
    y = decode_fp8(codes, scale)
    assert codes.dtype == FP8 and codes.shape == x.shape and scale.shape == (5, 2, 1)
    assert ((y - x).abs() <= torch.maximum(x.abs() / 16, scale * 2.0**-10) * (1 + 1e-5)).all()
    again, scale_again = encode_fp8(y)
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8))
    torch.testing.assert_close(scale_again, scale, rtol=2.0**-22, atol=0)


def test_fp8_vectors() -> None:
    codes, scale = encode_fp8(torch.tensor([[448.0, 17.0, 19.0, -1.0625, 2**-10, 0], [0, 0, 0, 0, 0, 0]]))
    assert scale.tolist() == [[1.0], [1.0]]
    assert codes.float().tolist() == [[448.0, 16.0, 20.0, -1.0, 0.0, 0.0], [0.0] * 6]
    assert encode_fp8(torch.tensor([896.0, 1.0]))[1].item() == 2.0


def test_fp8_decodes_every_byte_as_a_cast_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(
        decode_fp8(codes, torch.ones(1)), codes.view(FP8).float(), equal_nan=True, rtol=0, atol=0
    )
    assert decode_fp8(codes, torch.ones(1)).isnan().sum() == 2


def test_fp8_of_the_smallest_numbers_is_finite() -> None:
    x = torch.tensor([1e-45, -1e-42, 0.0, 3e-39])
    assert decode_fp8(*encode_fp8(x[:3])).isfinite().all()
    assert decode_fp8(*encode_fp8(x)).isfinite().all()
    assert decode_fp8(*encode_fp8(torch.tensor([3e38, -3e38, 1.0]))).isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_numbers_stay_visible(bad: float) -> None:
    x = torch.ones(2, 32)
    x[0, 3] = bad
    for name, fmt in FORMATS.items():
        y = fmt.decode(fmt.encode(x), torch.float32)
        assert not y[0, 3].isfinite(), name
        assert y[1].isfinite().all(), name
    assert decode_fp8(*encode_fp8(x))[0].isnan().all()
    y = decode_nvfp4(*encode_nvfp4(x))
    assert y[0, :16].isnan().all() and y[0, 16:].isfinite().all()
    assert fake_nvfp4(x)[0, :16].isnan().all() and fake_fp8(x)[0].isnan().all()


@quick
@given(vectors)
def test_fake_equals_decode_of_encode(args: tuple[int, int, int]) -> None:
    x = make(*args)
    assert torch.equal(fake_nvfp4(x).view(torch.int32), decode_nvfp4(*encode_nvfp4(x)).view(torch.int32))
    assert torch.equal(fake_fp8(x).view(torch.int32), decode_fp8(*encode_fp8(x)).view(torch.int32))


@pytest.mark.parametrize("fake", [fake_fp8, fake_nvfp4])
def test_fake_passes_gradients_through(fake) -> None:
    x = make(1, 32, 0).requires_grad_()
    before = x.detach().clone()
    up = torch.randn_like(x)
    fake(x).backward(up)
    assert torch.equal(x.detach(), before)
    assert x.grad is not None and torch.equal(x.grad, up)
    half = make(1, 32, 0).bfloat16().requires_grad_()
    fake(half).sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.bfloat16


def test_strided_and_half_inputs() -> None:
    x = make(3, 64, 0).transpose(0, 1)
    for fmt in FORMATS.values():
        want = fmt.decode(fmt.encode(x.contiguous()), torch.float32)
        assert torch.equal(fmt.decode(fmt.encode(x), torch.float32), want)
        half = fmt.decode(fmt.encode(x.bfloat16()), torch.bfloat16)
        assert half.dtype == torch.bfloat16 and half.shape == x.shape
    packed, scales = encode_nvfp4(x)
    assert torch.equal(decode_nvfp4(packed, scales, torch.bfloat16).float(), decode_nvfp4(packed, scales))


@pytest.mark.parametrize(("name", "size"), [("float32", 512), ("bf16", 256), ("fp8", 132), ("nvfp4", 72)])
def test_bytes_of_a_vector(name: str, size: int) -> None:
    fmt = FORMATS[name]
    assert fmt.name == name and fmt.bytes_per_vector(128) == size
    stored = fmt.encode(torch.randn(7, 2, 128))
    assert sum(part.nbytes for part in stored) == 7 * 2 * size
    for part, tensor in zip(fmt.parts(128), stored, strict=True):
        assert tensor.shape == (7, 2, part.width) and tensor.dtype == part.dtype


def test_no_rows_at_all() -> None:
    for fmt in FORMATS.values():
        assert fmt.decode(fmt.encode(torch.zeros(0, 2, 32)), torch.float32).shape == (0, 2, 32)


def test_an_unrounded_scale_is_seen() -> None:
    """The twin is able to fail: dividing by the unrounded scale gives other numbers."""
    x = make(5, 128, 0)
    amax = x.view(5, 2, 8, 16).abs().amax(-1, keepdim=True)
    wrong = round_fp4((x.view(5, 2, 8, 16) / (amax / 6)).nan_to_num()) * (amax / 6).to(FP8).float()
    assert not torch.equal(wrong.view_as(x), slow_nvfp4(x))

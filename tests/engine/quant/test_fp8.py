"""FP8 in both dialects against the float64 model: every byte, rounding, saturation, NaN, the conversion rule."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.quant import (
    FP8,
    FP8_FNUZ,
    INDEX_FORMATS,
    cast_fp8,
    decode_fp8,
    encode_fp8,
    fn_to_fnuz,
    quantise_rows,
    round_fp8,
)
from engine.quant.fp8 import CAST_BELOW
from tests.engine.quant import float64 as model

quick = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
near = st.floats(min_value=-600, max_value=600, width=32)
DIALECTS = [(FP8, model.FN), (FP8_FNUZ, model.FNUZ)]


def same(a: torch.Tensor, b: list[float]) -> bool:
    """Equal numbers, NaN in the same places; the sign of zero is not looked at."""
    want = torch.tensor(b, dtype=torch.float64)
    return bool(((a.double() == want) | (a.isnan() & want.isnan())).all())


@pytest.mark.parametrize(("dtype", "values", "top", "least"), [
    (FP8, model.FN, 448.0, 2.0**-9), (FP8_FNUZ, model.FNUZ, 240.0, 2.0**-10),
])  # fmt: skip
def test_every_byte_means_what_its_dialect_says(dtype, values, top, least):
    got = decode_fp8(torch.arange(256, dtype=torch.uint8), 1.0, fp8=dtype)
    assert got[: len(values)].tolist() == values and max(values) == top and values[1] == least
    assert (-got[128 : 128 + len(values)])[1:].tolist() == values[1:]
    nan = [0x7F, 0xFF] if dtype is FP8 else [0x80]
    assert got.isnan().nonzero().flatten().tolist() == nan
    assert torch.isfinite(got).sum() == 256 - len(nan)  # no infinities


def test_the_same_byte_is_half_as_much_in_fnuz():
    codes = torch.arange(1, 0x7F, dtype=torch.uint8)
    assert torch.equal(decode_fp8(codes, 1.0, fp8=FP8_FNUZ) * 2, decode_fp8(codes, 1.0))


@pytest.mark.parametrize(("dtype", "values"), DIALECTS)
@quick
@given(x=st.lists(near, min_size=1, max_size=20))
def test_casts_round_to_nearest_even_and_saturate(dtype, values, x):
    want = [model.nearest(v, values) for v in x]
    t = torch.tensor(x)
    assert same(cast_fp8(t, dtype).float(), want)
    assert same(round_fp8(t, dtype), want)
    big = t.repeat(CAST_BELOW)  # the other way of rounding
    assert same(round_fp8(big, dtype)[: len(x)], want)


@pytest.mark.parametrize(("dtype", "values"), DIALECTS)
def test_ties_between_all_neighbours(dtype, values):
    middles = [(a + b) / 2 for a, b in pairwise(values)]
    x = torch.tensor(middles)
    around = torch.stack((x, x.nextafter(torch.tensor(0.0)), x.nextafter(torch.tensor(1e9)), -x)).flatten()
    want = [model.nearest(v, values) for v in around.tolist()]
    assert same(cast_fp8(around, dtype).float(), want)
    assert same(round_fp8(around.repeat(CAST_BELOW // len(want) + 1), dtype)[: len(want)], want)


@pytest.mark.parametrize(("dtype", "values"), DIALECTS)
def test_beyond_the_range_and_bad_numbers(dtype, values):
    x = torch.tensor([464.0, 465.0, 480.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
    got = cast_fp8(x, dtype).float()
    top = values[-1]
    assert got[:5].tolist() == [top, top, top, top, -top]
    assert got[5:].isnan().all()


@pytest.mark.parametrize(("dtype", "values"), DIALECTS)
@quick
@given(x=st.lists(numbers, min_size=8, max_size=8))
def test_a_vector_with_its_scale_equals_the_model(dtype, values, x):
    t = torch.tensor(x)
    codes, scale = encode_fp8(t, dtype)
    assert same(decode_fp8(codes, scale), model.fp8_vector(x, values))
    rows, row_scale = quantise_rows(t, dtype)
    assert torch.equal(row_scale, scale) and torch.equal(rows, codes.float())


@quick
@given(x=st.lists(near, min_size=2, max_size=16))
def test_order_is_kept(x):
    t = torch.tensor(sorted(x))
    for dtype in (FP8, FP8_FNUZ):
        assert (cast_fp8(t, dtype).float().diff() >= 0).all()
        assert (decode_fp8(*encode_fp8(t, dtype)).diff() >= 0).all()


def test_conversion_of_every_code_keeps_its_number():
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    moved, scale = fn_to_fnuz(codes, torch.tensor([3.0]))
    assert scale.item() == 6.0 and moved.dtype == FP8_FNUZ
    assert torch.equal(decode_fp8(moved, scale), decode_fp8(codes, torch.tensor([3.0])))
    assert moved.view(torch.uint8)[codes == 0x80].item() == 0
    keep = codes != 0x80
    assert torch.equal(moved.view(torch.uint8)[keep], codes[keep])


def test_conversion_of_e8m0_scales_and_of_a_nan():
    scales = torch.tensor([0, 1, 127, 0xFD, 0xFE, 0xFF], dtype=torch.uint8)
    assert fn_to_fnuz(torch.zeros(1, dtype=torch.uint8), scales)[1].tolist() == [0, 2, 128, 0xFE, 0xFE, 0xFF]
    for bad in (0x7F, 0xFF):
        with pytest.raises(ValueError, match="hold a NaN"):
            fn_to_fnuz(torch.tensor([bad], dtype=torch.uint8), torch.ones(1))


def test_an_index_key_is_cast_as_it_is():
    fmt = INDEX_FORMATS["fp8"]
    x = torch.tensor([[1.0, 17.0, 19.0, 500.0, -500.0, 2.0**-10, math.inf, math.nan]])
    (stored,) = fmt.encode(x)
    got = fmt.decode((stored,), torch.float32)[0]
    assert got[:6].tolist() == [1.0, 16.0, 20.0, 448.0, -448.0, 0.0] and got[6:].isnan().all()
    assert stored.dtype == torch.uint8

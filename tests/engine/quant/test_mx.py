"""MXFP4, MXFP8 and NVFP4 with a global scale against the float64 model; the published scale vectors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.quant import (
    FORMATS,
    INDEX_FORMATS,
    SCALE_MODES,
    decode_e8m0,
    decode_mxfp4,
    decode_mxfp8,
    decode_nvfp4,
    e8m0_scales,
    encode_mxfp4,
    encode_mxfp8,
    encode_nvfp4,
    nvfp4_global_scale,
)
from engine.quant.mx import e8m0_values
from tests.engine.quant import float64 as model
from tests.engine.quant.test_fp8 import same

quick = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = st.floats(min_value=-1000, max_value=1000, width=32)
block = st.lists(st.one_of(usual, numbers), min_size=32, max_size=32)
MX = [(encode_mxfp4, decode_mxfp4, model.E2M1), (encode_mxfp8, decode_mxfp8, model.FN)]


@pytest.mark.parametrize(("amax", "mode", "byte"), [
    (1.0, "even", 125), (6.0, "even", 127), (6.999, "even", 127), (7.0, "even", 128), (0.1, "even", 121),
    (6.0, "up", 127), (6.1, "up", 128), (0.0, "even", 0), (0.0, "up", 0), (4.0, "down", 127), (7.9, "down", 127),
    (4.0, "ceil", 127), (4.1, "ceil", 128), (1e-45, "even", 0), (math.nan, "down", 255), (math.inf, "up", 255),
])  # fmt: skip
def test_scale_vectors_of_mxfp4(amax, mode, byte):
    assert e8m0_scales(torch.tensor([amax]), 6.0, mode).item() == byte


def test_scale_bytes_mean_powers_of_two():
    got = decode_e8m0(torch.arange(256, dtype=torch.uint8))
    assert got[:255].tolist() == [2.0 ** (e - 127) for e in range(255)] and got[255].isnan()
    assert got[0].view(torch.int32).item() == 0x00400000


@pytest.mark.parametrize("mode", SCALE_MODES)
@quick
@given(amax=st.floats(min_value=0, width=32, allow_infinity=False))
def test_scales_equal_the_model(mode, amax):
    for largest, emax in ((6.0, 2), (448.0, 8)):
        t = torch.tensor([amax])
        want = model.mx_exponent(t.item(), mode, emax, largest)
        assert e8m0_scales(t, largest, mode).item() - 127 == want
        assert e8m0_values(t, largest, mode).item() == 2.0**want


def test_an_unknown_scale_mode_is_refused():
    with pytest.raises(ValueError, match="unknown scale mode 'round'; use one of even"):
        e8m0_scales(torch.ones(1), 6.0, "round")


@pytest.mark.parametrize("mode", SCALE_MODES)
@pytest.mark.parametrize(("encode", "decode", "values"), MX)
@quick
@given(x=block)
def test_blocks_equal_the_model(encode, decode, values, mode, x):
    assert same(decode(*encode(torch.tensor(x), mode)), model.mx_block(x, values, mode))


@pytest.mark.parametrize("mode", SCALE_MODES)
@pytest.mark.parametrize(("encode", "decode", "values"), MX)
@quick
@given(x=st.lists(usual, min_size=32, max_size=32))
def test_twice_is_once_and_order_is_kept(encode, decode, values, mode, x):
    once = decode(*encode(torch.tensor(sorted(x)), mode))
    assert (once.diff() >= 0).all()
    scales = encode(once, mode)[1]
    if torch.equal(scales, encode(torch.tensor(sorted(x)), mode)[1]):  # else the largest number was raised a binade
        assert torch.equal(decode(*encode(once, mode)), once)


@pytest.mark.parametrize(("encode", "decode", "values"), MX)
def test_zero_and_bad_blocks(encode, decode, values):
    x = torch.ones(3, 64)
    x[0] = 0
    x[1, 3], x[2, 40] = math.nan, -math.inf
    codes, scales = encode(x)
    assert scales[0].tolist() == [0, 0] and not codes[0].view(torch.uint8).any()
    y = decode(codes, scales)
    assert not y[0].any()
    assert y[1, :32].isnan().all() and y[1, 32:].isfinite().all()
    assert y[2, 32:].isnan().all() and y[2, :32].isfinite().all()


def test_a_saturating_block_and_the_scale_that_avoids_it():
    x = torch.zeros(32)
    x[0], x[1] = 7.5, -1.0
    assert decode_mxfp4(*encode_mxfp4(x, "down"))[:2].tolist() == [6.0, -1.0]
    assert decode_mxfp4(*encode_mxfp4(x, "even"))[:2].tolist() == [8.0, -1.0]
    x[0] = 500.0
    assert decode_mxfp8(*encode_mxfp8(x, "down"))[0] == 448.0
    assert decode_mxfp8(*encode_mxfp8(x, "up"))[0] == 512.0


@pytest.mark.parametrize("encode", [encode_mxfp4, encode_mxfp8])
def test_whole_blocks_are_asked_for(encode):
    with pytest.raises(ValueError, match="multiple of 32 values, not 48"):
        encode(torch.zeros(48))


@quick
@given(x=st.lists(usual, min_size=16, max_size=16), enc=st.floats(min_value=2.0**-10, max_value=2.0**10, width=32))
def test_nvfp4_with_a_global_scale_equals_the_model(x, enc):
    dec = model.f32(1 / enc)
    got = decode_nvfp4(*encode_nvfp4(torch.tensor(x), global_scale_enc=enc), global_scale_dec=dec)
    assert same(got, model.nvfp4_block(x, enc))


def test_nvfp4_global_scale_of_a_tensor_fills_the_range():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 1e-3
    enc, dec = nvfp4_global_scale(x)
    assert enc == pytest.approx(448 * 6 / x.abs().max().item(), rel=1e-6) and dec == model.f32(1 / enc)
    packed, scales = encode_nvfp4(x, global_scale_enc=enc)
    assert scales.float().max() == 448.0
    y = decode_nvfp4(packed, scales, global_scale_dec=dec)
    assert (y - x).abs().max() < x.abs().max() * 0.2 and not decode_nvfp4(*encode_nvfp4(x)).any()
    assert nvfp4_global_scale(torch.zeros(3)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="NaN or an infinity"):
        nvfp4_global_scale(torch.tensor([1.0, math.inf]))


def test_a_named_global_scale_moves_the_range_of_cached_vectors():
    x = torch.full((1, 16), 2.0**-11)
    for name, kept in (("nvfp4", False), ("nvfp4@0.0625", True)):
        fmt = FORMATS[name]
        assert bool(fmt.decode(fmt.encode(x), torch.float32).any()) is kept and fmt.bytes_per_vector(128) == 72
    assert "nvfp4@0.0625" not in FORMATS
    with pytest.raises(KeyError):
        FORMATS["fp8@2"]


def test_index_flavours():
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
    for name, size, other in (
        ("fp4_nv", 72, decode_nvfp4(*encode_nvfp4(x))),
        ("fp4_mx", 68, decode_mxfp4(*encode_mxfp4(x, "up"))),
    ):
        fmt = INDEX_FORMATS[name]
        stored = fmt.encode(x)
        assert sum(part.nbytes for part in stored) == 5 * size == 5 * fmt.bytes_per_vector(128)
        assert torch.equal(fmt.decode(stored, torch.float32), other)

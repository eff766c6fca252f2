"""Weight formats: codes and scales against the float64 model, tiles at edges, matrices as checkpoints store them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.mode import ACT_OF, ONLINE_FORMATS
from engine.quant import (
    ACTIVATIONS,
    FP8,
    FP8_FNUZ,
    WEIGHT_FORMATS,
    WeightOptions,
    decode_stored,
    decode_tiles,
    encode_fp8,
    encode_mxfp4,
    encode_mxfp8,
    encode_nvfp4,
    encode_tiles,
    nvfp4_global_scale,
)
from tests.engine.quant import float64 as model
from tests.engine.quant.test_fp8 import same


def matrix(n: int, k: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=g) * torch.rand(n, 1, generator=g) * 3


def test_the_words_of_a_mode_are_the_formats_there_are():
    assert tuple(WEIGHT_FORMATS) == ONLINE_FORMATS and ACTIVATIONS == ACT_OF


@pytest.mark.parametrize(("dtype", "values"), [(FP8, model.FN), (FP8_FNUZ, model.FNUZ)])
def test_ptpc_is_one_scale_a_row(dtype, values):
    w = matrix(6, 40)
    w[2] = 0
    fmt, options = WEIGHT_FORMATS["ptpc_fp8"], WeightOptions(fp8=dtype)
    codes, scales = fmt.encode(w, options)
    assert codes.dtype == dtype and scales.shape == (6, 1) and scales.dtype == torch.float32
    assert scales[2] > 0 and not codes[2].float().any()
    for row, got in zip(w, fmt.decode(codes, scales, options), strict=True):
        assert same(got, model.fp8_vector(row.tolist(), values))


@pytest.mark.parametrize(
    ("n", "k", "rows", "columns"), [(4, 6, 2, 3), (5, 7, 2, 3), (1, 1, 128, 128), (130, 129, 128, 128)]
)
def test_tiles_equal_the_model_and_may_be_partial(n, k, rows, columns):
    w = matrix(n, k)
    w[:rows, :columns] = 0
    codes, scales = encode_tiles(w, rows, columns)
    assert codes.shape == (n, k) and scales.shape == (-(-n // rows), -(-k // columns))
    got = decode_tiles(codes, scales, rows, columns)
    for i in range(0, n, rows):
        for j in range(0, k, columns):
            tile = w[i : i + rows, j : j + columns]
            assert same(
                got[i : i + rows, j : j + columns].flatten(), model.fp8_vector(tile.flatten().tolist(), model.FN)
            )


def test_a_bad_number_spoils_its_own_tile():
    w = matrix(4, 4)
    w[0, 0] = math.nan
    got = decode_tiles(*encode_tiles(w, 2, 2), 2, 2)
    assert got[:2, :2].isnan().all() and got[2:].isfinite().all() and got[:, 2:].isfinite().all()


def test_block128_is_per_block_with_its_usual_shape():
    w, o = matrix(200, 300), WeightOptions()
    for a, b in zip(*(WEIGHT_FORMATS[n].encode(w, o) for n in ("per_block_fp8", "per_block128_fp8")), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    scales = WEIGHT_FORMATS["per_block_fp8"].encode(w, WeightOptions(block=(64, 32)))[1]
    assert scales.shape == (4, 10)


def stored(kind: str, w: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    if kind == "nvfp4":
        enc, dec = nvfp4_global_scale(w)
        return *encode_nvfp4(w, global_scale_enc=enc), torch.tensor([dec])
    return *{"mxfp4": encode_mxfp4, "mxfp8": encode_mxfp8, "fp8": encode_fp8}[kind](w), None


@pytest.mark.parametrize(("kind", "bound"), [("fp8", 1 / 16), ("mxfp8", 1 / 8), ("mxfp4", 1 / 3), ("nvfp4", 1 / 3)])
def test_stored_matrices_are_decoded(kind, bound):
    w = matrix(8, 64)
    codes, scale, more = stored(kind, w)
    got = decode_stored("x", kind, codes, scale, scale_2=more)
    assert got.dtype == torch.float32 and got.shape == w.shape
    assert ((got - w).abs().amax(1) <= bound * w.abs().amax(1)).all()
    raw = decode_stored("x", kind, codes.view(torch.uint8), scale, scale_2=more)  # as bytes
    assert torch.equal(raw, got)


def test_stored_fp8_scales_of_three_shapes_and_mx_scales_as_floats():
    w = matrix(256, 256)
    codes, scales = encode_tiles(w)
    assert torch.equal(decode_stored("x", "fp8", codes, scales), decode_tiles(codes, scales))
    one = decode_stored("x", "fp8", codes, torch.tensor(2.0))
    assert torch.equal(one, codes.float() * 2) and torch.equal(
        one, decode_stored("x", "fp8", codes, torch.tensor([2.0]))
    )
    rows = torch.arange(1.0, 257.0)
    assert torch.equal(decode_stored("x", "fp8", codes, rows), codes.float() * rows[:, None])
    codes, e8m0 = encode_mxfp8(w)
    floats = torch.exp2(e8m0.float() - 127)
    assert torch.equal(decode_stored("x", "mxfp8", codes, floats), decode_stored("x", "mxfp8", codes, e8m0))


@pytest.mark.parametrize(("kind", "scale", "words"), [
    ("fp8", torch.ones(5), "scales of shape .5., not .1. or .. or .8, 1. or .8. or .1, 1."),
    ("mxfp8", torch.ones(8, 3), "scales of shape .8, 3., not .8, 2."),
    ("mxfp8", torch.full((8, 2), 3.0), "no powers of two"),
    ("int8", torch.ones(8), "use fp8, mxfp8, mxfp4 or nvfp4"),
    ("nvfp4", torch.ones(8, 8, dtype=torch.uint8), "lacks its global scale"),
])  # fmt: skip
def test_what_does_not_belong_together_is_refused(kind, scale, words):
    with pytest.raises(EngineError, match=words):
        decode_stored("model.x", kind, torch.zeros(8, 64, dtype=torch.uint8), scale)

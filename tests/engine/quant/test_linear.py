"""QuantLinear against a float64 product of what its codes stand for, with activations quantised by the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine.quant import ACTIVATIONS, FP8_FNUZ, QuantLinear, WeightOptions, encode_fp8, linear_rows
from tests.engine.quant import float64 as model
from tests.engine.quant.test_weights import matrix

PAIRS = [(w, act) for w, acts in ACTIVATIONS.items() for act in ("", *acts)]


def activations(x: Tensor, act: str, w: str, options: WeightOptions) -> Tensor:
    """decode(encode(x)) by the float64 model, float64 [rows, K]."""
    if not act:
        return x.double()
    fp8 = model.FNUZ if options.fp8 == FP8_FNUZ else model.FN
    groups = {"ptpc_fp8": x.shape[1], "per_block_fp8": options.block[1], "per_block128_fp8": 128}
    group = groups[w] if act == "fp8" else 32
    out = []
    for row in x.float().tolist():
        pieces = [row[i : i + group] for i in range(0, len(row), group)]
        if act == "fp8":
            done = [model.fp8_vector(piece, fp8) for piece in pieces]
        elif act == "mxfp8":
            done = [model.mx_block(piece, model.FN, options.mxfp8_scale) for piece in pieces]
        else:
            done = [model.mx_block(piece, model.E2M1, options.mxfp4_scale) for piece in pieces]
        out.append([v for piece in done for v in piece])
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize(("w", "act"), PAIRS)
@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, FP8_FNUZ])
def test_product_equals_float64_of_what_is_stored(w, act, rows, fp8):
    options = WeightOptions(fp8=fp8, block=(32, 64))
    weight, x = matrix(48, 160, seed=1), matrix(rows, 160, seed=2)
    x[0] = 0
    layer = QuantLinear(weight, w, act=act, options=options)
    seen, held = activations(x, act, w, options), layer.dequantised().double()
    bound = 1e-5 * (seen.abs() @ held.abs().T)  # float32 sums of 160 products; one wrong code is 40 times as much
    assert ((layer(x).double() - seen @ held.T).abs() <= bound).all()
    kept = QuantLinear(weight, w, act=act, options=options, cache=True)
    assert torch.equal(kept(x), layer(x))
    assert torch.equal(kept.rows(x, slice(16, None)), layer.rows(x, slice(16, None)))
    torch.testing.assert_close(kept.rows(x, slice(16, None)), layer(x)[:, 16:], rtol=1e-5, atol=1e-5)


def test_ptpc_is_the_published_formula_to_the_bit():
    weight, x = matrix(24, 64, seed=3), matrix(7, 64, seed=4)
    (wq, sw), (xq, sx) = encode_fp8(weight), encode_fp8(x)
    want = (xq.float() @ wq.float().T) * sx * sw.T
    assert torch.equal(QuantLinear(weight, "ptpc_fp8", act="fp8")(x), want)
    half = QuantLinear(weight, "ptpc_fp8", act="fp8")(x.bfloat16())
    assert half.dtype == torch.bfloat16


def test_rows_are_quantised_one_by_one():
    """A row's output does not depend on the rows beside it: drafting and verifying see the same numbers."""
    weight, x = matrix(24, 64, seed=3), matrix(6, 64, seed=4)
    x[1] *= 1000
    for w, act in PAIRS:
        layer = QuantLinear(weight, w, act=act)
        torch.testing.assert_close(layer(x)[:1], layer(x[:1]), rtol=1e-4, atol=1e-4)


def test_a_bias_is_added_after_the_scales():
    weight, bias, x = matrix(24, 64), torch.randn(24), matrix(3, 64)
    for w, act in PAIRS:
        plain, biased = QuantLinear(weight, w, act=act)(x), QuantLinear(weight, w, act=act, bias=bias)(x)
        torch.testing.assert_close(biased, plain + bias, rtol=1e-5, atol=1e-5)


def test_memory_is_that_of_codes_and_scales():
    weight = matrix(256, 128)
    for w, size in (
        ("ptpc_fp8", 256 * 132),
        ("per_block128_fp8", 256 * 128 + 8),
        ("mxfp8", 256 * 132),
        ("mxfp4", 256 * 68),
    ):
        layer = QuantLinear(weight, w)
        held = sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
        assert layer.nbytes == size == held and layer.cached_nbytes == 0
        kept = QuantLinear(weight, w, cache=True)
        assert kept.nbytes == size and kept.cached_nbytes == 256 * 128 * 4
        assert "cached" not in kept.state_dict()


def test_packed_tiles_are_those_of_the_parts():
    parts = [matrix(100, 128, seed=i) * 10**i for i in range(3)]
    whole = QuantLinear(torch.cat(parts), "per_block128_fp8", packed=[100] * 3).dequantised()
    alone = [QuantLinear(p, "per_block128_fp8").dequantised() for p in parts]
    assert torch.equal(whole, torch.cat(alone))
    assert not torch.equal(whole, QuantLinear(torch.cat(parts), "per_block128_fp8").dequantised())


def test_linear_rows_of_a_plain_layer():
    plain, x = nn.Linear(8, 6), torch.randn(3, 8)
    torch.testing.assert_close(linear_rows(plain, x, slice(2, None)), plain(x)[:, 2:])


def test_activations_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="ptpc_fp8 weights do not go with mxfp8"):
        QuantLinear(matrix(4, 32), "ptpc_fp8", act="mxfp8")

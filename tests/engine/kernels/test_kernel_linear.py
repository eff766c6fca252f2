"""PTPC: codes and scales bit for bit, products within the rounding of float32 sums (2e-6 of the largest)."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import linear, reference


@pytest.mark.parametrize(("m", "k"), [(1, 16), (5, 100), (3, 2500)])
def test_rows_are_quantised_bit_for_bit(m: int, k: int, device: torch.device, generator: torch.Generator) -> None:
    x = torch.randn(m, k, generator=generator) * 10.0 ** torch.randint(-6, 6, (m, 1), generator=generator)
    x[-1] = 0.0
    codes, scales = linear.quantise_rows(x.to(device))
    expected, expected_scales = reference.quantise_rows(x.to(device))
    assert scales.equal(expected_scales)
    assert codes.view(torch.uint8).equal(expected.view(torch.uint8))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 32), (8, 70, 100), (40, 33, 256), (130, 129, 64)])
def test_products_equal_the_twin(m: int, n: int, k: int, device: torch.device, generator: torch.Generator) -> None:
    x, x_scale = reference.quantise_rows(torch.randn(m, k, generator=generator))
    w, w_scale = reference.quantise_rows(torch.randn(n, k, generator=generator) * torch.rand(n, 1, generator=generator))
    a, sa, b, sb = (t.to(device) for t in (x, x_scale, w, w_scale))
    found = linear.ptpc_matmul(a, sa, b, sb, torch.float32)
    expected = reference.ptpc_matmul(a, sa, b, sb, torch.float32)
    exact = (x.double() @ w.double().T) * x_scale * w_scale.T
    scale = exact.abs().max()
    assert (found.cpu() - exact).abs().max() < 2e-6 * scale
    assert (expected.cpu() - exact).abs().max() < 2e-6 * scale


def test_a_nan_spoils_its_row_alone(device: torch.device) -> None:
    x = torch.ones(2, 32)
    x[1, 3] = torch.nan
    codes, scales = linear.quantise_rows(x.to(device))
    w, w_scale = reference.quantise_rows(torch.ones(16, 32, device=device))
    y = linear.ptpc_matmul(codes, scales, w, w_scale, torch.float32)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()

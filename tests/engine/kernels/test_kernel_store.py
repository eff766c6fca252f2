"""Stored bytes are those of engine/quant.py, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.kernels import reference, store
from engine.kv_cache import KVCache, LayerSpec
from engine.quant import FORMATS, INDEX_FORMATS


def awkward(rows: int, *shape: int, generator: torch.Generator) -> Tensor:
    """Vectors of very different size, with zeros, a zero vector, exact midpoints, tiny and huge numbers."""
    x = torch.randn(rows, *shape, generator=generator)
    x *= 10.0 ** torch.randint(-6, 6, (rows, *[1] * len(shape)), generator=generator)
    x[0] = 0.0
    if rows > 3:
        middles = torch.tensor(
            [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -5.0, 0.0, 0.1, 0.3, 1e-9, -0.2]
        )
        x[1] = middles.repeat(shape[-1] // 16)
        x[2] = 1e-30 * x[2].sign()
        x[3, ..., 0] = 3e38
    return x


def narrow(x: Tensor, fmt: str, device: torch.device) -> Tensor:
    """x on the device; for bf16 of values that bf16 has, since Triton's interpreter cuts off instead of rounding."""
    return (x.bfloat16().float() if fmt == "bf16" and device.type == "cpu" else x).to(device)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("rows", "kv_heads", "head_dim"), [(1, 1, 16), (7, 3, 48), (5, 2, 128)])
def test_kv_bytes_equal_the_twin(
    fmt: str, rows: int, kv_heads: int, head_dim: int, device: torch.device, generator: torch.Generator
) -> None:
    k, v = (narrow(awkward(rows, kv_heads, head_dim, generator=generator), fmt, device) for _ in range(2))
    slots = torch.randperm(12, generator=generator)[:rows].to(device)  # pages of 4: edges fall inside
    if rows > 2:
        slots[2] = -1
    found = pages(fmt, kv_heads, head_dim, device)
    expected = pages(fmt, kv_heads, head_dim, device)
    store.store_kv(k, v, slots, found, fmt)
    reference.store_kv(k, v, slots, expected, fmt)
    for a, b in zip(found, expected, strict=True):
        assert a.view(torch.uint8).equal(b.view(torch.uint8))
    used = [part.view(torch.uint8).flatten(2).any(-1).sum() for part in found]
    assert used[0] <= int((slots >= 0).sum())  # nothing but the slots was written


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_cache_itself_stores_the_same(fmt: str, device: torch.device, generator: torch.Generator) -> None:
    k, v = (narrow(torch.randn(6, 2, 32, generator=generator), fmt, device) for _ in range(2))
    slots = torch.tensor([0, 3, 4, -1, 7, 8], device=device)
    cache = KVCache([LayerSpec(format=fmt, kv_heads=2, head_dim=32)], num_pages=3, page_size=4, device=device)
    cache.store(0, slots, k, v)
    found = pages(fmt, 2, 32, device)
    store.store_kv(k, v, slots, found, fmt)
    for a, b in zip(found, cache._pages[0], strict=True):
        assert a[:-1].view(torch.uint8).equal(b[:-1].view(torch.uint8))  # the spare page is the cache's own way


@pytest.mark.parametrize("fmt", ["float32", "bf16", "fp8", "nvfp4", "mxfp4"])
@pytest.mark.parametrize(("rows", "width"), [(1, 32), (9, 96), (4, 128)])
def test_index_bytes_equal_the_twin(
    fmt: str, rows: int, width: int, device: torch.device, generator: torch.Generator
) -> None:
    x = narrow(awkward(rows, width, generator=generator), fmt, device)
    slots = torch.randperm(12, generator=generator)[:rows].to(device)
    slots[-1] = -1
    found, expected = (index_pages(fmt, width, device) for _ in range(2))
    store.store_index(x, slots, found, fmt)
    reference.store_index(x, slots, expected, fmt)
    for a, b in zip(found, expected, strict=True):
        assert a.view(torch.uint8).equal(b.view(torch.uint8))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf / inf, in the interpreter's numpy
@pytest.mark.parametrize("fmt", ["fp8", "nvfp4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_spoils_what_the_twin_spoils(fmt: str, bad: float, device: torch.device) -> None:
    k = torch.ones(1, 2, 32, device=device)
    k[0, 1, 20] = bad
    found, expected = (pages(fmt, 2, 32, device) for _ in range(2))
    store.store_kv(k, torch.ones_like(k), torch.tensor([5], device=device), found, fmt)
    reference.store_kv(k, torch.ones_like(k), torch.tensor([5], device=device), expected, fmt)
    a, b = (FORMATS[fmt].decode(p, torch.float32) for p in (found, expected))
    assert torch.isnan(b).any()
    assert a.isnan().equal(b.isnan())
    assert a.nan_to_num().equal(b.nan_to_num())


def test_mxfp4_is_its_definition(generator: torch.Generator) -> None:
    """Decoded values are the nearest multiples of a power of two that keeps the block's largest within 6."""
    x = awkward(8, 64, generator=generator)[4:]
    packed, scales = reference.encode_mxfp4(x)
    blocks, amax = x.double().unflatten(-1, (-1, 32)), x.double().unflatten(-1, (-1, 32)).abs().amax(-1)
    step = 2.0 ** (scales.double() - 127)
    assert (amax <= 6 * step).all()
    assert (amax > 3 * step).all()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    best = (blocks.abs() / step[..., None])[..., None].sub(values).abs().amin(-1)
    error = (reference.decode_mxfp4(packed, scales).double().unflatten(-1, (-1, 32)) - blocks).abs() / step[..., None]
    assert error.sub(best).abs().max() < 1e-6


def pages(fmt: str, kv_heads: int, head_dim: int, device: torch.device) -> tuple[Tensor, ...]:
    parts = FORMATS[fmt].parts(head_dim)
    return tuple(torch.zeros(4, 4, 2, kv_heads, part.width, dtype=part.dtype, device=device) for part in parts)


def index_pages(fmt: str, width: int, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros(4, 4, part.shape[-1], dtype=part.dtype, device=device)
        for part in reference.encode_index(torch.zeros(1, width), fmt)
    )


@pytest.mark.parametrize("fmt", INDEX_FORMATS)
def test_the_engine_and_the_kernels_mean_the_same_by_an_index_format(fmt: str) -> None:
    """The bytes in the cache are those that the kernels' twins write, for every name that a layer can have."""
    spec = LayerSpec(format="float32", kv_heads=1, head_dim=32, index_format=fmt, index_dim=32)
    caches = [KVCache([spec], num_pages=4, page_size=4) for _ in range(2)]
    k, slots = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, -1, 9, 15])
    caches[0].store_index(0, slots, k)
    kernels.store_index(k, slots, caches[1].index_pages(0), fmt)
    for ours, theirs in zip(caches[0].index_pages(0), caches[1].index_pages(0), strict=True):
        assert torch.equal(ours[:4].view(torch.uint8), theirs[:4].view(torch.uint8))

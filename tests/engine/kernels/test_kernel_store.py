"""Stored bytes are those of engine/quant.py, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.kernels import reference, store
from engine.kv_cache import KVCache, LayerSpec
from engine.quant import FORMATS, INDEX_FORMATS
from engine.quant.mx import decode_mxfp4, encode_mxfp4


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


@pytest.mark.parametrize("fmt", kernels.FORMATS)
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


@pytest.mark.parametrize("index_fmt", ["", *kernels.INDEX_FORMATS])
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_a_cache_holds_the_same_bytes_by_kernels(
    fmt: str, index_fmt: str, device: torch.device, generator: torch.Generator
) -> None:
    k, v = (narrow(torch.randn(6, 2, 32, generator=generator), fmt, device) for _ in range(2))
    key = narrow(torch.randn(6, 32, generator=generator), index_fmt, device)
    slots = torch.tensor([0, 3, 4, -1, 7, 8], device=device)
    spec = LayerSpec(format=fmt, kv_heads=2, head_dim=32, index_format=index_fmt, index_dim=32 if index_fmt else 0)
    caches = [
        KVCache([spec], num_pages=3, page_size=4, device=device, kernels=kernels.Kernels(triton))
        for triton in (False, True)
    ]
    for cache in caches:
        cache.store(0, slots, k, v)
        if index_fmt:
            cache.store_index(0, slots, key)
    for a, b in zip(*((*c.pages(0), *c.index_pages(0)) for c in caches), strict=True):
        assert a[:-1].view(torch.uint8).equal(b[:-1].view(torch.uint8))  # the spare page is the twin's own way
    ops = ["store_index", "store_kv"] if index_fmt else ["store_kv"]
    assert [c.kernels.served() for c in caches] == [{"triton": [], "twin": ops}, {"triton": ops, "twin": []}]


def test_a_wide_vector_in_an_index_place_is_stored_by_the_twin(device: torch.device) -> None:
    spec = LayerSpec(format="float32", kv_heads=1, head_dim=16, index_format="float32", index_dim=512)
    made = kernels.Kernels(triton=True)
    cache = KVCache([spec], num_pages=1, page_size=4, device=device, kernels=made)
    cache.store_index(0, torch.tensor([2], device=device), torch.ones(1, 512, device=device))
    assert made.served() == {"triton": [], "twin": ["store_index"]}
    assert cache.index_at(0, torch.tensor([2], device=device)).sum() == 512


@pytest.mark.parametrize("fmt", kernels.INDEX_FORMATS)
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


BAD = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf / inf, in the interpreter's numpy
@pytest.mark.parametrize("fmt", ["fp8", "nvfp4"])
@pytest.mark.parametrize("bad", BAD)
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


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(("fmt", "spoilt"), [("fp8", 1), ("fp4_nv", 16), ("fp4_mx", 32)])
@pytest.mark.parametrize("bad", BAD)
def test_an_index_key_that_is_not_finite_is_never_stored_as_a_number(
    fmt: str, spoilt: int, bad: float, device: torch.device
) -> None:
    """One rule for the engine's formats, the twins and the kernels: that number, or its whole block, becomes NaN."""
    x = torch.ones(1, 64, device=device)
    x[0, 40] = bad
    x[0, 50] = 1e6  # finite: the largest number of the format, at most
    found, expected = (index_pages(fmt, 64, device) for _ in range(2))
    store.store_index(x, torch.tensor([5], device=device), found, fmt)
    reference.store_index(x, torch.tensor([5], device=device), expected, fmt)
    a, b = (INDEX_FORMATS[fmt].decode(p, torch.float32)[1, 1] for p in (found, expected))
    assert int(b.isnan().sum()) == spoilt and b[40].isnan()
    assert a.isnan().equal(b.isnan())
    assert a.nan_to_num().equal(b.nan_to_num())


def test_mxfp4_is_its_definition(generator: torch.Generator) -> None:
    """Decoded values are the nearest multiples of a power of two that keeps the block's largest within 6."""
    x = awkward(8, 64, generator=generator)[4:]
    packed, scales = encode_mxfp4(x, "up")
    blocks, amax = x.double().unflatten(-1, (-1, 32)), x.double().unflatten(-1, (-1, 32)).abs().amax(-1)
    step = 2.0 ** (scales.double() - 127)
    assert (amax <= 6 * step).all()
    assert (amax > 3 * step).all()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    best = (blocks.abs() / step[..., None])[..., None].sub(values).abs().amin(-1)
    error = (decode_mxfp4(packed, scales).double().unflatten(-1, (-1, 32)) - blocks).abs() / step[..., None]
    assert error.sub(best).abs().max() < 1e-6


def pages(fmt: str, kv_heads: int, head_dim: int, device: torch.device) -> tuple[Tensor, ...]:
    parts = FORMATS[fmt].parts(head_dim)
    return tuple(torch.zeros(4, 4, 2, kv_heads, part.width, dtype=part.dtype, device=device) for part in parts)


def index_pages(fmt: str, width: int, device: torch.device) -> tuple[Tensor, ...]:
    parts = INDEX_FORMATS[fmt].parts(width)
    return tuple(torch.zeros(4, 4, part.width, dtype=part.dtype, device=device) for part in parts)

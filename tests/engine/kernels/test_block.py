"""A draft's block attention in the interpreter against its float64 twin, and BlockAttend by it against BlockAttend.

Tolerance 2e-6 for float32 (sums of at most 200 terms in another order), 2e-3 for half.
"""

from __future__ import annotations

import pytest
import torch

from engine import kernels
from engine.attention import BlockAttend, PagedChain, reference_block_attention, store_context
from engine.kernels import Kernels, attention, block, reference
from engine.quant import FORMATS
from tests.engine.test_attention import Seq, draw, make_batch, make_cache, make_table


def check(
    fmt: str, lengths: list[int], width: int, heads: int, kv_heads: int, d: int, page: int, window: int,
    device: torch.device, generator: torch.Generator, dtype: torch.dtype = torch.float32, least: int = 0, own: int = 0,
) -> None:  # fmt: skip
    """own: rows of a block, where not all of them ask; least: the first place of the context."""
    n, count = len(lengths), max(1, -(-max(lengths) // page))
    table = torch.randperm(n * count, generator=generator).view(n, count).to(device)
    stored = torch.randn(n * count + 1, page, 2, kv_heads, d, generator=generator)
    pages = tuple(p.to(device) for p in FORMATS[fmt].encode(stored))
    q = torch.randn(n * width, heads, d, generator=generator).to(device, dtype)
    k, v = (torch.randn(n * (own or width), kv_heads, d, generator=generator).to(device, dtype) for _ in range(2))
    args = (q, k, v, pages, fmt, table, torch.tensor(lengths, device=device))
    found = block.block_attention(*args, max_length=max(lengths), window=window, least=least)
    expected = reference.block_attention(*args, max_length=max(lengths), window=window, least=least)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("fmt", kernels.FORMATS)
@pytest.mark.parametrize(
    ("lengths", "width", "heads", "kv_heads", "d", "page", "window"),
    [
        ([0], 1, 1, 1, 16, 4, 0),  # no context at all
        ([17, 64, 33], 7, 4, 2, 32, 16, 0),  # a page with one token, full pages
        ([17, 64, 0], 7, 4, 2, 32, 16, 9),  # rows of one block begin at different keys
        ([5, 70], 3, 6, 2, 48, 5, 60),  # a group of 3, no power of 2 anywhere; a window that begins in the second turn
        ([130], 5, 2, 1, 16, 64, 1),  # each row sees its own block, and no context
        ([100, 3], 17, 2, 2, 16, 64, 0),  # more rows than a draft has
    ],
)
def test_equals_the_twin(
    fmt: str, lengths: list[int], width: int, heads: int, kv_heads: int, d: int, page: int, window: int,
    device: torch.device, generator: torch.Generator,
) -> None:  # fmt: skip
    check(fmt, lengths, width, heads, kv_heads, d, page, window, device, generator)


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
@pytest.mark.parametrize(("lengths", "own", "least", "window"), [
    ([1, 2, 50], 1, 1, 0),  # the first has no context but the place that is left out
    ([1, 17, 33], 5, 1, 0),
    ([40, 3], 18, 20, 0),  # a context that ends before it begins, and more rows than one tile has
    ([40, 90], 3, 20, 30),
])  # fmt: skip
def test_one_row_of_a_chain_and_a_context_that_begins_later(
    fmt: str, lengths: list[int], own: int, least: int, window: int, device: torch.device, generator: torch.Generator
) -> None:
    check(fmt, lengths, 1, 4, 2, 32, 16, window, device, generator, least=least, own=own)


def test_a_split_chain_is_put_together(
    device: torch.device, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 32)
    check("fp8", [200, 1, 40], 1, 4, 2, 32, 16, 0, device, generator, least=1, own=4)


@pytest.mark.parametrize("fmt", ["fp8", "nvfp4"])
def test_half_precision_and_the_shape_of_m3(fmt: str, device: torch.device, generator: torch.Generator) -> None:
    """One rank of M3: 16 query heads on one KV head of 128, 7 rows."""
    check(fmt, [150], 7, 16, 1, 128, 128, 0, device, generator, dtype=torch.float16)


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
@pytest.mark.parametrize("window", [0, 150])
def test_a_split_context_is_put_together(
    fmt: str, window: int, device: torch.device, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sequence ends in the first split; with the window the third's first split holds hidden keys alone."""
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 32)
    check(fmt, [200, 40, 213], 3, 4, 2, 32, 16, window, device, generator)


def test_the_rest_of_a_page_and_the_pages_of_others_may_hold_anything(device: torch.device) -> None:
    pages = (torch.full((4, 16, 2, 1, 16), torch.nan, device=device),)
    pages[0][1], pages[0][2, :3] = 1.0, 1.0
    q, k, v = torch.ones(2, 2, 16, device=device), *torch.full((2, 2, 1, 16), 3.0, device=device)
    table, lengths = torch.tensor([[1, 2, 0]], device=device), torch.tensor([19], device=device)
    out = block.block_attention(q, k, v, pages, "float32", table, lengths, max_length=48)
    assert out.isfinite().all()


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
@pytest.mark.parametrize(("lengths", "window"), [([1, 4, 8, 9], 0), ([0, 3], 0), ([1, 4, 9], 4)])
def test_block_attend_is_the_same_by_the_kernel(lengths: list[int], window: int, fmt: str) -> None:
    width = 3
    seqs = [Seq(past=length, rows=width) for length in lengths]
    table, at = make_table(seqs), torch.tensor(lengths)
    context = make_batch([Seq(past=0, rows=length) for length in lengths], table, width=max(lengths))
    found = []
    for triton in (False, True):
        cache = make_cache(fmt, layers=2, kernels=Kernels(triton))
        store_context(cache, 1, context.slots.flatten(), [draw(context.positions.numel(), 3)[1:]])
        q, k, v = draw(len(lengths) * width)
        found.append(BlockAttend(cache, 1, table, at, window)(0, q, k, v))
        ops = cache.kernels.served()["triton" if triton else "twin"]
        assert ops == ["block_attention", "store_kv"]
        want = reference_block_attention(cache, 1, table, at, q, k, v, window)
        torch.testing.assert_close(found[-1], want, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
def test_a_chain_is_the_same_by_the_kernel(fmt: str) -> None:
    """Three passes after contexts of different lengths, each row upon those before it."""
    lengths = [1, 4, 8, 9]
    seqs = [Seq(past=length, rows=3) for length in lengths]
    table, at = make_table(seqs), torch.tensor(lengths)
    context = make_batch([Seq(past=0, rows=length) for length in lengths], table, width=max(lengths))
    stored, passes = draw(context.positions.numel(), 3)[1:], [draw(len(lengths), 40 + i) for i in range(3)]
    found: list[list[torch.Tensor]] = []
    for triton in (False, True):
        cache = make_cache(fmt, layers=2, kernels=Kernels(triton))
        store_context(cache, 1, context.slots.flatten(), [stored])
        chain = PagedChain(cache, 1, table, at, max(lengths))
        found.append([chain(0, *rows) for rows in passes])
        assert cache.kernels.served()["triton" if triton else "twin"] == ["chain_attention", "store_kv"]
    torch.testing.assert_close(found[0], found[1], atol=2e-6, rtol=2e-6)

"""Paged attention in the interpreter against a float64 twin that looks at one row at a time.

Tolerance 2e-6 for float32 (sums of at most 100 terms in another order), 2e-3 for half.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.kernels import attention, reference
from engine.quant import FORMATS


def filled(fmt: str, pages: int, page: int, kv_heads: int, d: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Pages full of numbers, those of no sequence as well: a read of the wrong page shows."""
    x = torch.randn(pages, page, 2, kv_heads, d, generator=generator)
    return FORMATS[fmt].encode(x)


def check(
    fmt: str,
    *,
    lengths: list[int],
    width: int,
    heads: int,
    kv_heads: int,
    d: int,
    page: int,
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    blocks: Tensor | None = None,
    block_size: int = 0,
) -> Tensor:
    """Rows end at `lengths`; a sequence with fewer tokens than `width` rows has padding rows."""
    n, count = len(lengths), -(-max(lengths) // page)
    table = torch.randperm(n * count, generator=generator).view(n, count)
    positions = torch.tensor(lengths)[:, None] - width + torch.arange(width)
    positions = torch.where(positions < 0, -1, positions).sort(dim=1, descending=False).values
    pages = tuple(p.to(device) for p in filled(fmt, n * count + 1, page, kv_heads, d, generator))
    q = torch.randn(n * width, heads, d, generator=generator).to(device, dtype)
    args = (q, pages, fmt, table.to(device), positions.to(device))
    extra = {
        "max_length": max(lengths),
        "blocks": None if blocks is None else blocks.to(device),
        "block_size": block_size,
    }
    found = attention.paged_attention(*args, **extra)
    expected = reference.paged_attention(*args, **extra)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert not found[positions.flatten().to(device) < 0].any()
    return found


@pytest.mark.parametrize("fmt", kernels.FORMATS)
@pytest.mark.parametrize(
    ("lengths", "width", "heads", "kv_heads", "d", "page"),
    [
        ([1], 1, 1, 1, 16, 4),  # the first token of all
        ([17, 64, 33], 1, 4, 2, 32, 16),  # plain decode: a page with one token, full pages
        ([18, 70, 8], 8, 4, 2, 32, 16),  # K=7 across a page edge, and all of a text
        ([5, 40], 4, 6, 2, 48, 5),  # a group of 3, a head no power of 2, a page no power of 2
        ([3, 20], 8, 2, 1, 16, 64),  # padding rows; one page is more than all
    ],
)
def test_equals_the_twin(
    fmt: str, lengths: list[int], width: int, heads: int, kv_heads: int, d: int, page: int, device: torch.device,
    generator: torch.Generator,
) -> None:  # fmt: skip
    check(fmt, lengths=lengths, width=width, heads=heads, kv_heads=kv_heads, d=d, page=page, generator=generator,
          device=device)  # fmt: skip


@pytest.mark.parametrize("fmt", ["fp8", "nvfp4"])
def test_half_precision_and_the_shape_of_m3(fmt: str, device: torch.device, generator: torch.Generator) -> None:
    """One rank of M3: 16 query heads on one KV head of 128, 8 rows of K=7."""
    check(fmt, lengths=[150], width=8, heads=16, kv_heads=1, d=128, page=128, generator=generator, device=device,
          dtype=torch.float16)  # fmt: skip


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
def test_a_split_context_is_put_together(
    fmt: str, device: torch.device, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits of 64 tokens; the second sequence ends in the first of them, so others have nothing to add."""
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 32)
    assert attention.choose_splits(4, 200) == 8
    check(fmt, lengths=[200, 40], width=3, heads=4, kv_heads=2, d=32, page=16, generator=generator, device=device)


@pytest.mark.parametrize("fmt", kernels.FORMATS)
@pytest.mark.parametrize(("page", "block", "split"), [(64, 64, True), (8, 8, False), (16, 24, True), (4, 32, False)])
def test_chosen_blocks_only(
    fmt: str, page: int, block: int, split: bool, device: torch.device, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Lists of different lengths and orders; the block of the row itself first or last, always partly visible."""
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 16 if split else 1 << 30)
    monkeypatch.setattr(attention, "MAX_SPLITS", 4)
    width, kv_heads, lengths = 2, 2, [3 * block + 2, block + 1]
    blocks = torch.full((4, kv_heads, 3), -1, dtype=torch.int32)
    blocks[:2] = torch.tensor([[3, 0, -1], [2, 3, 1]])
    blocks[2:] = torch.tensor([[0, 1, -1], [1, -1, -1]])
    blocks[2] = torch.tensor([[0, -1, -1], [0, -1, -1]])  # its position is the last of block 0
    check(fmt, lengths=lengths, width=width, heads=4, kv_heads=kv_heads, d=32, page=page, blocks=blocks,
          block_size=block, generator=generator, device=device)  # fmt: skip


def test_all_blocks_chosen_is_dense_attention(device: torch.device, generator: torch.Generator) -> None:
    shape = {"lengths": [70, 33], "width": 2, "heads": 4, "kv_heads": 2, "d": 32, "page": 16, "device": device}
    blocks = torch.arange(5, dtype=torch.int32).expand(4, 2, 5).contiguous()
    for row, length in enumerate([69, 70, 32, 33]):
        blocks[row, :, -(-length // 16) :] = -1
    dense = check("fp8", generator=torch.Generator().manual_seed(1), **shape)
    sparse = check("fp8", generator=torch.Generator().manual_seed(1), blocks=blocks, block_size=16, **shape)
    torch.testing.assert_close(dense, sparse, atol=1e-6, rtol=1e-6)


def test_nothing_to_do(device: torch.device, generator: torch.Generator) -> None:
    pages = tuple(p.to(device) for p in filled("bf16", 2, 4, 1, 16, generator))
    table, positions = torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64)
    out = attention.paged_attention(
        torch.zeros(0, 2, 16, device=device), pages, "bf16", table.to(device), positions.to(device), max_length=0
    )
    assert out.shape == (0, 32)


def test_a_masked_nan_of_another_sequence_stays_there(device: torch.device, generator: torch.Generator) -> None:
    """Page 0, which pads page tables, is another's and spoilt; so is the rest of the sequence's own last page."""
    pages = filled("float32", 4, 16, 1, 16, generator)
    pages[0][0] = torch.nan
    pages[0][2, 3:] = torch.nan
    q = torch.randn(1, 2, 16, generator=generator).to(device)
    table = torch.tensor([[1, 2, 0, 0]], device=device)
    out = attention.paged_attention(
        q, tuple(p.to(device) for p in pages), "float32", table, torch.tensor([[18]], device=device), max_length=64
    )
    assert out.isfinite().all()

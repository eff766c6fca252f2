"""Chosen blocks are exactly those of the per-row rule: scores here are sums of small whole numbers, so equal
scores are equal in any order of summation and ties are real."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config import SparseConfig
from engine.indexer import reference_blocks
from engine.kernels import index, reference
from engine.quant import INDEX_FORMATS

FORMATS = ["float32", "fp8", "fp4_nv", "fp4_mx"]


def setup(
    fmt: str, lengths: list[int], width: int, heads: int, page: int, generator: torch.Generator, dim: int = 32
) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor]:
    """iq, pages, page table, positions. Values -2..2 that every format holds exactly; pages of no one are full."""
    n, count = len(lengths), -(-max(lengths) // page)
    keys = torch.randint(-2, 3, (n * count + 1, page, dim), generator=generator).float()
    keys[..., ::16] = 6.0  # each block's largest, so that its scale is 1
    iq = torch.randint(-1, 2, (n * width, heads, dim), generator=generator).float()
    table = torch.randperm(n * count, generator=generator).view(n, count)
    positions = torch.tensor(lengths)[:, None] - width + torch.arange(width)
    return iq, INDEX_FORMATS[fmt].encode(keys), table, torch.where(positions < 0, -1, positions)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("lengths", "width", "heads", "page", "block", "topk", "init", "local"),
    [
        ([1], 1, 1, 16, 16, 4, 0, 1),  # one token
        ([100, 45], 1, 4, 16, 16, 3, 0, 1),  # decode
        ([100, 66], 8, 4, 8, 16, 3, 0, 1),  # K=7: rows of one request on both sides of a block's edge
        ([70], 5, 3, 64, 8, 2, 1, 2),  # a block smaller than a page; forced first and last blocks
        ([50, 3], 6, 2, 10, 20, 3, 2, 1),  # no power of 2 anywhere; padding rows
    ],
)
def test_equals_the_per_row_rule(
    fmt: str, lengths: list[int], width: int, heads: int, page: int, block: int, topk: int, init: int, local: int,
    device: torch.device, generator: torch.Generator,
) -> None:  # fmt: skip
    iq, pages, table, positions = setup(fmt, lengths, width, heads, page, generator)
    args = [x.to(device) for x in (iq, table, positions)]
    pages = tuple(p.to(device) for p in pages)
    rule = {"block_size": block, "topk": topk, "init_blocks": init, "local_blocks": local, "max_length": max(lengths)}
    found = index.index_topk(args[0], pages, fmt, args[1], args[2], **rule)
    assert found.equal(reference.index_topk(args[0], pages, fmt, args[1], args[2], **rule))


@pytest.mark.parametrize("fmt", ["float32", "fp4_nv"])
def test_all_rows_of_a_request_choose_as_each_alone(
    fmt: str, device: torch.device, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused pass over K+1 rows, split or whole, against K+1 passes over one row."""
    width = 8
    iq, pages, table, positions = setup(fmt, [210], width, 2, 16, generator)
    iq, table, positions = iq.to(device), table.to(device), positions.to(device)
    pages = tuple(p.to(device) for p in pages)
    rule = {"block_size": 16, "topk": 4, "init_blocks": 0, "local_blocks": 1, "max_length": 210}
    together = index.index_topk(iq, pages, fmt, table, positions, **rule)
    monkeypatch.setattr(index, "SPLIT_BLOCKS", 4)
    split = index.index_topk(iq, pages, fmt, table, positions, **rule)
    assert split.equal(together)
    for j in range(0, width, 3):
        alone = index.index_topk(iq[j : j + 1], pages, fmt, table, positions[:, j : j + 1].contiguous(), **rule)
        assert alone[0].equal(together[j])


def test_ties_go_to_the_lowest_id_and_the_own_block_comes_first(device: torch.device) -> None:
    keys = torch.ones(1, 64, 32)
    iq, table = torch.ones(1, 1, 32, device=device), torch.zeros(1, 1, dtype=torch.int64, device=device)
    rule = {"block_size": 8, "topk": 4, "init_blocks": 0, "local_blocks": 1, "max_length": 60}
    found = index.index_topk(iq, (keys.to(device),), "float32", table, torch.tensor([[59]], device=device), **rule)
    assert found.tolist() == [[[7, 0, 1, 2]]]


def test_a_nan_loses_but_is_still_chosen_where_nothing_else_is(device: torch.device) -> None:
    keys = torch.ones(1, 64, 32)
    keys[0, :8] = torch.nan
    keys[0, 25] = torch.nan  # its block has better ones
    keys[0, 16:24] = -1.0
    keys[0, 45] = torch.nan  # in the row's own block, after the row
    iq, table = torch.ones(1, 1, 32, device=device), torch.zeros(1, 1, dtype=torch.int64, device=device)
    rule = {"block_size": 8, "topk": 8, "init_blocks": 0, "local_blocks": 1, "max_length": 45}
    args = (iq, (keys.to(device),), "float32", table, torch.tensor([[44]], device=device))
    assert index.index_topk(*args, **rule).tolist() == [[[5, 1, 3, 4, 2, 0, -1, -1]]]
    assert reference.index_topk(*args, **rule).tolist() == [[[5, 1, 3, 4, 2, 0, -1, -1]]]


def test_the_blocks_are_those_of_the_engines_indexer(device: torch.device, generator: torch.Generator) -> None:
    iq, pages, table, positions = setup("float32", [75], 3, 2, 16, generator)
    pages[0][table[0, 1], 5] = torch.nan
    rule = SparseConfig(layers=(True,), computes=(True,), index_heads=2, index_dim=32, block_size=8, topk=4,
                        init_blocks=1, local_blocks=1)  # fmt: skip
    found = index.index_topk(
        iq.to(device), (pages[0].to(device),), "float32", table.to(device), positions.to(device), block_size=8, topk=4,
        init_blocks=1, local_blocks=1, max_length=75,
    )  # fmt: skip
    keys = pages[0][table[0]].flatten(0, 1)
    for j in range(3):
        expected = reference_blocks(iq[j], keys, int(positions[0, j]), rule)
        assert [sorted(head) for head in found[j].tolist()] == expected


def test_the_twin_is_the_rule_spelled_out(generator: torch.Generator) -> None:
    """choose_blocks against a sort of (score, id) pairs in plain Python."""
    for length in (1, 7, 8, 33, 64):
        scores = torch.randint(-3, 4, (2, length), generator=generator).float()
        chosen = reference.choose_blocks(scores, 8, 3, 1, 1)
        for head in range(2):
            blocks = [max(scores[head, i : i + 8].tolist()) for i in range(0, length, 8)]
            blocks[0] = 1e30
            blocks[-1] = 1e29
            order = sorted(range(len(blocks)), key=lambda b: (-blocks[b], b))[:3]
            assert chosen[head].tolist() == order + [-1] * (3 - len(order))

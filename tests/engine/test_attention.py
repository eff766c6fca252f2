from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention import (
    BlockAttend,
    ChainAttend,
    PagedAttend,
    reference_attention,
    reference_block_attention,
    store_context,
)
from engine.batch import Batch
from engine.config import SparseConfig
from engine.kernels import Kernels
from engine.kv_cache import KVCache, LayerSpec
from engine.layers import Index
from engine.quant import FORMATS, INDEX_FORMATS

ALL = tuple(FORMATS)
PAGE, HEADS, KV_HEADS, DIM = 4, 4, 2, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq:
    """One sequence of a batch: tokens already stored, and rows of this tick."""

    past: int
    rows: int


def make_cache(fmt: str, num_pages: int = 64, layers: int = 1, kernels: Kernels | None = None) -> KVCache:
    spec = LayerSpec(format=fmt, kv_heads=KV_HEADS, head_dim=DIM)
    return KVCache([spec] * layers, num_pages=num_pages, page_size=PAGE, kernels=kernels)


def make_table(seqs: list[Seq], spare_columns: int = 0) -> Tensor:
    """Pages in no order, none shared, padded with 0."""
    order = torch.randperm(63, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    counts = [-(-(s.past + s.rows) // PAGE) for s in seqs]
    table = torch.zeros(len(seqs), max(counts) + spare_columns, dtype=torch.int64)
    for i, count in enumerate(counts):
        table[i, :count] = torch.tensor([order.pop() for _ in range(count)])
    return table


def make_batch(seqs: list[Seq], table: Tensor, width: int | None = None) -> Batch:
    width = width or max(s.rows for s in seqs)
    positions = torch.full((len(seqs), width), -1)
    for i, s in enumerate(seqs):
        positions[i, : s.rows] = torch.arange(s.past, s.past + s.rows)
    safe = positions.clamp(min=0)
    slots = torch.where(positions < 0, -1, table.gather(1, safe // PAGE) * PAGE + safe % PAGE)
    lengths = torch.tensor([s.past + s.rows for s in seqs])
    return Batch(ids=positions, positions=positions, slots=slots, page_table=table, lengths=lengths)


def draw(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    q = torch.randn(rows, HEADS, DIM, generator=gen)
    k, v = torch.randn(2, rows, KV_HEADS, DIM, generator=gen).unbind()
    return q, k, v


def fill_past(cache: KVCache, seqs: list[Seq], table: Tensor, seed: int = 9) -> None:
    past = [Seq(past=0, rows=s.past) for s in seqs]
    batch = make_batch(past, table, width=max(1, *(s.past for s in seqs)))
    _, k, v = draw(batch.positions.numel(), seed)
    cache.store(0, batch.slots.flatten(), k, v)


RAGGED = {
    "one row": [Seq(past=0, rows=1)],
    "decode at page edges": [Seq(past=p, rows=1) for p in (0, 1, 3, 4, 5, 7, 8, 21)],
    "prefill": [Seq(past=0, rows=r) for r in (1, 4, 5, 13)],
    "chunks": [Seq(past=3, rows=6), Seq(past=4, rows=4), Seq(past=0, rows=2)],
    "verify with padding": [Seq(past=6, rows=3), Seq(past=9, rows=1), Seq(past=15, rows=0), Seq(past=2, rows=3)],
    "a sequence of nothing": [Seq(past=0, rows=0), Seq(past=5, rows=2)],
}


@pytest.mark.parametrize("fmt", ALL)
@pytest.mark.parametrize("name", RAGGED)
def test_paged_attention_equals_its_slow_twin(name: str, fmt: str) -> None:
    seqs = RAGGED[name]
    cache, table = make_cache(fmt), make_table(seqs, spare_columns=2)
    fill_past(cache, seqs, table)
    batch = make_batch(seqs, table)
    q, k, v = draw(batch.positions.numel())
    got = PagedAttend(batch, cache)(0, q, k, v)
    assert got.shape == (q.shape[0], HEADS * DIM)
    torch.testing.assert_close(got, reference_attention(batch, cache, 0, q), rtol=1e-5, atol=1e-5)
    padding = batch.positions.flatten() < 0
    assert not got[padding].any() and got[~padding].any(dim=1).all()


def test_only_padding() -> None:
    cache = make_cache("float32")
    batch = make_batch([Seq(past=0, rows=0)] * 2, torch.zeros(2, 1, dtype=torch.int64), width=3)
    assert PagedAttend(batch, cache)(0, *draw(6)).tolist() == [[0.0] * HEADS * DIM] * 6


def test_prefill_equals_plain_causal_attention() -> None:
    """Against torch itself, with no cache between."""
    seqs = [Seq(past=0, rows=11)]
    cache, batch = make_cache("float32"), make_batch(seqs, make_table(seqs))
    q, k, v = draw(11)
    got = PagedAttend(batch, cache)(0, q, k, v)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1) for x in (k, v))
    want = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, scale=DIM**-0.5)
    torch.testing.assert_close(got, want.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("fmt", ALL)
def test_verify_and_plain_decode_read_the_same_numbers(fmt: str) -> None:
    seqs = [Seq(past=5, rows=6), Seq(past=8, rows=6)]
    table = make_table(seqs)
    q, k, v = draw(12)
    outs = []
    for widths in ([6], [1] * 6, [2, 4]):
        cache, done, parts = make_cache(fmt), 0, []
        fill_past(cache, seqs, table)
        for w in widths:
            batch = make_batch([Seq(past=s.past + done, rows=w) for s in seqs], table)
            pick = torch.tensor([i * 6 + done + j for i in range(2) for j in range(w)])
            parts.append(PagedAttend(batch, cache)(0, q[pick], k[pick], v[pick]).view(2, w, -1))
            done += w
        outs.append(torch.cat(parts, dim=1))
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outs[0], outs[2], rtol=1e-5, atol=1e-6)


def test_a_row_sees_its_own_key_through_the_format() -> None:
    """One token alone: its output is its own V, as stored."""
    for fmt in ALL:
        cache = make_cache(fmt)
        batch = make_batch([Seq(past=0, rows=1)], torch.tensor([[7]]))
        q, k, v = draw(1)
        got = PagedAttend(batch, cache)(0, q, k, v).view(KV_HEADS, -1, DIM)
        f = FORMATS[fmt]
        want = f.decode(f.encode(v), torch.float32)[0].unsqueeze(1).expand_as(got)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_rejected_rows_and_other_pages_do_not_matter() -> None:
    seqs = [Seq(past=6, rows=2)]
    table = make_table(seqs, spare_columns=1)
    outs = []
    for junk in (0.0, 50.0):
        cache = make_cache("float32")
        cache.store(0, torch.arange(64 * PAGE), *(torch.full((64 * PAGE, KV_HEADS, DIM), junk) for _ in range(2)))
        fill_past(cache, seqs, table)
        outs.append(PagedAttend(make_batch(seqs, table), cache)(0, *draw(2)))
    assert torch.equal(outs[0], outs[1])


def test_layers_and_offset() -> None:
    seqs = [Seq(past=0, rows=3)]
    cache = make_cache("float32", layers=3)
    batch = make_batch(seqs, make_table(seqs))
    attend = PagedAttend(batch, cache, layer_offset=1)
    for layer in (0, 1):
        q, k, v = draw(3, seed=layer)
        got = attend(layer, q, k, v)
        torch.testing.assert_close(got, reference_attention(batch, cache, 1 + layer, q), rtol=1e-5, atol=1e-5)
    assert not cache.gather(0, batch.page_table)[0].any()


@pytest.mark.parametrize("fmt", ALL)
@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize(("lengths", "window"), [([5], 0), ([1, 4, 8, 9], 0), ([0, 3], 0), ([0, 0], 0), ([1, 4, 9], 4)])
def test_block_attention_equals_its_slow_twin(lengths: list[int], window: int, width: int, fmt: str) -> None:
    seqs = [Seq(past=length, rows=width) for length in lengths]
    cache, table = make_cache(fmt, layers=3), make_table(seqs)
    context = make_batch([Seq(past=0, rows=length) for length in lengths], table, width=max(1, *lengths, 1))
    pairs = [draw(context.positions.numel(), seed)[1:] for seed in (3, 4)]
    store_context(cache, 1, context.slots.flatten(), pairs)
    before = [cache.gather(layer, table)[0].clone() for layer in range(3)]
    assert not before[0].any()
    attend = BlockAttend(cache, 1, table, torch.tensor(lengths), window)
    for layer in (0, 1):
        q, k, v = draw(len(lengths) * width, seed=layer)
        got = attend(layer, q, k, v)
        want = reference_block_attention(cache, 1 + layer, table, torch.tensor(lengths), q, k, v, window)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for layer in range(3):
        assert torch.equal(cache.gather(layer, table)[0], before[layer])


def test_block_rows_see_later_block_rows_but_no_other_block() -> None:
    cache, table, lengths = make_cache("float32"), torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 2])
    q, k, v = draw(6)

    def changed(row: int) -> list[bool]:
        attend = BlockAttend(cache, 0, table, lengths)
        other = v.clone()
        other[row] += 1
        return (attend(0, q, k, v) != attend(0, q, k, other)).any(dim=1).tolist()

    assert changed(2) == [True] * 3 + [False] * 3
    assert changed(3) == [False] * 3 + [True] * 3


def test_an_off_by_one_mask_is_seen() -> None:
    """The twin is able to fail: rows moved by one position give other numbers."""
    seqs = [Seq(past=6, rows=3)]
    cache, table = make_cache("float32"), make_table(seqs)
    fill_past(cache, seqs, table)
    batch = make_batch(seqs, table)
    q, k, v = draw(3)
    attend = PagedAttend(batch, cache)
    attend.hidden = torch.arange(attend.hidden.shape[-1]) > batch.positions.unsqueeze(-1) - 1
    got = attend(0, q, k, v)
    assert not torch.allclose(got, reference_attention(batch, cache, 0, q), rtol=1e-3, atol=1e-3)


SPARSE = SparseConfig(
    layers=(True, True), computes=(True, False), index_heads=KV_HEADS, index_dim=16, block_size=8, topk=3,
    init_blocks=0, local_blocks=1,
)  # fmt: skip
LONG = {
    "decode": [Seq(past=p, rows=1) for p in (30, 31, 32, 47, 70)],
    "verify over a block's edge": [Seq(past=29, rows=5), Seq(past=64, rows=5), Seq(past=3, rows=5)],
    "ragged": [Seq(past=40, rows=3), Seq(past=0, rows=0), Seq(past=61, rows=1)],
    "prefill": [Seq(past=0, rows=45), Seq(past=24, rows=9)],
}


def sparse_cache(index_format: str = "float32", kernels: Kernels | None = None) -> KVCache:
    specs = [
        LayerSpec(format="float32", kv_heads=KV_HEADS, head_dim=DIM, index_format=index_format, index_dim=16),
        LayerSpec(format="float32", kv_heads=KV_HEADS, head_dim=DIM),
    ]
    return KVCache(specs, num_pages=64, page_size=PAGE, kernels=kernels)


def draw_index(rows: int, seed: int) -> Index:
    gen = torch.Generator().manual_seed(seed)
    return Index(torch.randn(rows, KV_HEADS, 16, generator=gen), torch.randn(rows, 16, generator=gen))


def fill_index(cache: KVCache, seqs: list[Seq], table: Tensor) -> None:
    batch = make_batch([Seq(past=0, rows=s.past) for s in seqs], table, width=max(1, *(s.past for s in seqs)))
    cache.store_index(0, batch.slots.flatten(), draw_index(batch.positions.numel(), 17).k)


@pytest.mark.parametrize("index_format", [n for n, f in INDEX_FORMATS.items() if 16 % f.block == 0])
@pytest.mark.parametrize("name", LONG)
def test_block_sparse_attention_equals_its_slow_twin(name: str, index_format: str) -> None:
    seqs = LONG[name]
    cache, table = sparse_cache(index_format), make_table(seqs, spare_columns=1)
    fill_past(cache, seqs, table)
    fill_index(cache, seqs, table)
    batch = make_batch(seqs, table)
    rows = batch.positions.numel()
    q, k, v = draw(rows)
    index = draw_index(rows, 5)
    got = PagedAttend(batch, cache, sparse=SPARSE)(0, q, k, v, index)
    want = reference_attention(batch, cache, 0, q, index.q, SPARSE)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    dense = PagedAttend(batch, cache)(0, q, k, v)
    assert not torch.allclose(got, dense, atol=1e-3)


def test_a_layer_without_an_index_takes_the_pick_before_it() -> None:
    seqs = LONG["decode"]
    cache, table = sparse_cache(), make_table(seqs)
    for layer in (0, 1):
        past = make_batch([Seq(past=0, rows=s.past) for s in seqs], table, width=max(s.past for s in seqs))
        _, k, v = draw(past.positions.numel(), 9)
        cache.store(layer, past.slots.flatten(), k, v)
    fill_index(cache, seqs, table)
    batch = make_batch(seqs, table)
    q, k, v = draw(batch.positions.numel())
    attend = PagedAttend(batch, cache, sparse=SPARSE)
    first = attend(0, q, k, v, draw_index(batch.positions.numel(), 5))
    assert torch.equal(attend(1, q, k, v), first)


def test_sparse_is_dense_to_the_bit_while_all_blocks_fit() -> None:
    seqs = [Seq(past=19, rows=5), Seq(past=0, rows=5)]  # 24 keys: three blocks of 8
    cache, table = sparse_cache(), make_table(seqs)
    fill_past(cache, seqs, table)
    batch = make_batch(seqs, table)
    q, k, v = draw(batch.positions.numel())
    index = draw_index(batch.positions.numel(), 5)
    got = PagedAttend(batch, cache, sparse=SPARSE)(0, q, k, v, index)
    assert torch.equal(got, PagedAttend(batch, cache)(0, q, k, v))


def test_a_long_neighbour_does_not_change_a_short_sequence() -> None:
    """Its blocks all fit, though the batch as a whole picks."""
    seqs = [Seq(past=9, rows=2), Seq(past=60, rows=2)]
    cache, table = sparse_cache(), make_table(seqs)
    fill_past(cache, seqs, table)
    fill_index(cache, seqs, table)
    batch = make_batch(seqs, table)
    q, k, v = draw(4)
    got = PagedAttend(batch, cache, sparse=SPARSE)(0, q, k, v, draw_index(4, 5))
    torch.testing.assert_close(got[:2], PagedAttend(batch, cache)(0, q, k, v)[:2], rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ chains


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chain_is_causal_attention_over_its_context(dtype: torch.dtype) -> None:
    """Three passes of two sequences against softmax attention of each row over the keys it may see, one by one."""
    gen = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, 2, 7, KV_HEADS, DIM, generator=gen).to(dtype).unbind()
    hidden = torch.tensor([[True, *[False] * 6], [True, False, False, *[True] * 4]])
    chain, own = ChainAttend(keys, values, hidden), []
    for seed in range(3):
        q, k, v = (x.to(dtype) for x in draw(2, seed))
        own.append((k, v))
        got = chain(0, q, k, v).view(2, HEADS, DIM)
        for i in range(2):
            seen = torch.cat((keys[i][~hidden[i]], torch.stack([k[i] for k, _ in own]))).repeat_interleave(2, 1)
            what = torch.cat((values[i][~hidden[i]], torch.stack([v[i] for _, v in own]))).repeat_interleave(2, 1)
            weights = (torch.einsum("hd,khd->hk", q[i].double(), seen.double()) * DIM**-0.5).softmax(-1)
            want = torch.einsum("hk,khd->hd", weights, what.double())
            torch.testing.assert_close(got[i].double(), want, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)


def test_a_chain_without_context_sees_itself() -> None:
    q, k, v = draw(2)
    none = torch.zeros(2, 0, KV_HEADS, DIM)
    got = ChainAttend(none, none, torch.zeros(2, 0, dtype=torch.bool))(0, q, k, v)
    torch.testing.assert_close(got.view(2, HEADS, DIM), v.repeat_interleave(2, 1))


def test_stored_vectors_are_read_by_slot() -> None:
    cache = sparse_cache()
    vectors = torch.randn(5, cache.layers[0].index_dim, generator=torch.Generator().manual_seed(0))
    slots = torch.tensor([9, 3, -1, 17, 4])
    cache.store_index(0, slots, vectors)
    torch.testing.assert_close(cache.index_at(0, torch.tensor([17, 9, 4])), vectors[[3, 0, 4]])

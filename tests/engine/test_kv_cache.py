from __future__ import annotations

import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv_cache import KVCache, LayerSpec, bytes_per_token
from engine.prefix_cache import OutOfPages, PagePool, PageTable, chain_hash
from engine.quant import FORMATS

ALL = tuple(FORMATS)


def small(fmt: str, kv_heads: int = 2, head_dim: int = 32) -> LayerSpec:
    return LayerSpec(format=fmt, kv_heads=kv_heads, head_dim=head_dim)


# ------------------------------------------------------------------ storage


@pytest.mark.parametrize("fmt", ALL)
def test_gather_returns_what_store_encoded(fmt: str) -> None:
    cache = KVCache([small(fmt)] * 2, num_pages=6, page_size=4)
    k, v = torch.randn(2, 9, 2, 32).unbind()
    slots = torch.tensor([20, 21, 22, 23, 4, 5, 6, 7, 12])  # pages 5, 1, 3
    cache.store(1, slots, k, v)
    got_k, got_v = cache.gather(1, torch.tensor([[5, 1], [3, 0]]))
    f = FORMATS[fmt]
    want_k, want_v = (f.decode(f.encode(x), torch.float32) for x in (k, v))
    assert got_k.shape == got_v.shape == (2, 8, 2, 32)
    assert torch.equal(got_k[0], want_k[:8]) and torch.equal(got_v[0], want_v[:8])
    assert torch.equal(got_k[1, 0], want_k[8]) and torch.equal(got_v[1, 0], want_v[8])
    assert not got_k[1, 1:].any() and not got_v[1, 1:].any()
    other_k, other_v = cache.gather(0, torch.arange(6).unsqueeze(0))
    assert not other_k.any() and not other_v.any()


@pytest.mark.parametrize("fmt", ALL)
def test_slot_minus_one_is_ignored(fmt: str) -> None:
    cache = KVCache([small(fmt)], num_pages=3, page_size=2)
    every = torch.arange(3).unsqueeze(0)
    k, v = torch.randn(2, 6, 2, 32).unbind()
    cache.store(0, torch.arange(6), k, v)
    before = cache.gather(0, every)
    bad = torch.full((4, 2, 32), torch.nan)
    bad[2] = 3.0
    cache.store(0, torch.tensor([-1, -1, 4, -1]), bad, bad)
    for old, new in zip(before, cache.gather(0, every), strict=True):
        assert (new[0, 4] == 3).all() and new.isfinite().all()
        assert torch.equal(old[0, [0, 1, 2, 3, 5]], new[0, [0, 1, 2, 3, 5]])


def test_gathered_tensors_are_copies() -> None:
    cache = KVCache([small("float32")], num_pages=1, page_size=2)
    cache.gather(0, torch.zeros(1, 1, dtype=torch.int64))[0].fill_(7)
    assert not cache.gather(0, torch.zeros(1, 1, dtype=torch.int64))[0].any()


def test_layers_may_differ_and_compute_dtype_is_kept() -> None:
    specs = [small("nvfp4"), small("fp8"), small("nvfp4"), small("bf16", kv_heads=1, head_dim=48)]
    cache = KVCache(specs, num_pages=5, page_size=4, dtype=torch.bfloat16)
    for i, spec in enumerate(specs):
        k, v = torch.randn(2, 3, spec.kv_heads, spec.head_dim).bfloat16().unbind()
        cache.store(i, torch.tensor([3, 8, 17]), k, v)
        got, _ = cache.gather(i, torch.tensor([[0], [2], [4]]))
        assert got.shape == (3, 4, spec.kv_heads, spec.head_dim) and got.dtype == torch.bfloat16
        torch.testing.assert_close(got[[0, 1, 2], [3, 0, 1]], k, rtol=0.2, atol=0.3)


@pytest.mark.parametrize(("fmt", "size"), [("float32", 512), ("bf16", 256), ("fp8", 132), ("nvfp4", 72)])
def test_bytes_are_what_is_allocated(fmt: str, size: int) -> None:
    specs = [small(fmt, kv_heads=4, head_dim=128)] * 3
    cache = KVCache(specs, num_pages=7, page_size=16)
    assert cache.bytes_per_token() == bytes_per_token(specs) == 3 * 2 * 4 * size
    assert cache.nbytes == (7 + 1) * 16 * cache.bytes_per_token()
    assert len(cache._storage) == len(FORMATS[fmt].parts(128))  # one allocation a part, whatever the layers


def test_unknown_format() -> None:
    with pytest.raises(KeyError, match="int4"):
        KVCache([small("int4")], num_pages=1, page_size=1)


# ------------------------------------------------------------------ pages


def test_allocate_all_or_nothing() -> None:
    pool = PagePool(4, 2)
    pages = pool.allocate(3)
    assert pages == [0, 1, 2] and pool.in_use == 3 and pool.available == 1
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 available of 4"):
        pool.allocate(2)
    assert pool.in_use == 3
    pool.release(pages)
    assert pool.in_use == 0 and sorted(pool.allocate(4)) == [0, 1, 2, 3]


def test_releasing_twice_is_an_error() -> None:
    pool = PagePool(2, 2)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="not held"):
        pool.release(pages)


def test_page_table_slots_and_truncation() -> None:
    pool = PagePool(8, 4)
    pool.allocate(2)
    table = PageTable(pool)
    table.grow(9)
    assert table.pages == [2, 3, 4]
    assert table.slots(range(3, 9)) == [11, 12, 13, 14, 15, 16]
    table.grow(5)  # never shrinks
    assert len(table.pages) == 3
    table.truncate(8)
    assert table.pages == [2, 3] and pool.in_use == 4
    table.truncate(5)
    assert table.pages == [2, 3]
    with pytest.raises(IndexError):
        table.slots([8])
    table.truncate(0)
    assert table.pages == [] and pool.in_use == 2


def finished(pool: PagePool, tokens: list[int]) -> PageTable:
    """A sequence with all of `tokens` computed and published."""
    table = PageTable(pool)
    table.reuse(tokens, room=len(tokens))
    table.publish(tokens, len(tokens))
    return table


def test_prefix_chain() -> None:
    pool = PagePool(20, 4)
    a = finished(pool, list(range(14)))
    assert a.sealed == 12
    b = PageTable(pool)
    assert b.reuse([*range(9), 99, 98]) == 8  # page 0 and 1 agree, page 2 does not
    assert b.pages == a.pages[:2] and pool.refs(b.pages[0]) == 2
    c = PageTable(pool)
    assert c.reuse([99, 1, 2, 3, *range(4, 14)]) == 0  # the same second page after another first one
    assert (pool.stats.queries, pool.stats.hits) == (14 + 11 + 14, 8)
    with pytest.raises(ValueError, match="read-only"):
        b.slots([7])
    for table in (a, b, c):
        table.release()
    assert pool.in_use == 0 and pool.cached == 3


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (20, 12)]
)
def test_one_token_is_always_computed(length: int, cached: int) -> None:
    pool = PagePool(20, 4)
    finished(pool, list(range(12))).release()
    table = PageTable(pool)
    assert table.reuse(list(range(length))) == cached
    table.grow(length)
    table.slots(range(cached, length))


def test_only_committed_and_computed_tokens_are_published() -> None:
    pool = PagePool(20, 4)
    table = PageTable(pool)
    committed = list(range(6))
    table.grow(12)  # a block of drafts reaches into pages 1 and 2
    table.publish(committed, 5)
    assert table.sealed == 4
    table.truncate(6)
    committed += [6, 7]
    table.publish(committed, 7)  # the last token is committed, its K and V are not there yet
    assert table.sealed == 4
    table.publish(committed, 8)
    assert table.sealed == 8
    with pytest.raises(ValueError, match="the first 8 are published"):
        table.truncate(7)


def test_same_content_twice_keeps_the_first() -> None:
    pool = PagePool(20, 4)
    tokens = list(range(9))
    a, b = PageTable(pool), PageTable(pool)
    for table in (a, b):
        assert table.reuse(tokens, room=9) == 0
    for table in (a, b):
        table.publish(tokens, 9)
    first = a.pages[:2]
    a.release()
    b.release()
    assert pool.in_use == 0 and pool.cached == 2
    c = PageTable(pool)
    assert c.reuse(tokens) == 8 and c.pages == first


def test_least_recently_used_goes_first_and_a_prefix_outlives_its_end() -> None:
    pool = PagePool(6, 2)
    old, new = finished(pool, [1, 2, 3, 4, 5, 6]), finished(pool, [7, 8, 9, 10, 11, 12])
    old_pages, new_pages = list(old.pages), list(new.pages)
    new.release()
    old.release()
    again = PageTable(pool)
    again.reuse([7, 8, 9, 10, 0])  # its first two pages are in use once more, so only its third is old
    assert pool.allocate(2) == [new_pages[2], old_pages[2]]
    assert pool.stats.evictions == 2
    again.release()
    assert pool.allocate(1) == [old_pages[1]]
    assert PageTable(pool).reuse([1, 2, 3, 4, 0]) == 2
    assert PageTable(pool).reuse([7, 8, 9, 10, 0]) == 4


def test_admission_without_room_changes_nothing() -> None:
    pool = PagePool(5, 2)
    finished(pool, [1, 2, 3, 4]).release()
    pool.allocate(2)
    table = PageTable(pool)
    with pytest.raises(OutOfPages):
        table.reuse([1, 2, 3, 4, 5], room=20)
    assert table.pages == [] and pool.in_use == 2 and pool.cached == 2
    assert (pool.stats.queries, pool.stats.hits) == (4, 0)
    assert table.reuse([1, 2, 3, 4, 5], room=5) == 4 and pool.in_use == 5


def test_a_hash_collision_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.prefix_cache.chain_hash", lambda parent, tokens: b"same")
    pool = PagePool(5, 2)
    finished(pool, [1, 2, 3]).release()
    assert PageTable(pool).reuse([4, 5, 6]) == 0
    assert PageTable(pool).reuse([1, 2, 6]) == 2


def test_cache_switched_off() -> None:
    pool = PagePool(4, 2, prefix_cache=False)
    finished(pool, [1, 2, 3, 4]).release()
    assert PageTable(pool).reuse([1, 2, 3, 4]) == 0
    assert (pool.cached, pool.in_use, pool.stats.queries) == (0, 0, 0)


def test_drop_cached() -> None:
    pool = PagePool(8, 2)
    held = finished(pool, [1, 2, 3])
    finished(pool, [5, 6, 7]).release()
    pool.drop_cached()
    assert (pool.cached, pool.in_use, pool.stats.evictions) == (0, 2, 0)
    assert PageTable(pool).reuse([5, 6, 7]) == 0
    assert PageTable(pool).reuse([1, 2, 9]) == 2
    held.release()


def test_chain_hash_depends_on_parent_and_order() -> None:
    one = chain_hash(b"", [1, 2])
    assert len({one, chain_hash(b"", [2, 1]), chain_hash(one, [1, 2]), chain_hash(b"", [1, 2 + 2**40])}) == 4


class Sequence:
    def __init__(self, pool: PagePool) -> None:
        self.table = PageTable(pool)
        self.tokens: list[int] = []
        self.computed = 0


class PoolMachine(RuleBasedStateMachine):
    """Sequences that come, speculate, are cut back, preempted and finish; `content` stands for the K and V.

    A slot holds the tokens up to and with its own, so a wrong, stale or overwritten page is seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12, 3)
        self.content: dict[int, tuple[int, ...]] = {}
        self.running: list[Sequence] = []

    def write(self, seq: Sequence, tokens: list[int], start: int) -> None:
        for p, slot in zip(range(start, len(tokens)), seq.table.slots(range(start, len(tokens))), strict=True):
            self.content[slot] = tuple(tokens[: p + 1])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), publish=st.booleans())
    def admit(self, tokens: list[int], publish: bool) -> None:
        seq, before = Sequence(self.pool), self.pool.in_use
        try:
            cached = seq.table.reuse(tokens, room=len(tokens))
        except OutOfPages:
            assert self.pool.in_use == before
            return
        assert cached < len(tokens) and cached % 3 == 0
        seq.tokens, seq.computed = tokens, len(tokens)
        self.write(seq, tokens, cached)
        if publish:
            seq.table.publish(tokens, seq.computed)
        self.running.append(seq)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99), block=st.lists(st.integers(0, 1), min_size=1, max_size=8), kept=st.integers(1, 8))
    def speculate(self, pick: int, block: list[int], kept: int) -> None:
        """Compute a block, keep a part of it, give the rest back."""
        seq = self.running[pick % len(self.running)]
        rows = seq.tokens + block
        try:
            seq.table.grow(len(rows))
        except OutOfPages:
            self.finish(pick)  # preempted
            return
        self.write(seq, rows, len(seq.tokens))
        seq.tokens = seq.tokens + block[:kept]
        seq.computed = len(seq.tokens)
        seq.table.truncate(len(seq.tokens))
        seq.table.publish(seq.tokens, seq.computed)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99))
    def finish(self, pick: int) -> None:
        self.running.pop(pick % len(self.running)).table.release()

    @rule()
    def drop(self) -> None:
        self.pool.drop_cached()

    @invariant()
    def pages_are_counted(self) -> None:
        held = [page for seq in self.running for page in seq.table.pages]
        for page in range(12):
            assert self.pool.refs(page) == held.count(page)
        for seq in self.running:
            assert len(set(seq.table.pages)) == len(seq.table.pages)
        free, cached = self.pool._free, list(self.pool._cached)
        assert sorted([*free, *cached, *set(held)]) == list(range(12))
        assert self.pool.in_use == len(set(held))
        assert set(self.pool._by_digest.values()) == set(self.pool._published) >= set(cached)

    @invariant()
    def content_is_whole(self) -> None:
        for seq in self.running:
            for p in range(seq.computed):
                slot = seq.table.pages[p // 3] * 3 + p % 3
                assert self.content[slot] == tuple(seq.tokens[: p + 1])

    def teardown(self) -> None:
        while self.running:
            self.finish(0)
        assert self.pool.in_use == 0 and self.pool.available == 12


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
TestPoolMachine = PoolMachine.TestCase


def test_many_requests_leave_no_page_behind() -> None:
    """The same machine at length, from a plain seed."""
    rng = random.Random(7)
    machine = PoolMachine()
    for _ in range(1500):
        if rng.random() < 0.3:
            machine.admit([rng.randrange(2) for _ in range(rng.randint(1, 14))], True)
        elif machine.running and rng.random() < 0.7:
            block = [rng.randrange(2) for _ in range(rng.randint(1, 8))]
            machine.speculate(rng.randrange(99), block, rng.randint(1, 8))
        elif machine.running:
            machine.finish(rng.randrange(99))
        machine.pages_are_counted()
        machine.content_is_whole()
    stats = machine.pool.stats
    assert stats.hits > 200 and stats.evictions > 500
    machine.teardown()

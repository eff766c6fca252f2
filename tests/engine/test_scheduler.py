from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import Request, SamplingParams
from engine.prefix_cache import PagePool, PageTable
from engine.request import Sequence
from engine.scheduler import Plan, Scheduler


def sequence(pool: PagePool, name: str, prompt: int, output: int = 5, max_len: int = 64) -> Sequence:
    first = sum(map(ord, name))
    return Sequence(
        Request(id=name, prompt="", params=SamplingParams(max_tokens=output)),
        [first + i for i in range(prompt)],
        max_model_len=max_len,
        stop_ids={},
        watch=None,
        run_seed=0,
        table=PageTable(pool),
    )


def scheduler(
    pages: int = 100, *, k: int = 0, batch: int = 8, budget: int = 64, prefix: bool = False
) -> tuple[PagePool, Scheduler]:
    pool = PagePool(pages, 4, prefix)
    return pool, Scheduler(pool, max_batch=batch, max_batched_tokens=budget, k=k)


def play(plan: Plan, accept: int = 0, k: int = 0) -> None:
    """What the runner does to the sequences, without a model."""
    for c in plan.prefill:
        assert c.start == c.seq.stored
        c.seq.stored += c.count
        assert len(c.seq.table.pages) * 4 >= c.seq.stored
        if c.seq.stored == c.seq.to_store and not c.seq.emitted:
            c.seq.commit_first(7)
    for seq in plan.decode:
        room = seq.draft_room(k)
        assert seq.stored == len(seq.tokens) - 1
        assert len(seq.table.pages) * 4 >= seq.stored + 1 + room
        seq.commit_step([7] * (min(accept, room) + 1), room)


def names(seqs: list[Sequence]) -> list[str]:
    return [s.request.id for s in seqs]


def test_prefill_goes_first_and_is_never_mixed_with_decode() -> None:
    pool, s = scheduler(batch=2)
    s.add(sequence(pool, n, 3, output=2) for n in "abc")
    kinds = []
    while plan := s.next():
        assert bool(plan.prefill) != bool(plan.decode)
        kinds.append("".join(c.seq.request.id for c in plan.prefill) or len(plan.decode))
        play(plan)
        s.settle(plan)
    assert kinds == ["ab", 2, "c", 1]
    assert pool.in_use == 0


def test_a_long_prompt_comes_in_chunks_and_gives_one_first_token() -> None:
    pool, s = scheduler(budget=8)
    s.add([sequence(pool, "a", 19)])
    counts, last = [], []
    while (plan := s.next()) and plan.prefill:
        counts += [c.count for c in plan.prefill]
        last += [c.last for c in plan.prefill]
        play(plan)
        s.settle(plan)
    assert counts == [8, 8, 3]
    assert last == [False, False, True]


def test_a_prefill_tick_counts_padding() -> None:
    pool, s = scheduler(budget=20)
    s.add(sequence(pool, n, size) for n, size in (("a", 4), ("b", 8), ("c", 2), ("d", 2)))
    plan = s.next()
    assert plan is not None
    assert [(c.seq.request.id, c.count) for c in plan.prefill] == [("a", 4), ("b", 8)]  # 3 x 8 rows are too many


def test_the_youngest_is_preempted_and_goes_to_the_front() -> None:
    pool, s = scheduler(pages=7, batch=4)
    s.add(sequence(pool, n, 6, output=12) for n in "abc")
    seen: list[str] = []
    for _ in range(200):
        plan = s.next()
        if plan is None:
            break
        if s.preemptions and not seen:
            seen = names(list(s.waiting))
        play(plan)
        s.settle(plan)
    assert s.preemptions > 0
    assert seen[0] == "b"  # c was not yet admitted, or came back behind it
    assert pool.in_use == 0


def test_a_preempted_sequence_stores_all_but_its_anchor() -> None:
    pool, s = scheduler(pages=30)
    seq = sequence(pool, "a", 6, output=9)
    s.add([seq])
    for _ in range(4):
        plan = s.next()
        assert plan
        play(plan)
        s.settle(plan)
    before = list(seq.tokens)
    s._preempt(s.running.pop())
    plan = s.next()
    assert plan
    assert [(c.start, c.count, c.last) for c in plan.prefill] == [(0, len(before) - 1, False)]
    play(plan)
    s.settle(plan)
    assert seq.tokens == before


def test_a_cached_prefix_is_not_prefilled() -> None:
    pool, s = scheduler(prefix=True)
    for _ in range(2):
        s.add([sequence(pool, "a", 11, output=1)])
        plan = s.next()
        assert plan
        play(plan)
        s.settle(plan)
    assert s.cached_tokens == 8
    assert plan.prefill[0].start == 8
    assert plan.prefill[0].seq.cached_tokens == 8


def test_abort_gives_every_page_back() -> None:
    pool, s = scheduler()
    s.add(sequence(pool, n, 9) for n in "abc")
    s.next()
    assert pool.in_use
    s.abort()
    assert pool.in_use == 0
    assert s.next() is None


@pytest.mark.parametrize("prefix", [False, True])
@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12),
    pages=st.integers(16, 40),
    k=st.integers(0, 7),
    batch=st.integers(1, 6),
    budget=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_everything_finishes_within_budget_and_returns_its_pages(
    prefix: bool, prompts: list[tuple[int, int]], pages: int, k: int, batch: int, budget: int, seed: int
) -> None:
    pool, s = scheduler(pages, k=k, batch=batch, budget=budget, prefix=prefix)
    rng = random.Random(seed)
    seqs = [sequence(pool, chr(97 + i % 3), p, o) for i, (p, o) in enumerate(prompts)]
    s.add(seqs)
    done: list[Sequence] = []
    for _ in range(3000):
        plan = s.next()
        if plan is None:
            break
        if plan.prefill:
            assert len(plan.prefill) * max(c.count for c in plan.prefill) <= budget
        assert len(s.running) <= batch
        play(plan, accept=rng.randint(0, k), k=k)
        done += s.settle(plan)
    assert sorted(map(id, done)) == sorted(map(id, seqs))
    assert all(x.emitted == x.limit for x in seqs)
    assert pool.in_use == 0

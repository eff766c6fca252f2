"""When a prefill waits: the delayer's rule, tick by tick, and an engine with one, whose texts are those without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineConfig
from engine.delayer import Delayer, DelayerConfig, Load
from engine.errors import EngineError
from engine.llm import LLM
from tests.engine.test_scheduler import play, scheduler, sequence
from tests.engine.tiny import Tiny, requests

BUDGET = 100
IDLE = Load(prefillable=False, pending=0, decoding=1, partial=False, kv_used=0.5)
WAITS = replace(IDLE, prefillable=True, pending=10)  # one waits, one decodes
ALONE = replace(WAITS, decoding=0)


def delayer(interval: int = 3, words: str = "", *, asked: bool = True) -> Delayer:
    """A delayer that was asked once, so that its first answer is behind it."""
    made = Delayer(DelayerConfig.parse(interval, words), BUDGET)
    if asked:
        assert made.allow(WAITS)
    return made


def told(found: Delayer) -> dict[str, float]:
    return {name: n for name, n in found.counters().items() if n and name not in ("interval", "ticks", "held_share")}


def test_the_first_tick_is_free_and_in_no_counter() -> None:
    found = delayer(asked=False)
    assert found.allow(WAITS) and found.counters()["ticks"] == 0 and found.counters()["held_share"] == 0.0


@pytest.mark.parametrize(("load", "reason"), [(IDLE, "vacuous"), (ALONE, "nodecode")])
def test_nothing_waits_or_nothing_decodes(load: Load, reason: str) -> None:
    found = delayer()
    found.ran(ended=True)  # even in the interval
    assert found.allow(load) and told(found) == {f"fire_{reason}": 1}


def test_an_interval_of_three_holds_three_ticks_and_then_the_queue_may_gather() -> None:
    found = delayer(3, "stall=2")
    found.ran(ended=True)
    assert [found.allow(WAITS) for _ in range(6)] == [False] * 5 + [True]
    # after the interval: the queue is new, then it has not grown for one tick, then for two
    assert told(found) == {"hold": 5, "hold_decode_interval": 3, "fire_stall": 1}
    assert found.counters() | {"ticks": 6, "held_share": 0.5} == found.counters()


def test_the_interval_runs_down_while_nothing_waits() -> None:
    found = delayer(3, "stall=1")
    found.ran(ended=True)
    assert [found.allow(IDLE) for _ in range(3)] == [True] * 3
    assert [found.allow(WAITS) for _ in range(2)] == [False, True], "the coalescer's ticks alone"
    assert told(found) == {"fire_vacuous": 3, "hold": 1, "fire_stall": 1}


@pytest.mark.parametrize(("rearm", "held"), [("chunk", 3), ("prompt", 0)])
def test_a_chunk_starts_the_interval_anew_or_only_the_last_one_does(rearm: str, held: int) -> None:
    found = delayer(3, f"rearm={rearm} stall=1")
    found.ran(ended=False)
    for _ in range(4):
        found.allow(replace(WAITS, partial=True))
    assert found.counters()["hold_decode_interval"] == held
    found.ran(ended=True)
    for _ in range(4):
        found.allow(WAITS)
    assert found.counters()["hold_decode_interval"] == held + 3


@pytest.mark.parametrize(("change", "words", "reason"), [
    ({"pending": 90}, "", "fill"), ({"kv_used": 0.9}, "", "kv"), ({"kv_used": 0.1}, "kv_low=0.2", "kv"),
])  # fmt: skip
def test_what_releases_at_once_does_so_only_after_the_interval(change: dict, words: str, reason: str) -> None:
    found = delayer(2, words)
    found.ran(ended=True)
    load = replace(WAITS, **change)
    assert [found.allow(load) for _ in range(3)] == [False, False, True]
    assert told(found) == {"hold": 2, "hold_decode_interval": 2, f"fire_{reason}": 1}


@pytest.mark.parametrize(("words", "partial", "ticks", "reason"), [
    ("ttft=4 stall=99", False, 4, "ttft"), ("ttft=4 stall=99", True, 4, "ttft"),
    ("partial=2 stall=99", True, 2, "partial"),
    ("partial=2 ttft=5 stall=99", False, 5, "ttft"),
])  # fmt: skip
def test_the_longest_hold(words: str, partial: bool, ticks: int, reason: str) -> None:
    found = delayer(1, words)
    assert [found.allow(replace(WAITS, partial=partial)) for _ in range(ticks + 1)] == [False] * ticks + [True]
    assert told(found) == {"hold": ticks, f"fire_{reason}": 1}


def test_a_queue_that_grows_is_waited_for() -> None:
    found = delayer(1, "stall=2")
    grown = [found.allow(replace(WAITS, pending=n)) for n in (10, 20, 30, 30, 40, 40)]
    assert grown == [False] * 6 and found.allow(replace(WAITS, pending=35))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_counters_add_up(data: st.DataObject) -> None:
    interval = data.draw(st.integers(1, 6))
    found = delayer(
        interval, data.draw(st.sampled_from(["", "stall=1", "ttft=2 stall=9", "rearm=prompt"])), asked=False
    )
    ticks = data.draw(st.integers(1, 60))
    for _ in range(ticks):
        load = Load(
            prefillable=data.draw(st.booleans()), pending=data.draw(st.integers(0, BUDGET)),
            decoding=data.draw(st.integers(0, 2)), partial=data.draw(st.booleans()),
            kv_used=data.draw(st.floats(0.0, 1.0)),
        )  # fmt: skip
        allowed = found.allow(load)
        assert allowed or (load.prefillable and load.decoding), "only what waits is held, and only for a decode"
        if allowed and load.prefillable:
            found.ran(ended=data.draw(st.booleans()))
    c = found.counters()
    fires = sum(n for name, n in c.items() if name.startswith("fire_"))
    assert fires + c["hold"] == c["ticks"] == ticks - 1 and c["hold_decode_interval"] <= c["hold"]
    assert c["held_share"] == (c["hold_decode_interval"] / c["ticks"] if c["ticks"] else 0.0)


@pytest.mark.parametrize(("interval", "words", "found"), [
    (-1, "", "prefill_decode_interval is -1; fix: give 0"), (0, "stall=3", "there is no delayer"),
    (3, "stal=3", "'stal=3'; fix: did you mean stall?"), (3, "stall=0", "stall a whole number of at least 1"),
    (3, "stall=3 stall=4", "gives stall twice"), (3, "fill=0", "fill a share"), (3, "kv_high=nan", "kv_high a share"),
    (3, "rearm=chunks", "rearm=chunk|prompt"), (3, "prefillable=yes", "use prefillable=admissible|"), (3, "9", "'9'"),
])  # fmt: skip
def test_settings_that_are_none_are_refused(tiny: Tiny, interval: int, words: str, found: str) -> None:
    with pytest.raises(EngineError) as e:
        EngineConfig(model=tiny.target, prefill_decode_interval=interval, prefill_delayer=words)
    assert found in str(e.value)


def test_one_setting_has_one_spelling(tiny: Tiny) -> None:
    made = EngineConfig(model=tiny.target, prefill_decode_interval=9, prefill_delayer=" rearm=prompt fill=0.9 stall=4 ")
    assert made.prefill_delayer == "stall=4 rearm=prompt"
    assert made.delayer == DelayerConfig(interval=9, stall=4, rearm="prompt")
    assert replace(made).delayer == made.delayer and EngineConfig(model=tiny.target).delayer.interval == 0


# ---- in the scheduler ----


def kinds(words: str, interval: int) -> tuple[list[str], Delayer]:
    """What each tick does to three requests of 3 tokens in a batch of 2: "P" and names, or "d" and how many decode."""
    pool, s = scheduler(batch=2)
    s.delayer = delayer(interval, words, asked=False)
    s.add(sequence(pool, n, 3, output=o) for n, o in (("a", 3), ("b", 6), ("c", 3)))
    out = []
    while not s.idle:
        plan = s.next()
        assert plan is not None
        out.append("P" + "".join(c.seq.request.id for c in plan.prefill) if plan.prefill else f"d{len(plan.decode)}")
        play(plan)
        s.settle(plan)
    assert pool.in_use == 0
    return out, s.delayer


def test_an_interval_that_never_ends_makes_gangs() -> None:
    ticks, found = kinds("", 20000)
    assert ticks == ["Pab", "d2", "d2", "d1", "d1", "d1", "Pc", "d1", "d1"]
    # c has a place from the third decode on: three ticks held. Before that the batch was full, which holds nobody up
    assert told(found) == {"hold": 3, "hold_decode_interval": 3, "fire_nodecode": 1, "fire_vacuous": 4}


def test_a_queue_counts_as_held_where_the_configuration_says_so() -> None:
    for words in ("prefillable=queued", "prefillable=allocatable"):
        ticks, found = kinds(words, 20000)
        assert ticks[:6] == ["Pab", "d2", "d2", "d1", "d1", "d1"] and found.counters()["hold_decode_interval"] == 5


def test_a_small_interval_and_then_the_coalescer() -> None:
    ticks, found = kinds("stall=1", 1)
    assert ticks == ["Pab", "d2", "d2", "d1", "Pc", "d2", "d2"]
    assert found.counters()["hold"] == 1 and found.counters()["fire_stall"] == 1


def test_a_prompt_that_is_half_done_waits_with_its_pages() -> None:
    pool, s = scheduler(batch=2, budget=8)
    s.delayer = delayer(20000, asked=False)
    s.add([sequence(pool, "a", 6, output=4), sequence(pool, "b", 14, output=2)])
    seen = []
    while plan := s.next():
        seen.append([(c.seq.request.id, c.count) for c in plan.prefill] or [x.request.id for x in plan.decode])
        held = [x for x in s.running if 0 < x.stored < x.to_store]
        assert all(len(x.table.pages) * 4 >= x.to_store for x in held)
        play(plan)
        s.settle(plan)
    assert seen == [[("a", 6)], ["a"], ["a"], ["a"], [("b", 8)], [("b", 6)], ["b"]]
    assert pool.in_use == 0


@pytest.mark.parametrize("rearm", ["chunk", "prompt"])
def test_decodes_that_give_way_to_a_half_done_prompt_leave_no_empty_tick(rearm: str) -> None:
    """Out of pages, what decodes is the youngest and goes back to the queue; the prompt that was held goes on."""
    pool, s = scheduler(pages=12, batch=3, budget=8)
    s.delayer = delayer(20000, f"rearm={rearm}")
    s.delayer.ran(ended=True)
    old, young = sequence(pool, "o", 30, output=2), sequence(pool, "y", 4, output=30)
    s.add([old, young])
    for seq, stored in ((old, 8), (young, 4)):  # both admitted, the older one half done
        seq.table.grow(seq.to_store + 1)
        seq.stored = stored
        s.waiting.popleft()
        s.running.append(seq)
    young.commit_first(7)
    young.stored = young.prompt_len
    for _ in range(200):
        plan = s.next()
        if plan is None:
            break
        play(plan)
        s.settle(plan)
    assert s.preemptions > 0 and s.idle and pool.in_use == 0 and (old.emitted, young.emitted) == (2, 30)


@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12),
    pages=st.integers(16, 40), k=st.integers(0, 7), batch=st.integers(1, 6), budget=st.integers(1, 40),
    interval=st.sampled_from([1, 4, 20000]), prefillable=st.sampled_from(["admissible", "allocatable", "queued"]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_everything_finishes_and_returns_its_pages(
    prompts: list[tuple[int, int]], pages: int, k: int, batch: int, budget: int, interval: int, prefillable: str
) -> None:
    pool, s = scheduler(pages, k=k, batch=batch, budget=budget, prefix=True)
    s.delayer = delayer(interval, f"prefillable={prefillable}", asked=False)
    seqs = [sequence(pool, chr(97 + i % 3), p, o) for i, (p, o) in enumerate(prompts)]
    s.add(seqs)
    for i in range(5000):
        plan = s.next()
        if plan is None:
            break
        play(plan, accept=i % (k + 1), k=k)
        s.settle(plan)
    assert s.idle and all(x.emitted == x.limit for x in seqs) and pool.in_use == 0


# ---- in the engine: the fast path and its twin without a delayer ----

PROMPTS = [tuple(4 + (7 * i + j) % 50 for j in range(5 + 9 * (i % 4))) for i in range(9)]


def texts(llm: LLM) -> list[tuple[int, ...]]:
    asked = [replace(r, params=replace(r.params, max_tokens=4 + 5 * (i % 5)))
             for i, r in enumerate(requests(PROMPTS, max_tokens=4, ignore_eos=True))]  # fmt: skip
    return [c.token_ids for c in llm.generate(asked)]


@pytest.mark.parametrize("draft", ["ngram", "none"])
@pytest.mark.parametrize("pages", [0, 30])
def test_greedy_texts_are_equal_with_and_without(tiny: Tiny, draft: str, pages: int) -> None:
    """Prompts longer than a tick's budget, a batch smaller than the queue, and a pool that preempts."""
    how = {"draft": draft, "k": 3 if draft == "ngram" else 0, "max_batch": 4, "max_batched_tokens": 12,
           "page_size": 4, "num_pages": pages}  # fmt: skip
    plain = tiny.llm(**how)
    expected = texts(plain)
    assert "prefill_delayer" not in plain.counters
    for interval, words in ((1, ""), (4, "rearm=prompt stall=1"), (20000, ""), (20000, "prefillable=queued")):
        held = tiny.llm(**how, prefill_decode_interval=interval, prefill_delayer=words)
        assert texts(held) == expected
        found = held.counters["prefill_delayer"]
        assert found["hold_decode_interval"] > 0 and found["interval"] == interval
        assert found["ticks"] == held.counters["prefill_ticks"] + held.counters["decode_ticks"] - 1
        assert held.counters["decode_ticks"] >= plain.counters["decode_ticks"], "gangs share fewer ticks"


def test_sampled_texts_are_equal_too(tiny: Tiny) -> None:
    """Randomness belongs to the request, so what else runs beside it changes nothing."""
    asked = requests(PROMPTS, max_tokens=9, temperature=0.9, ignore_eos=True)
    plain, held = (tiny.llm(draft="ngram", k=3, max_batch=4, prefill_decode_interval=n) for n in (0, 20000))
    assert [c.token_ids for c in plain.generate(asked)] == [c.token_ids for c in held.generate(asked)]


def test_added_requests_wait_until_nobody_decodes(tiny: Tiny) -> None:
    llm = tiny.llm(k=0, max_batch=4, prefill_decode_interval=20000)
    first, second = requests(PROMPTS[:2], max_tokens=6, ignore_eos=True)
    llm.add(first)
    llm.step()
    llm.add(second)
    order = []
    while llm.busy:
        order += [u.id for u in llm.step()]
    assert order == [first.id] * 5 + [second.id] * 6

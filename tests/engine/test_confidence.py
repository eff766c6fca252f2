from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Completion
from engine.confidence import verified
from engine.errors import EngineError
from engine.kernels import Kernels
from engine.verify import accept_block, accept_sampled
from tests.engine.test_verify import FALSE_ALARM, Chain, Rule, law_p_value
from tests.engine.tiny import Tiny, prompts, requests

share = st.floats(0, 1)
blocks = st.lists(st.lists(share, min_size=4, max_size=4), min_size=1, max_size=5)


def test_a_threshold_ends_a_block_before_its_first_unsure_draft() -> None:
    found = [[0.9, 0.8, 0.4, 0.9], [0.1, 1.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]]
    assert verified(found, [4, 4, 4], threshold=0.5) == [2, 0, 4]
    assert verified(found, [1, 4, 2], threshold=0.5) == [1, 0, 2]
    assert verified(found, [4, 4, 4]) == [4, 4, 4]
    assert verified(found, [4, 0, 4], threshold=1.0) == [0, 0, 0]


def test_rows_go_to_the_drafts_that_most_likely_survive() -> None:
    found = [[0.9, 0.9, 0.9], [0.95, 0.5, 0.9]]  # survival .9 .81 .729 and .95 .475 .4275
    assert [verified(found, [3, 3], rows=rows) for rows in range(2, 9)] == [
        [0, 0], [0, 1], [1, 1], [2, 1], [3, 1], [3, 2], [3, 3],
    ]  # fmt: skip
    assert verified([[1.0] * 3, [1.0] * 3], [3, 3], rows=5) == [2, 1]  # a tie goes to the earlier place


@given(blocks, st.integers(0, 2**30), share, st.integers(0, 20))
@settings(max_examples=80, deadline=None)
def test_the_choice_never_looks_past_the_first_draft_left_out(
    found: list[list[float]], seed: int, threshold: float, more: int
) -> None:
    """Non-anticipating: c of a left-out place may decide, those after it (made from the draft itself) may not."""
    rows = len(found) + more if more else 0
    counts = [4] * len(found)
    want = verified(found, counts, threshold=threshold, rows=rows)
    assert not rows or sum(want) + len(found) <= rows
    g = torch.Generator().manual_seed(seed)
    other = [[*c[: n + 1], *torch.rand(4 - len(c[: n + 1]), generator=g).tolist()] for c, n in
             zip(found, want, strict=True)]  # fmt: skip
    assert verified(other, counts, threshold=threshold, rows=rows) == want


@pytest.mark.stat
@pytest.mark.parametrize("accept", [accept_sampled, accept_block])
def test_a_scheduled_block_keeps_the_target_s_law_and_one_that_looks_ahead_does_not(accept: Rule) -> None:
    """Joint law of three tokens, 30 000 draws, seed 7, false alarm 1e-4. The twin that also looks at the draft it
    leaves out is refused."""
    chain = Chain(8, seed=11)
    sure = torch.rand(8, generator=torch.Generator().manual_seed(2))

    def told(ahead: int) -> Any:
        def counts(path: torch.Tensor) -> torch.Tensor:
            seen = path[:, 1:] if ahead else path[:, :-1]  # c_i from the token before draft i, or from draft i
            return torch.tensor(verified(sure[seen].tolist(), [4] * len(path), threshold=0.4))

        return counts

    words: dict[str, Any] = {"accept": accept, "certain": False, "residual": True}
    assert law_p_value(chain.speculate(30_000, 4, 7, ragged=told(0), **words), chain.joint()) > FALSE_ALARM
    assert law_p_value(chain.speculate(30_000, 4, 7, ragged=told(1), **words), chain.joint()) < 1e-12


def ids(found: list[Completion]) -> list[tuple[int, ...]]:
    return [c.token_ids for c in found]


@pytest.mark.parametrize("how", [{"confidence_threshold": 0.5}, {"verify_rows": 24}, {"verify": "block"}])
def test_greedy_output_is_plain_output_whatever_is_verified(tiny: Tiny, how: dict[str, Any]) -> None:
    ask = requests(prompts(12), max_tokens=24, ignore_eos=True)
    llm = tiny.llm(k=5, max_batch=8, **how)
    found = llm.generate(ask)
    assert ids(found) == ids(tiny.llm(max_batch=8).generate(ask))
    steps = [s for c in found for s in c.steps]
    assert all(len(s.confidence) == s.k for s in steps)
    if "verify" in how:
        assert llm.counters["drafts_left_out"] == 0
        return
    assert {s.k for s in steps} > {0, 5} or len({s.k for s in steps}) > 2
    assert llm.counters["drafts_left_out"] > 0
    if "confidence_threshold" in how:
        assert all(min(s.confidence, default=1) >= 0.5 for s in steps)
        assert llm.counters["drafts_left_out"] + sum(s.k for s in steps) <= 5 * len(steps)
    else:
        assert llm.counters["decode_rows"] <= 24 * llm.counters["decode_ticks"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_threshold_depends_on_no_neighbour(tiny: Tiny, temperature: float) -> None:
    ask = requests(prompts(6), max_tokens=16, ignore_eos=True, temperature=temperature)
    words: dict[str, Any] = {"k": 5, "confidence_threshold": 0.5, "verify": "block"}
    together, alone = (tiny.llm(max_batch=b, **words).generate(ask) for b in (8, 1))
    assert ids(together) == ids(alone)
    shape = [[[(s.k, s.accepted) for s in c.steps] for c in found] for found in (together, alone)]
    assert shape[0] == shape[1]


def test_a_draft_without_confidences_is_refused_before_anything_runs(tiny: Tiny) -> None:
    hows: list[dict[str, Any]] = [{"confidence_threshold": 0.5}, {"verify_rows": 64}]
    for how in hows:
        with pytest.raises(EngineError, match="the draft ngram gives no confidences"):
            tiny.llm(k=3, draft="ngram", draft_path=None, **how)
        llm = tiny.llm(lambda _, tokens, k: [5] * k, k=3, **how)
        with pytest.raises(EngineError, match="this draft gives no confidences"):
            llm.generate(requests([(4, 5)], max_tokens=4))


@pytest.mark.parametrize("how", [
    {"verify": "blok"}, {"verify": "forced"}, {"forced_length": 2.0}, {"verify": "forced", "forced_length": 4.2},
    {"verify": "forced", "forced_length": 0.5}, {"verify": "forced", "forced_length": math.nan},
    {"confidence_threshold": 1.5}, {"confidence_threshold": math.nan}, {"verify_rows": 3},
    {"verify": "forced", "forced_length": 2.0, "confidence_threshold": 0.5},
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused_in_one_line(tiny: Tiny, how: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as e:
        tiny.llm(k=3, **how)
    assert e.value.fix and "\n" not in str(e.value)


def test_forced_acceptance_meets_its_length_and_says_so(tiny: Tiny) -> None:
    """The fraction .46 of the steps keep 3 drafts, each by its own coin: within 4 errors (false alarm 6e-5), seed 0."""
    ask = requests(prompts(24), max_tokens=60, ignore_eos=True)
    words: dict[str, Any] = {"k": 5, "verify": "forced", "forced_length": 3.46}
    found = tiny.llm(max_batch=24, **words).generate(ask)
    steps = [s for c in found for s in c.steps]
    whole = [s.accepted for s in steps if s.k == 5]
    n = len(whole)
    assert set(whole) == {2, 3} and n > 300
    assert abs(sum(whole) / n - 2.46) < 4 * math.sqrt(0.46 * 0.54 / n)
    assert all(c.forced for c in found) and all(s.forced for s in steps)
    alone = tiny.llm(max_batch=1, **words).generate(ask[:3])
    assert [[s.accepted for s in c.steps] for c in alone] == [[s.accepted for s in c.steps] for c in found[:3]]
    assert len({tuple(s.accepted for s in c.steps) for c in found}) > 12  # each request has its own coins
    real = tiny.llm(k=5).generate(ask[:2])
    assert not any(c.forced or any(s.forced for s in c.steps) for c in real)


def test_a_forced_answer_of_one_token_is_marked_too(tiny: Tiny) -> None:
    (found,) = tiny.llm(k=2, verify="forced", forced_length=2.0).generate(requests([(4, 5)], max_tokens=1))
    assert found.forced and not found.steps


@pytest.mark.parametrize("k", [0, 5])
def test_every_token_has_its_gap(tiny: Tiny, k: int) -> None:
    """Speculative or plain, preempted or not, the gap at a token is that of the row that gave it."""
    ask = requests(prompts(8), max_tokens=20)
    plain = tiny.llm(gaps=True).generate(ask)
    found = tiny.llm(k=k, gaps=True, num_pages=40, max_batched_tokens=11).generate(ask)
    for one, other in zip(plain, found, strict=True):
        assert len(other.gaps) == len(other.token_ids) and min(other.gaps) >= 0
        assert other.gaps == pytest.approx(one.gaps, abs=1e-3)
    assert all(c.gaps == () for c in tiny.llm(k=k).generate(ask))


def test_a_gap_is_the_best_logit_less_the_second(tiny: Tiny) -> None:
    llm = tiny.llm(gaps=True, prefix_cache=False)
    seen: list[float] = []
    logits = llm.target.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        out = logits(hidden)
        best, second = sorted(out[0].tolist(), reverse=True)[:2]
        seen.append(best - second)
        return out

    llm.target.logits = watched
    (found,) = llm.generate(requests([(4, 5, 6)], max_tokens=10, ignore_eos=True))
    assert found.gaps == pytest.approx(seen, abs=1e-5)


@pytest.mark.parametrize(("verify", "other"), [("standard", "accept_block"), ("block", "accept_sampled")])
def test_the_rule_asked_for_decides(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, verify: str, other: str) -> None:
    def never(*args: Any, **words: Any) -> Any:
        raise AssertionError(other)

    monkeypatch.setattr(Kernels, other, never)
    ask = requests(prompts(4), max_tokens=12, temperature=1.0)
    assert all(c.token_ids for c in tiny.llm(k=4, verify=verify).generate(ask))

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import SparseConfig
from engine.indexer import (
    FORCED_LOCAL,
    NO_SCORE,
    best_blocks,
    best_blocks_by_sort,
    block_scores,
    choose_blocks,
    reference_blocks,
)

CFG = SparseConfig(
    layers=(True,), computes=(True,), index_heads=2, index_dim=8, block_size=4, topk=3, init_blocks=0, local_blocks=1
)


def chosen(iq: torch.Tensor, ik: torch.Tensor, position: int, cfg: SparseConfig) -> list[list[int]]:
    scores = (iq @ ik.T).masked_fill(torch.arange(ik.shape[0]) > position, -torch.inf)
    seen = choose_blocks(block_scores(scores, cfg.block_size), torch.tensor(position // cfg.block_size), cfg)
    return [row.nonzero().flatten().tolist() for row in seen]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 50), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2),
    st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_the_choice_equals_its_slow_twin(
    seed: int, places: int, block: int, topk: int, init: int, local: int, coarse: bool
) -> None:
    """Also with equal scores (coarse): the lower block wins."""
    cfg = replace(CFG, block_size=block, topk=max(topk, init + local, 1), init_blocks=init, local_blocks=local)
    gen = torch.Generator().manual_seed(seed)
    iq, ik = torch.randn(2, 8, generator=gen), torch.randn(places, 8, generator=gen)
    if coarse:
        iq, ik = iq.sign(), ik.sign()
    position = int(torch.randint(places, (1,), generator=gen))
    assert chosen(iq, ik, position, cfg) == reference_blocks(iq, ik, position, cfg)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 70), st.integers(1, 20), st.integers(1, 40))
def test_the_best_blocks_are_those_of_a_stable_sort(seed: int, blocks: int, count: int, values: int) -> None:
    """Few different values, so that most places tie; some are hidden, forced or without a score."""
    gen = torch.Generator().manual_seed(seed)
    scores = torch.randint(values, (3, 2, blocks), generator=gen).float()
    for special in (-torch.inf, FORCED_LOCAL, NO_SCORE):
        scores[torch.rand(scores.shape, generator=gen) < 0.15] = special
    assert best_blocks(scores, count).equal(best_blocks_by_sort(scores, count))


def test_equal_blocks_beyond_a_sorts_reach_are_taken_from_the_lowest_id_on() -> None:
    scores = torch.zeros(1, 40)
    scores[0, [11, 39]] = 1.0
    assert best_blocks(scores, 5).nonzero()[:, 1].tolist() == [0, 1, 2, 11, 39]


def test_the_own_block_is_always_seen_and_later_ones_never() -> None:
    iq, ik = torch.ones(2, 8), torch.zeros(40, 8)
    ik[:8], ik[36:] = 1.0, 5.0  # the two first blocks score, and one after the query
    ik[20:24] = -9.0  # the query's own block scores worst
    assert chosen(iq, ik, 21, CFG) == [[0, 1, 5]] * 2


def test_a_local_block_overrides_an_init_one() -> None:
    cfg = replace(CFG, topk=2, init_blocks=1, local_blocks=1)
    ik = torch.zeros(20, 8)
    assert chosen(torch.ones(2, 8), ik, 17, cfg) == [[0, 4]] * 2
    assert chosen(torch.ones(2, 8), ik, 2, cfg) == [[0]] * 2


def test_nan_scores_come_last() -> None:
    ik = torch.zeros(24, 8)
    ik[:4] = torch.nan
    ik[4] = torch.nan  # one key of a block leaves the others
    assert chosen(torch.ones(2, 8), ik, 23, CFG) == [[1, 2, 5]] * 2


def test_heads_do_not_vote_together() -> None:
    ik = torch.zeros(24, 8)
    ik[0, 0], ik[5, 1] = 1.0, 1.0
    iq = torch.zeros(2, 8)
    iq[0, 0] = iq[1, 1] = 1.0
    assert chosen(iq, ik, 23, replace(CFG, topk=2)) == [[0, 5], [1, 5]]


@pytest.mark.parametrize("places", (1, 4, 5, 12))
def test_a_short_context_sees_every_block(places: int) -> None:
    ik = torch.randn(places, 8, generator=torch.Generator().manual_seed(0))
    seen = chosen(torch.ones(2, 8), ik, places - 1, CFG)
    assert seen == [list(range(-(-places // 4)))] * 2

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, pearsonr

from engine.api import SamplingParams
from engine.sampling import Laws, Purpose, draw, probabilities, request_key, uniforms

CPU = torch.device("cpu")


def laws(*params: SamplingParams) -> Laws:
    made = Laws.of(list(params), [request_key(0, p.seed) for p in params], CPU)
    assert made is not None
    return made


def one(logits: list[float], **params: float) -> list[float]:
    p = SamplingParams(**({"temperature": 1.0} | params))  # pyright: ignore[reportArgumentType]
    return probabilities(torch.tensor([logits]), laws(p))[0].tolist()


def test_temperature_divides_logits() -> None:
    want = torch.tensor([1.0, 2.0, 4.0]).softmax(0).tolist()
    assert one([0.5, 1.0, 2.0], temperature=0.5) == pytest.approx(want)


def test_a_tiny_temperature_is_no_overflow() -> None:
    assert one([1e4, 1e4 - 1.0, -1e4], temperature=1e-6) == [1.0, 0.0, 0.0]


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_a_tie() -> None:
    assert one([1.0, 1.0, 1.0, 0.0], top_k=2) == pytest.approx([0.5, 0.5, 0.0, 0.0])


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.2, 0.5, 0.3]).log().tolist()
    assert one(logits, top_p=0.49) == pytest.approx([0.0, 1.0, 0.0])
    assert one(logits, top_p=0.6) == pytest.approx([0.0, 0.625, 0.375])
    assert one(logits, top_p=0.81) == pytest.approx([0.2, 0.5, 0.3])


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert one(logits, top_k=2, top_p=0.5) == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_each_sequence_of_a_batch_has_its_own_law() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 10, generator=g)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.5),
    ]
    both = probabilities(logits, laws(*params))
    assert torch.equal(both[0].argmax(-1), logits[0].argmax(-1))
    assert both[0].max(-1).values.eq(1.0).all()
    for i in (1, 2, 3):
        assert torch.allclose(both[i], probabilities(logits[i : i + 1], laws(params[i]))[0])
    picked = laws(*params).select([2, 0])
    assert torch.allclose(probabilities(logits[[2, 0]], picked), both[[2, 0]])


def test_a_greedy_batch_has_no_laws() -> None:
    assert Laws.of([SamplingParams(), SamplingParams(top_k=5)], [1, 2], CPU) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1, exclude_max=True))
@settings(max_examples=200, deadline=None)
def test_draw_never_gives_a_token_of_weight_0(weights: list[float], u: float) -> None:
    w = torch.tensor([*weights, 1e-6, 0.0], dtype=torch.float64)
    token = int(draw(w, torch.tensor(u, dtype=torch.float64)))
    assert w[token] > 0
    nearest_1 = float(np.nextafter(1.0, 0.0))
    assert w[int(draw(w, torch.tensor(nearest_1, dtype=torch.float64)))] > 0


def test_draws_depend_on_key_position_purpose_and_step_alone() -> None:
    keys = np.array([request_key(0, 5), request_key(0, 6)], dtype=np.uint64)
    both = uniforms(keys, np.array([3, 9]), 4, Purpose.TARGET)
    alone = uniforms(keys[1:], np.array([10]), 2, Purpose.TARGET)
    assert torch.equal(both[1, 1:3], alone[0])
    assert not torch.equal(both, uniforms(keys, np.array([3, 9]), 4, Purpose.ACCEPT))
    for purpose in (Purpose.DRAFT, Purpose.ACCEPT):  # another step draws anew
        step = uniforms(keys, np.array([3, 9]), 4, purpose)
        assert torch.equal(step[1:, :2], uniforms(keys[1:], np.array([9]), 2, purpose))
        assert not torch.isin(step[1, 1:3], uniforms(keys[1:], np.array([10]), 2, purpose)).any()
    assert request_key(1, 5) != request_key(0, 5) != request_key(0, 6)
    assert request_key(0, -1) != request_key(0, 1)


@pytest.mark.stat
def test_draws_are_uniform_and_independent() -> None:
    """Seeds 0..99 x 200 positions, false alarm 1e-4 for each of the 13 checks."""
    keys = np.array([request_key(0, s) for s in range(100)], dtype=np.uint64)
    starts = np.zeros(100, dtype=np.int64)
    by_purpose = [uniforms(keys, starts, 200, p).numpy() for p in Purpose]
    for u in by_purpose:
        assert u.min() >= 0.0 and u.max() < 1.0
        assert kstest(u.ravel(), "uniform").pvalue > 1e-4
        assert float(pearsonr(u[:, :-1].ravel(), u[:, 1:].ravel())[1]) > 1e-4  # pyright: ignore
        assert float(pearsonr(u[:-1].ravel(), u[1:].ravel())[1]) > 1e-4  # pyright: ignore
    cells = np.zeros(by_purpose[0].size, dtype=int)
    for u in by_purpose:
        cells = cells * 4 + np.floor(u.ravel() * 4).astype(int)
    cells = np.bincount(cells, minlength=4 ** len(by_purpose))
    assert chisquare(cells).pvalue > 1e-4


@pytest.mark.stat
def test_draw_follows_the_weights() -> None:
    """50 000 draws, seed 1, false alarm 1e-4."""
    w = torch.tensor([0.0, 3.0, 1.0, 0.0, 6.0])
    u = torch.rand(50_000, generator=torch.Generator().manual_seed(1)).double()
    seen = torch.bincount(draw(w.expand(50_000, 5), u), minlength=5)
    assert seen[0] == seen[3] == 0
    assert chisquare(seen[[1, 2, 4]].numpy(), (w[[1, 2, 4]] * 5000).numpy()).pvalue > 1e-4

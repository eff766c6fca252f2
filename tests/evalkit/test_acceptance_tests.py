"""Bands by position, signs of forced acceptance, and tokens lost against a golden: by hand and by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit import stats
from evalkit.acceptance import (
    by_answer_length,
    by_category,
    constant_conditional,
    distribution_test,
    forced_signs,
    implied_groups,
    looks_forced,
    positions,
    summarize,
    survival_covariance,
)
from evalkit.acceptance.columns import cluster_counts
from evalkit.records import Sample, StepRecord


def sample(i: int, accepted: list[int], k: int, **more: object) -> Sample:
    steps = tuple(StepRecord(k=k, accepted=a, accepted_trimmed=a) for a in accepted)
    known = {"doc_id": i, "doc_hash": f"d{i}", "prompt_hash": "p", "question": "", "gold": "", "steps": steps,
             "tokens": 1 + sum(accepted) + len(accepted), "text": "x", "finish_reason": "stop"}  # fmt: skip
    return Sample(**(known | more))  # type: ignore[arg-type]


def draw(rng: np.random.Generator, m: int, k: int = 7, base: float = 0.8, spread: float = 0.08) -> list[Sample]:
    """m documents, each with a conditional rate of its own that falls along the block."""
    out = []
    for i in range(m):
        rate = np.clip(base + spread * rng.standard_normal() - 0.03 * np.arange(k), 0.02, 0.98)
        kept = rng.random((rng.integers(6, 20), k)) < rate
        out.append(sample(i, [int(x) for x in kept.cumprod(axis=1).sum(axis=1)], k))
    return out


# --- by position


def test_c92_useful_k_of_a_wide_draft() -> None:
    counts = [26, 14, 11, 7, 3, 4] + [0] * 10
    found = summarize([sample(i, [a], 15) for i, a in enumerate(np.repeat(np.arange(16), counts).tolist())], 15)
    assert (found.drafts, found.accepted) == (975, 89)
    assert [round(s, 3) for s in found.survival[:5]] == [0.6, 0.385, 0.215, 0.108, 0.062]
    assert found.useful_k == 5
    assert found.acceptance_rate == pytest.approx(0.091, abs=5e-4)
    assert found.length().value == pytest.approx(2.37, abs=5e-3)  # type: ignore[union-attr]
    assert found.rate().value == found.acceptance_rate  # type: ignore[union-attr]


def test_positions_by_hand() -> None:
    first, second = positions([sample(0, [2, 0], 2), sample(1, [1, 1], 2)], 2)
    assert (first.steps, first.survival, first.conditional) == (3, 0.75, 0.75)
    assert (second.steps, second.survival, second.conditional) == (1, 0.25, pytest.approx(1 / 3))
    assert first.survival_band is not None and first.survival_band.low <= 0.75 <= first.survival_band.high
    assert positions([], 2) == () and positions([sample(0, [], 2)], 2) == ()
    assert positions([sample(0, [1], 2)], 2)[0].survival_band is None


def test_a_block_cut_by_a_stop_rejects_nothing_past_it() -> None:
    """By hand: 3 kept of 3; 1 kept and then the end of the answer; 0 kept; a limit in a block of 2 kept."""
    steps = [StepRecord(k=3, accepted=3, accepted_trimmed=3),
             StepRecord(k=3, accepted=1, accepted_trimmed=1, cut="stop"),
             StepRecord(k=3, accepted=0, accepted_trimmed=0),
             StepRecord(k=3, accepted=2, accepted_trimmed=1, cut="limit")]  # fmt: skip
    found = positions([replace(sample(0, [0], 3), steps=tuple(steps))], 3)
    assert [p.survival for p in found] == [0.75, 0.5, 0.25], "as published: all blocks"
    assert [(p.judged, p.conditional) for p in found] == [(4, 0.75), (2, 1.0), (2, 0.5)]
    stats = summarize([replace(sample(0, [0], 3), steps=tuple(steps))], 3)
    assert stats.conditional == (0.75, 1.0, 0.5) and (stats.cut_at_stop, stats.past_stop) == (1, 2)


def test_a_draft_that_was_never_proposed_was_not_rejected() -> None:
    """A draft of varying length: 1 of 1 kept, 2 of 3 kept."""
    steps = (StepRecord(k=1, accepted=1, accepted_trimmed=1), StepRecord(k=3, accepted=2, accepted_trimmed=2))
    found = positions([replace(sample(0, [0], 3), steps=steps)], 3)
    assert [(p.judged, p.conditional) for p in found] == [(2, 1.0), (1, 1.0), (1, 0.0)]


def test_a_share_of_zero_has_an_open_side() -> None:
    low = positions([sample(i, [0], 2) for i in range(100)], 2)[0]
    assert low.survival_band is not None and low.survival_band.low == 0 and 0.03 < low.survival_band.high < 0.05
    assert positions([sample(i, [0], 2) for i in range(100)], 2)[1].conditional_band is None


def test_the_band_of_survival_never_rises() -> None:
    """Nothing accepted at the last position, hardly anything before: the last bound is no wider than the one before."""
    found = positions([sample(i, [1, 0, 2 * (i == 0)], 3) for i in range(30)], 3)
    bands = [p.survival_band for p in found]
    assert all(b is not None and b.low <= p.survival <= b.high for b, p in zip(bands, found, strict=True))
    ends = [(b.low, b.high) for b in bands if b is not None]
    assert ends == sorted(ends, reverse=True) and [high for _, high in ends] == sorted(
        (h for _, h in ends), reverse=True
    )
    assert found[2].survival == 0 and ends[2][1] == ends[1][1] < 0.1


@pytest.mark.stat
def test_band_covers_all_positions_at_once() -> None:
    """Seed 11, 150 runs of 120 documents: 95 % +- 3.3 simulation standard errors; false alarm under 0.1 %."""
    rng = np.random.default_rng(11)
    truth = positions(draw(rng, 6_000), 7)
    hit = 0
    for _ in range(150):
        bands = [p.survival_band for p in positions(draw(rng, 120), 7)]
        hit += all(b is not None and b.low <= t.survival <= b.high for b, t in zip(bands, truth, strict=True))
    assert hit / 150 >= 0.95 - 0.059


# --- groups


def test_c56_by_answer_length() -> None:
    samples = [sample(0, [3] * 7, 3, tokens=20), sample(1, [1, 2], 3, tokens=40_000), sample(2, [0], 3, error="x")]
    short, long = by_answer_length(samples, 3)
    assert (short.label, short.accepted_length) == ("0 to 31", 4.0)
    assert (long.label, long.accepted_length, long.steps) == ("from 32768", 2.5, 2)
    assert summarize(samples, 3).longest_answer == 40_000


def test_by_category() -> None:
    samples = [sample(i, [i % 2], 3, category="ab"[i % 2]) for i in range(10)]
    assert [(g.label, g.samples, g.accepted_length) for g in by_category(samples, 3)] == [("a", 5, 1.0), ("b", 5, 2.0)]


# --- forced


def test_c60_both_signatures_of_one_forced_length() -> None:
    assert looks_forced([0, 0, 220, 780, 0, 0, 0, 0])  # schedule [1, 1, .78, 0 ...]
    rng = np.random.default_rng(2)
    geometric = np.bincount((rng.random((8000, 7)) < 0.75).cumprod(axis=1).sum(axis=1), minlength=8)
    assert constant_conditional(geometric, 1.0)
    assert not constant_conditional(geometric, 3.0)  # documents differ: real
    assert not looks_forced(geometric)


def test_a_real_draft_shows_no_sign() -> None:
    found = summarize(draw(np.random.default_rng(4), 400), 7)
    assert not found.constant_conditional and not found.looks_forced


def test_c59_a_mean_on_a_golden_number() -> None:
    known: dict[str, Any] = {"accepted_length": 3.3881, "design_effect": 2.0}
    histogram = [100, 200, 300, 100, 50, 10, 5, 1]
    assert forced_signs(histogram, golden_lengths=[3.39, 2.9], **known) == (
        "accepted length 3.3881 is within 0.002 of the golden number 3.39",
    )
    assert forced_signs(histogram, golden_lengths=[3.391], **known) == ()


# --- against a golden


def pooled(samples: list[Sample], k: int = 7) -> tuple[tuple[int, ...], float, int]:
    found = summarize(samples, k)
    assert found.se is not None
    return found.histogram, found.se, found.clusters


def test_lost_gained_and_wasserstein_by_hand() -> None:
    here = [sample(i, [0, 2], 2) for i in range(50)] + [sample(99, [0, 1], 2)]
    test = distribution_test(here, 2, margin=0.1, histogram=[25, 50, 25], se=0.01, clusters=80)
    assert test is not None
    assert test.golden == (0.75, 0.25)
    assert test.here == (pytest.approx(0.5), pytest.approx(50 / 102))
    assert test.lost == pytest.approx(0.25) and test.gained == pytest.approx(50 / 102 - 0.25)
    assert test.wasserstein == pytest.approx(test.lost + test.gained)
    assert test.p_over < 0.01 and test.upper > 0.25  # same mean almost, another distribution: told apart


def test_a_golden_with_its_own_covariance_is_tested_exactly() -> None:
    """Its clusters known, the test is that of two clustered samples; from its design effect it is only near."""
    here, there = draw(np.random.default_rng(5), 150, base=0.78), draw(np.random.default_rng(6), 300)
    histogram, se, clusters = pooled(there)
    known = {"margin": 0.2, "histogram": histogram, "se": se, "clusters": clusters}
    exact = distribution_test(here, 7, covariance=survival_covariance(there, 7), **known)  # type: ignore[arg-type]
    near = distribution_test(here, 7, **known)  # type: ignore[arg-type]
    a, b = cluster_counts(here, 7), cluster_counts(there, 7)
    assert exact is not None and near is not None
    gap = np.array(exact.here) - np.array(exact.golden)
    twin = stats.lost_test(gap, stats.survival_covariance(a) + stats.survival_covariance(b), 0.2, len(a) - 1, 0.05)
    assert (exact.upper, exact.p_under, exact.p_equal) == pytest.approx(
        (twin.upper, twin.p_under, twin.p_equal), rel=1e-4
    )
    assert exact.upper != near.upper and exact.upper == pytest.approx(near.upper, rel=0.1)
    assert exact.p_equal == pytest.approx(near.p_equal, rel=0.5)


@pytest.mark.stat
def test_size_and_power_of_the_test() -> None:
    """Seed 7: 150 runs with a loss exactly at the margin pass in at most alpha (+3 standard errors), fail in at most
    alpha, and a run equal to golden passes."""
    rng = np.random.default_rng(7)
    golden = draw(rng, 6_000)
    worse = summarize(draw(rng, 6_000, base=0.76), 7)
    histogram, se, clusters = pooled(golden)
    best = summarize(golden, 7)
    margin = sum(max(0.0, g - s) for g, s in zip(best.survival, worse.survival, strict=True))
    passed = failed = equal = 0
    for _ in range(150):
        at_margin = distribution_test(
            draw(rng, 150, base=0.76), 7, margin=margin, histogram=histogram, se=se, clusters=clusters
        )
        same = distribution_test(draw(rng, 150), 7, margin=0.6, histogram=histogram, se=se, clusters=clusters)
        assert at_margin is not None and same is not None
        passed, failed = passed + (at_margin.p_under <= 0.05), failed + (at_margin.p_over <= 0.05)
        equal += same.p_under <= 0.05
    assert passed / 150 <= 0.05 + 0.054 and failed / 150 <= 0.05 + 0.054
    assert equal / 150 > 0.9


def test_implied_survival_of_the_published_curve() -> None:
    """S4+S5 and S6+S7 of the M3.1-Flash curve are 0.58 each; nothing is said within them."""
    groups, sums = implied_groups({3: 2.88, 5: 3.46, 7: 4.04})
    assert groups == [(1, 3), (4, 5), (6, 7)]
    assert sums == [pytest.approx(1.88), pytest.approx(0.58), pytest.approx(0.58)]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({5: 3.59, 6: 3.57, 7: 3.85}, "falls from 3.59 at K=5 to 3.57 at K=6"),
        ({3: 2.0, 5: 3.9}, "rises faster from K=3 to K=5"),
        ({1: 1.5, 2: 2.8}, "more than 1 drafts can give"),
    ],
)
def test_a_curve_that_implies_no_survival_is_never_repaired(lengths: dict[int, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        implied_groups(lengths)
    k = max(lengths)
    with pytest.raises(ValueError, match=words):
        distribution_test(draw(np.random.default_rng(0), 20, k), k, margin=0.2, lengths=lengths)


def test_a_curve_whose_own_spread_hides_the_margin_is_not_decidable() -> None:
    samples = draw(np.random.default_rng(0), 200)
    lengths = {3: 2.88, 5: 3.46, 7: 4.04}
    blurred = distribution_test(
        samples, 7, margin=0.05 * 4.04, lengths=lengths, lengths_se={k: 0.025 * v for k, v in lengths.items()}
    )
    sharp = distribution_test(samples, 7, margin=0.05 * 4.04, lengths=lengths, lengths_se=dict.fromkeys(lengths, 0.01))
    assert blurred is not None and sharp is not None
    assert (blurred.decidable, sharp.decidable) == (False, True)
    assert distribution_test(samples, 7, margin=0.2, lengths={7: 4.0}) is None
    assert distribution_test(samples[:1], 7, margin=0.2, histogram=[1] * 8, se=0.1, clusters=9) is None

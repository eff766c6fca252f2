"""Repeats, run variation, Holm, resampling, bands and histograms: definitions, twins, edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp

from evalkit import stats
from evalkit.acceptance import implied_groups
from evalkit.audit.population import POPULATIONS


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- repeats


@given(st.lists(st.integers(0, 1), min_size=2, max_size=60))
@settings(max_examples=50, deadline=None)
def test_one_answer_each_is_the_plain_proportion(y: list[int]) -> None:
    found, count, n = stats.repeated_mean(y, range(len(y))), sum(y), len(y)
    assert found.mean == pytest.approx(count / n) and found.within is None
    if 0 < count < n:
        plain = stats.wilson(count, n)
        assert found.se == pytest.approx(stats.proportion_se(count, n))
        assert found.interval.low == pytest.approx(plain.low) and found.interval.high == pytest.approx(plain.high)
        assert found.design_effect == pytest.approx(1)


def test_repeats_of_one_question_are_not_questions() -> None:
    y = (rng(1).random(100) < 0.8).astype(float)
    copied = stats.repeated_mean(np.repeat(y, 10), np.repeat(np.arange(100), 10))
    once = stats.repeated_mean(y, np.arange(100))
    assert copied.se == pytest.approx(once.se) and copied.within == 0
    assert copied.design_effect is not None and copied.design_effect > 9


def test_paired_repeats() -> None:
    plain = [1] * 5 + [-1] * 9 + [0] * 286
    assert stats.paired_repeats_test(plain, -0.01) == stats.tango_test(5, 9, 300, -0.01)
    d = np.array(plain) / 4  # a quarter of the answers each
    test, span = stats.paired_repeats_test(d, -0.01), stats.paired_repeats_interval(d)
    assert span.low < d.mean() < span.high
    assert stats.paired_repeats_test(d, span.low).p_above == pytest.approx(0.025, abs=1e-4)
    assert stats.paired_repeats_test(d, span.high).p_below == pytest.approx(0.025, abs=1e-4)
    assert test.p_above < stats.tango_test(5, 9, 300, -0.01).p_above, "repeats narrow it"
    whole = stats.paired_repeats_interval(plain)
    tango = stats.tango_interval(5, 9, 300)
    assert (whole.low, whole.high) == (pytest.approx(tango.low, abs=1e-3), pytest.approx(tango.high, abs=1e-3))
    nothing = stats.paired_repeats_test([0.0] * 50, -0.01)
    assert nothing.p_above > 0.2, "fifty equal questions show little"


def test_run_variation_by_unit_tells_flips_from_a_common_effect() -> None:
    p = rng(2).beta(9, 1, 2000)
    flips = (rng(3).random((40, 2000)) < p).astype(float)
    found = stats.run_variation_by_unit(flips)
    assert found.expected_sd is not None and found.excess_sd is not None
    assert found.sd == pytest.approx(found.expected_sd, rel=0.4) and found.excess_sd < found.sd
    shifted = (rng(4).random((40, 2000)) < p - rng(5).normal(0, 0.03, (40, 1))).astype(float)
    wide = stats.run_variation_by_unit(shifted)
    assert wide.excess_sd is not None and 0.02 < wide.excess_sd < 0.04
    assert stats.run_variation(flips.mean(axis=1)).sd == pytest.approx(found.sd)
    assert found.estimate().df == 39


def test_run_variation_widens_an_estimate() -> None:
    x = stats.Estimate(value=0.96, se=0.005, df=1318)
    wide = stats.with_run_variation(x, 0.009, 1, 5)
    assert wide.se == pytest.approx(math.hypot(0.005, 0.009)) and 4 < wide.df < 8
    assert stats.with_run_variation(x, 0.009, 9, 5).se == pytest.approx(math.hypot(0.005, 0.003))
    assert stats.with_run_variation(replace(x, df=math.inf), 0.0, 1, 5).df == math.inf


# --- several tests


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_holm_by_its_definition(p: list[float]) -> None:
    found = stats.holm(p)
    for value, mine in zip(p, found, strict=True):
        smaller = sorted(q for q in p if q <= value)
        assert mine == pytest.approx(min(1, max((len(p) - i) * q for i, q in enumerate(smaller))))


def test_holm_is_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = rng(6).random(9) ** 3
    assert stats.holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])


# --- power


def test_needed_and_mde_are_inverse() -> None:
    mde = stats.mde_estimate(0.1, 0.05)
    assert stats.needed_clusters(0.1, 80, mde, 0.05) in (80, 81)
    assert stats.needed_clusters(0.1, 80, 0.05) == 1979  # (1.6449 + 0.8416)^2 * 80 * (0.1 / 0.05)^2
    assert stats.needed_clusters(0.1, 80, 0.0) is None
    assert stats.needed_clusters(0.1, 80, 0.1, reference_se=0.05) is None
    assert stats.power_paired(100, 0.0, 0.01) == 1.0


# --- resampling


def test_bootstrap_intervals_agree_with_t_on_tame_clusters() -> None:
    hits, sizes = next(POPULATIONS[0].draw(rng(8), 400, 1))
    totals = hits.sum(axis=1)
    t = stats.clustered_ratio(totals, sizes).interval
    assert t is not None
    for rule in (stats.bca_ratio, stats.bootstrap_t_ratio):
        found = rule(totals, sizes, rng(9))
        assert found is not None and found == rule(totals, sizes, rng(9)), "seeded"
        assert found.low == pytest.approx(t.low, abs=0.03) and found.high == pytest.approx(t.high, abs=0.03)


def test_bca_is_scipys_for_a_mean() -> None:
    x = rng(10).gamma(2, 1, 60)
    mine = stats.bca_ratio(x, np.ones(60), rng(11), draws=20_000)
    theirs = sp.bootstrap((x,), np.mean, method="BCa", n_resamples=20_000, rng=rng(12)).confidence_interval
    assert mine is not None
    assert (mine.low, mine.high) == (pytest.approx(theirs.low, abs=0.02), pytest.approx(theirs.high, abs=0.02))


def test_resampling_without_spread_says_nothing() -> None:
    for rule in (stats.bca_ratio, stats.bootstrap_t_ratio):
        assert rule([3, 6, 9, 12], [1, 2, 3, 4], rng()) is None
        assert rule([1, 2], [1, 1], rng()) is None
        assert rule([0, 0, 0], [1, 2, 3], rng()) is None


# --- band


def test_band_is_wider_than_its_points_and_stays_between_0_and_1() -> None:
    hits, sizes = next(POPULATIONS[1].draw(rng(13), 80, 1))
    band = stats.simultaneous_band(hits, sizes, rng(14))
    assert band is not None and band == stats.simultaneous_band(hits, sizes, rng(14))
    assert 1.99 < band.critical < 3.0, "between one position and seven independent ones"
    for share, both, one in zip(band.shares, band.intervals, band.pointwise, strict=True):
        assert 0 <= both.low < one.low < share < one.high < both.high <= 1
    before = np.column_stack([sizes, hits[:, :-1]])
    conditional = stats.simultaneous_band(hits, before, rng(15))
    assert conditional is not None and conditional.shares[0] == band.shares[0]
    assert np.prod(conditional.shares) == pytest.approx(band.shares[-1])


def test_band_at_the_boundary() -> None:
    hits = np.array([[5, 2, 0], [7, 3, 0], [4, 1, 0]])
    band = stats.simultaneous_band(hits, np.array([5, 7, 4]), rng())
    assert band is not None
    assert band.intervals[0].high == 1.0 and band.intervals[0].low < 0.7
    assert band.intervals[2].low == 0.0 and 0.3 < band.intervals[2].high < 1
    assert stats.simultaneous_band(hits[:1], np.array([5]), rng()) is None


def test_band_counts_only_clusters_that_reach_a_position() -> None:
    """All of 3 clusters' 9 trials hit: no more is known for 200 clusters that never got there."""
    few = np.zeros((203, 1)), np.zeros((203, 1))
    few[0][:3] = few[1][:3] = 3
    hits, sizes = np.column_stack([np.tile([1, 2], 102)[:203], few[0]]), np.column_stack([np.full(203, 3), few[1]])
    band = stats.simultaneous_band(hits, sizes, rng())
    assert band is not None and band.intervals[1].low < 0.5 and band.intervals[1].high == 1


# --- survival curves


def _table(seed: int, m: int, which: int = 0) -> np.ndarray:
    hits, sizes = next(POPULATIONS[which].draw(rng(seed), m, 1))
    return -np.diff(np.column_stack([sizes, hits, np.zeros(m)]), axis=1)


def _survival(counts: np.ndarray) -> np.ndarray:
    return stats.survival_counts(counts)[:, 1:].sum(axis=0) / counts.sum()


def _two(a: np.ndarray, b: np.ndarray, margin: float = 0.1) -> stats.LostTest:
    covariance = stats.survival_covariance(a) + stats.survival_covariance(b)
    return stats.lost_test(_survival(a) - _survival(b), covariance, margin, min(len(a), len(b)) - 1, 0.05)


def _against(a: np.ndarray, shares: np.ndarray) -> float:
    gap = _survival(a) - _survival(shares[None])
    return stats.equal_test(gap, stats.survival_covariance(a), len(a) - 1)


def _permuted(a: np.ndarray, b: np.ndarray, draws: int) -> float:
    """Slow twin of the equality test: whole clusters change sides (Pitman), the statistic is Wasserstein-1."""
    both, seeded = np.concatenate([a, b]), rng(23)

    def distance(order: np.ndarray) -> float:
        return stats.wasserstein_1(both[order[: len(a)]].sum(axis=0), both[order[len(a) :]].sum(axis=0))

    found = distance(np.arange(len(both)))
    reached = sum(distance(seeded.permutation(len(both))) >= found - 1e-12 for _ in range(draws))
    return (1 + reached) / (1 + draws)


def test_steps_are_not_prompts() -> None:
    """Copying every step ten times within its prompt changes no p-value; a test over steps would."""
    a, b = _table(17, 40), _table(18, 40)
    once, copied = _two(a, b), _two(10 * a, 10 * b)
    assert copied.p_equal == pytest.approx(once.p_equal) and copied.p_under == pytest.approx(once.p_under)
    shares = _table(19, 4000).sum(axis=0) / _table(19, 4000).sum()
    fixed = _against(a, shares)
    assert _against(10 * a, shares) == pytest.approx(fixed)
    steps = 10 * a.sum(axis=0)
    assert sp.chisquare(steps, shares * steps.sum()).pvalue < 1e-20 < 1e-4 < fixed


def test_independent_steps_of_two_values_give_the_plain_chi_square() -> None:
    units = np.eye(2)[(rng(20).random(4000) < 0.52).astype(int)]
    found = _against(units, np.array([0.5, 0.5]))
    assert found == pytest.approx(sp.chisquare(units.sum(axis=0), [2000, 2000]).pvalue, rel=0.01)


def test_independent_steps_give_the_multinomials_own_p_value() -> None:
    """Of the same statistic, the sum of squared t values, over 400,000 simulated samples: p is known to 6 %."""
    shares = np.array([0.2, 0.3, 0.4, 0.1])
    units = np.eye(4)[rng(20).choice(4, 4000, p=[0.205, 0.305, 0.385, 0.105])]
    survival = _survival(shares[None])
    drawn = _survival_rows(rng(25).multinomial(4000, shares, 400_000) / 4000) - survival
    statistic = (drawn**2 / (survival * (1 - survival))).sum(axis=1)
    gap = _survival(units) - survival
    plain = (statistic >= (gap**2 / (survival * (1 - survival))).sum()).mean()
    assert _against(units, shares) == pytest.approx(plain, rel=0.15)


def _survival_rows(shares: np.ndarray) -> np.ndarray:
    return stats.survival_counts(shares)[:, 1:]


def test_the_equality_test_agrees_with_its_permutation_twin() -> None:
    for seed in range(3):
        a, b = _table(30 + seed, 60), _table(40 + seed, 60)
        assert _two(a, b).p_equal == pytest.approx(_permuted(a, b, 999), abs=0.1)


def test_a_shift_is_found_with_its_size_in_tokens() -> None:
    a, b = _table(21, 300, 0), _table(22, 300, 0)
    b[:, 0] += b[:, 5]
    b[:, 5] = 0
    found = _two(b, a)
    assert found.p_equal <= 0.005 and _permuted(a, b, 199) <= 0.005
    assert found.lost > 0.2 and found.p_over < 0.005 and found.p_under > 0.99
    assert _two(b, a, margin=2.0).p_under < 0.005


def test_covariances_agree_where_steps_are_independent() -> None:
    counts = rng(3).multinomial(10, [0.2, 0.3, 0.5], 4000).astype(float)
    clustered = stats.survival_covariance(counts)
    se = float(np.sqrt(clustered.sum()))
    assert np.allclose(clustered, stats.histogram_covariance(counts.sum(axis=0), se), rtol=0.1)
    assert se == pytest.approx(stats.clustered_ratio(counts @ np.arange(3), counts.sum(axis=1)).se)


def test_degenerate_survival() -> None:
    same = np.array([[1, 1], [2, 2]])
    assert _two(same, same).p_equal == 1.0 and _two(same, same).p_under == 0.0
    assert _against(same, np.array([1.0, 0.0])) == 0.0
    lost = stats.lost_test([-0.5], np.zeros((1, 1)), 0.1, 9, 0.05)
    assert (lost.lost, lost.upper, lost.p_under, lost.p_over, lost.p_equal) == (0.5, 0.5, 1.0, 0.0, 0.0)


def test_a_curve_alone() -> None:
    assert implied_groups({3: 2.88, 5: 3.46, 7: 4.04})[1] == pytest.approx((1.88, 0.58, 0.58))
    with pytest.raises(ValueError, match="falls"):
        implied_groups({5: 3.59, 6: 3.57, 7: 3.85})
    with pytest.raises(ValueError, match="rises faster"):
        implied_groups({1: 1.5, 2: 1.6, 3: 2.0})
    table = _table(24, 400)
    pick = np.array([[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]])
    true, covariance = pick @ POPULATIONS[0].survival, pick @ stats.survival_covariance(table) @ pick.T
    assert stats.equal_test(pick @ _survival(table) - true, covariance, 399) > 0.01
    assert stats.equal_test(pick @ _survival(table) - true - [0, 0.1, -0.1], covariance, 399) < 1e-3


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.repeated_mean([0.5, 1.5], [1, 2]),
        lambda: stats.repeated_mean([0.5], [1, 2]),
        lambda: stats.paired_repeats_test([0.5, float("nan")], 0),
        lambda: stats.paired_repeats_test([], 0),
        lambda: stats.run_variation([0.9]),
        lambda: stats.run_variation_by_unit(np.ones((1, 5))),
        lambda: stats.with_run_variation(stats.Estimate(value=1, se=0), 0.1, 1, 1),
        lambda: stats.holm([0.5, 1.1]),
        lambda: stats.holm([float("nan")]),
        lambda: stats.exact_interval(3, 2),
        lambda: stats.needed_count(1.2, 10),
        lambda: stats.needed_count(float("nan"), 10),
        lambda: stats.audit_threshold([0.9], 0.9, 10),
        lambda: stats.bca_ratio([1, 2, 3], [1, 2], rng()),
        lambda: stats.bca_ratio([1, 2, 3], [1, 0, 2], rng()),
        lambda: stats.bootstrap_se([float("nan"), 1], rng()),
        lambda: stats.simultaneous_band(np.array([[2]]), np.array([1]), rng()),
        lambda: stats.simultaneous_band(np.array([[0], [0]]), np.array([0, 0]), rng()),
        lambda: stats.survival_covariance(np.array([[1, 2]])),
        lambda: stats.survival_covariance(np.array([[-1, 2], [1, 1]])),
        lambda: stats.histogram_covariance([0, 0], 0.1),
        lambda: stats.histogram_covariance([3, 2], float("nan")),
        lambda: stats.lost_test([0.1, 0.2], np.ones((1, 1)), 0.1, 9, 0.05),
        lambda: stats.lost_test([float("nan")], np.ones((1, 1)), 0.1, 9, 0.05),
        lambda: stats.equal_test([0.1], np.ones((1, 1)), 0),
        lambda: stats.power_threshold(0.5, 10, 11),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r".{8,}"):
        call()  # type: ignore[operator]

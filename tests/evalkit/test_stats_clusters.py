"""Repeats, run variation, Holm, resampling, bands and histograms: definitions, twins, edges."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp

from evalkit import stats
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


# --- histograms


def _table(seed: int, m: int, which: int = 0) -> np.ndarray:
    hits, sizes = next(POPULATIONS[which].draw(rng(seed), m, 1))
    return -np.diff(np.column_stack([sizes, hits, np.zeros(m)]), axis=1)


def test_permutation_is_all_permutations() -> None:
    a, b = np.array([[3, 1], [2, 2], [4, 0]]), np.array([[0, 4], [1, 3]])
    both = np.concatenate([a, b])
    found = stats.histogram_permutation_test(a, b, rng(16), draws=20_000)
    distances = []
    for first in itertools.combinations(range(5), 3):
        rest = [i for i in range(5) if i not in first]
        distances.append(stats.wasserstein_1(both[list(first)].sum(axis=0), both[rest].sum(axis=0)))
    exact = np.mean([d >= found.distance - 1e-12 for d in distances])
    assert found.p == pytest.approx(exact, abs=0.01)
    assert found.distance == pytest.approx(stats.wasserstein_1([9, 3], [1, 7]))
    assert found.shift == pytest.approx(3 / 12 - 7 / 8)


def test_steps_are_not_prompts() -> None:
    """Copying every step ten times within its prompt changes no p-value; a test over steps would."""
    a, b = _table(17, 40), _table(18, 40)
    assert stats.histogram_test(10 * a, 10 * b).p == pytest.approx(stats.histogram_test(a, b).p)
    shares = _table(19, 4000).sum(axis=0) / _table(19, 4000).sum()
    fixed = stats.histogram_test_fixed(a, shares).p
    assert stats.histogram_test_fixed(10 * a, shares).p == pytest.approx(fixed)
    steps = 10 * a.sum(axis=0)
    assert sp.chisquare(steps, shares * steps.sum()).pvalue < 1e-20 < 1e-4 < fixed


def test_independent_steps_give_the_plain_chi_square() -> None:
    shares = np.array([0.2, 0.3, 0.4, 0.1])
    units = np.eye(4)[rng(20).choice(4, 4000, p=[0.21, 0.31, 0.37, 0.11])]
    found, plain = stats.histogram_test_fixed(units, shares).p, sp.chisquare(units.sum(axis=0), shares * 4000).pvalue
    assert found == pytest.approx(plain, rel=0.25)


def test_a_shift_is_found_with_its_size_in_tokens() -> None:
    a, b = _table(21, 300, 0), _table(22, 300, 0)
    b[:, 0] += b[:, 5]
    b[:, 5] = 0
    for found in (stats.histogram_test(a, b), stats.histogram_permutation_test(a, b, rng(23), draws=199)):
        assert found.p <= 0.005 and found.clusters == (300, 300)
        assert found.distance >= abs(found.shift) > 0.2


def test_degenerate_histograms() -> None:
    same = np.array([[1, 1], [2, 2]])
    assert stats.histogram_test(same, same).p == 1.0
    assert stats.histogram_test_fixed(same, [1.0, 0.0]).p == 0.0
    short = stats.histogram_test(np.array([[1, 2], [2, 1]]), np.array([[1, 2, 0], [2, 1, 0]]))
    assert short.p == pytest.approx(1) and short.distance == 0


def test_a_curve_alone() -> None:
    assert stats.implied_sums([3, 5, 7], [2.88, 3.46, 4.04]) == pytest.approx((1.88, 0.58, 0.58))
    with pytest.raises(ValueError, match="not monotone"):
        stats.implied_sums([5, 6, 7], [3.59, 3.57, 3.85])
    with pytest.raises(ValueError, match="above 1 or rising"):
        stats.implied_sums([1, 2, 3], [1.5, 1.6, 2.0])
    hits, sizes = next(POPULATIONS[0].draw(rng(24), 400, 1))
    totals = np.column_stack([hits[:, :3].sum(axis=1), hits[:, 3:5].sum(axis=1), hits[:, 5:].sum(axis=1)])
    s = POPULATIONS[0].survival
    true = [sum(s[:3]), sum(s[3:5]), sum(s[5:])]
    assert stats.sums_test(totals, sizes, true) > 0.01
    assert stats.sums_test(totals, sizes, [true[0], true[1] + 0.1, true[2] - 0.1]) < 1e-3


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
        lambda: stats.histogram_test(np.array([[1, 2]]), np.array([[1, 2], [1, 1]])),
        lambda: stats.histogram_test(np.array([[-1, 2]]), np.array([[1, 2], [1, 1]])),
        lambda: stats.histogram_test_fixed(np.array([[1, 2], [1, 2]]), [0.5, 0.6]),
        lambda: stats.implied_sums([3, 2], [2.0, 2.5]),
        lambda: stats.sums_test(np.ones((2, 2)), [1, 1], [1]),
        lambda: stats.power_threshold(0.5, 10, 11),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r".{8,}"):
        call()  # type: ignore[operator]

"""Expected values of design/statistics.md, edges, slow twins (statsmodels, scipy), and simulated error rates."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp

from evalkit import stats

SGLANG = (1266, 1319)
INF = float("inf")
NAN = float("nan")


# --- expected values


@pytest.mark.parametrize(
    ("count", "score", "se"), [(1277, 0.9682, 0.0048), (1272, 0.9644, 0.0051), (1266, 0.9598, 0.0054)]
)
def test_standard_error_is_lm_evals(count: int, score: float, se: float) -> None:
    found = stats.proportion_se(count, 1319)
    assert found is not None
    assert round(found, 4) == se
    assert round(count / 1319, 4) == score
    assert stats.recover_count(score, 1319) == count


def test_standard_error_to_the_last_digit_lm_eval_printed() -> None:
    assert stats.proportion_se(1266, 1319) == pytest.approx(0.005409439736970532, rel=1e-12)  # case C79


def test_wilson_of_the_sglang_score() -> None:
    found = stats.wilson(1266, 1319)
    assert (round(found.low, 4), round(found.high, 4)) == (0.9478, 0.9691)


@pytest.mark.parametrize(
    ("count", "other", "difference", "low", "high", "p1", "p2"),
    [
        (1277, SGLANG, 0.0083, -0.0060, 0.0230, 0.0064, None),
        (1272, SGLANG, 0.0045, -0.0102, 0.0195, 0.0266, None),
        (1274, SGLANG, 0.0061, -0.0085, 0.0209, 0.0157, None),
        (1281, SGLANG, 0.0114, -0.0026, 0.0258, 0.0016, None),
        (1272, (1277, 1319), -0.0038, -0.0179, 0.0102, 0.190, 0.0127),
    ],
)
def test_published_comparisons(
    count: int, other: tuple[int, int], difference: float, low: float, high: float, p1: float, p2: float | None
) -> None:
    """The expected values are statsmodels', so its slip is repeated here."""
    assert round(count / 1319 - other[0] / other[1], 4) == difference
    span = stats.two_proportion_interval(count, 1319, *other, exact=False)
    assert (round(span.low, 4), round(span.high, 4)) == (low, high)
    assert round(stats.two_proportion_test(count, 1319, *other, bound=-0.01, exact=False).p_above, 4) == pytest.approx(
        p1, abs=5e-4
    )
    if p1 < 0.1:
        assert round(stats.two_proportion_test(count, 1319, *other, bound=-0.01, exact=False).p_above, 4) == p1
    if p2 is not None:
        assert round(stats.two_proportion_test(count, 1319, *other, bound=-0.02, exact=False).p_above, 4) == p2


def test_smallest_detectable_differences() -> None:
    assert round(stats.mde_unpaired(0.9644, 1319, 1319), 3) == 0.018
    assert round(stats.mde_paired(1319, 0.03), 3) == 0.012


def test_needed_n_gives_back_the_mde() -> None:
    for discordant in (0.01, 0.03, 0.1):
        assert stats.needed_pairs(discordant, stats.mde_paired(1319, discordant)) in (1319, 1320)
    n = stats.needed_n(0.95, 0.96, 1319, 0.015)
    assert n is not None
    distance = stats.mde_unpaired(0.955, n, 1319)
    assert stats.needed_n(0.955, 0.955, 1319, distance) == pytest.approx(n, abs=1)
    assert stats.needed_pairs(0.03, 0.0) is None
    assert stats.needed_n(0.95, 0.96, 100, 0.01) is None  # the published side alone is too uncertain


def test_recover_count_refuses_what_is_not_unique() -> None:
    with pytest.raises(ValueError, match=r"no count of 25 rounds to 0\.9598"):
        stats.recover_count(0.9598, 25)
    with pytest.raises(ValueError, match=r"all round to 0\.96"):
        stats.recover_count(0.96, 1319, decimals=2)


# --- edges: finite and sensible everywhere


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_single_proportion_is_always_finite(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3000))
    count = data.draw(st.integers(0, n))
    found = stats.wilson(count, n)
    assert 0 <= found.low <= count / n <= found.high <= 1
    assert found.low < found.high


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_tango_is_consistent(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2000))
    up = data.draw(st.integers(0, n))
    down = data.draw(st.integers(0, n - up))
    span = stats.tango_interval(up, down, n)
    assert -1 <= span.low <= (up - down) / n <= span.high <= 1
    mirror = stats.tango_interval(down, up, n)
    assert (mirror.low, mirror.high) == (pytest.approx(-span.high, abs=1e-9), pytest.approx(-span.low, abs=1e-9))
    for bound in (span.low, span.high):  # the interval is the set of bounds that the test does not refuse
        if -0.999 < bound < 0.999:
            test = stats.tango_test(up, down, n, bound)
            assert min(test.p_above, test.p_below) == pytest.approx(0.025, abs=1e-4)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_unpaired_is_consistent(data: st.DataObject) -> None:
    n1, n2 = data.draw(st.integers(1, 1500)), data.draw(st.integers(1, 1500))
    c1, c2 = data.draw(st.integers(0, n1)), data.draw(st.integers(0, n2))
    for exact in (False, True):
        span = stats.two_proportion_interval(c1, n1, c2, n2, exact=exact)
        assert -1 <= span.low <= c1 / n1 - c2 / n2 <= span.high <= 1
        for bound in (span.low, span.high):
            if exact and -0.99 < bound < 0.99:
                test = stats.two_proportion_test(c1, n1, c2, n2, bound, exact=True)
                assert min(test.p_above, test.p_below) == pytest.approx(0.025, abs=1e-4)


def test_no_discordant_pair_still_gives_an_interval() -> None:
    span = stats.tango_interval(0, 0, 1319)
    z2 = 1.959963984540054**2
    assert span.high == pytest.approx(z2 / (1319 + z2))
    assert span.low == -span.high
    assert stats.tango_test(0, 0, 1319, -0.01).p_above < 0.001
    assert stats.tango_test(0, 0, 10, -0.01).p_above > 0.3
    assert stats.discordant_at(0, 0, 10, -0.01) == pytest.approx(0.01 * 0.99)


def test_mcnemar() -> None:
    assert stats.mcnemar_exact(0, 0) == stats.mcnemar_midp(0, 0) == 1.0
    assert stats.mcnemar_exact(14, 0) == pytest.approx(2 * 0.5**14)
    assert stats.mcnemar_exact(5, 5) == 1.0
    for up, down in ((3, 9), (20, 12), (900, 1000), (1, 0)):
        assert stats.mcnemar_exact(up, down) == pytest.approx(sp.binomtest(up, up + down).pvalue)
        midp = 2 * (sp.binom.cdf(min(up, down), up + down, 0.5) - 0.5 * sp.binom.pmf(min(up, down), up + down, 0.5))
        assert stats.mcnemar_midp(up, down) == pytest.approx(min(1, midp))


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.wilson(5, 0),
        lambda: stats.wilson(6, 5),
        lambda: stats.wilson(-1, 5),
        lambda: stats.wilson(NAN, 5),  # type: ignore[arg-type]
        lambda: stats.wilson(1, 5, level=1.0),
        lambda: stats.proportion_se(1.5, 3),  # type: ignore[arg-type]
        lambda: stats.tango_test(3, 3, 5, -0.01),
        lambda: stats.tango_test(1, 1, 5, NAN),
        lambda: stats.tango_interval(0, 0, 0),
        lambda: stats.two_proportion_test(1, 2, 3, 2, 0),
        lambda: stats.mcnemar_exact(-1, 2),
        lambda: stats.mde_paired(0, 0.1),
        lambda: stats.mde_paired(10, 1.1),
        lambda: stats.recover_count(NAN, 10),
        lambda: stats.clustered_ratio([], []),
        lambda: stats.clustered_ratio([1, NAN], [1, 1]),
        lambda: stats.clustered_ratio([1, 2], [1]),
        lambda: stats.clustered_ratio([1, -2], [1, 1]),
        lambda: stats.clustered_ratio([1, 2], [1, 0]),
        lambda: stats.clustered_ratio([0, 0], [0, 0]),
        lambda: stats.clustered_ratio([1, 2], [1, 1], [1]),
        lambda: stats.wasserstein_1([0, 0], [1, 2]),
        lambda: stats.wasserstein_1([], [1]),
        lambda: stats.wasserstein_1([NAN], [1]),
        lambda: stats.Estimate(value=NAN, se=0.1),
        lambda: stats.Estimate(value=1, se=INF),
        lambda: stats.ratio_test(stats.Estimate(value=1, se=0.1), stats.Estimate(value=0, se=0.1), 0.9),
        lambda: stats.calibration_error([0.1], [0.5]),
        lambda: stats.calibration_error([0.1, 0.2], [1]),
        lambda: stats.calibration_error([1.1], [1]),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r".{8,}"):
        call()  # type: ignore[operator]


# --- ratios, histograms, calibration


def test_clustered_ratio_by_hand() -> None:
    found = stats.clustered_ratio([2, 4, 0], [1, 2, 3], [4, 8, 0])
    ratio = 6 / 6
    residuals = np.array([2 - ratio, 4 - 2 * ratio, 0 - 3 * ratio])
    se = math.sqrt(3 / 2 * (residuals**2).sum()) / 6
    assert found.ratio == ratio
    assert found.se == pytest.approx(se)
    assert found.interval is not None
    assert found.interval.high == pytest.approx(1 + sp.t.ppf(0.975, 2) * se)
    assert found.design_effect == pytest.approx(se**2 / ((12 / 6 - 1) / 5))


def test_one_cluster_and_empty_clusters() -> None:
    one = stats.clustered_ratio([5, 0], [3, 0], [9, 0])
    assert (one.se, one.interval, one.design_effect, one.clusters) == (None, None, None, 1)
    flat = stats.clustered_ratio([6, 3], [2, 1], [18, 9])
    assert (flat.se, flat.design_effect) == (0.0, None)


def test_single_unit_clusters_have_a_design_effect_of_one() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 8, 500)
    found = stats.clustered_ratio(a, np.ones(500), a**2)
    assert found.design_effect == pytest.approx(1, abs=1e-6)


def test_ratio_test_and_interval_agree() -> None:
    x, ref = stats.Estimate(value=4.91, se=0.05, df=100), stats.Estimate(value=5.0, se=0.06, df=80)
    span = stats.ratio_interval(x, ref, level=0.9)
    assert span is not None
    assert stats.ratio_test(x, ref, span.low).p_above == pytest.approx(0.05, abs=1e-3)
    assert stats.ratio_test(x, ref, span.high).p_below == pytest.approx(0.05, abs=1e-3)
    known = stats.ratio_interval(x, stats.Estimate(value=5.0, se=0.0), level=0.9)
    assert known is not None
    assert known.low == pytest.approx((4.91 - sp.t.ppf(0.95, 100) * 0.05) / 5)
    assert stats.ratio_interval(x, stats.Estimate(value=5.0, se=4.0)) is None
    exact = stats.ratio_test(stats.Estimate(value=4, se=0), stats.Estimate(value=4, se=0), 0.95)
    assert (exact.p_above, exact.p_below) == (0.0, 1.0)


def test_wasserstein() -> None:
    assert stats.wasserstein_1([10, 0, 0], [0, 0, 5]) == 2
    assert stats.wasserstein_1([1, 2, 3], [2, 4, 6]) == pytest.approx(0)
    assert stats.wasserstein_1([1, 1], [0, 0, 1, 1]) == pytest.approx(2)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 50, 8), rng.integers(0, 50, 8)
    assert stats.wasserstein_1(a, b) == pytest.approx(sp.wasserstein_distance(range(8), range(8), a, b))


def test_calibration_error() -> None:
    assert stats.calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    assert stats.calibration_error([1.0, 1.0], [0, 1]) == pytest.approx(0.5)
    assert stats.calibration_error([0.05, 0.95], [1, 0], bins=20) == pytest.approx(0.95)


# --- slow twin


@pytest.mark.parametrize(("n1", "n2"), [(1319, 1319), (1319, 200), (40, 60)])
def test_unpaired_score_method_is_statsmodels(n1: int, n2: int) -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for c1, c2 in ((n1 - n1 // 20, n2 - n2 // 25), (n1 // 2, n2 // 3))[n1 < 100 :]:  # theirs finds no root at 38 of 40
        for bound in (-0.05, -0.01, 0.02):
            theirs = proportion.test_proportions_2indep(
                c1, n1, c2, n2, value=bound, method="score", compare="diff", alternative="larger"
            ).pvalue
            if math.isfinite(theirs):
                assert stats.two_proportion_test(c1, n1, c2, n2, bound, exact=False).p_above == pytest.approx(
                    theirs, abs=1e-7
                )
        low, high = proportion.confint_proportions_2indep(c1, n1, c2, n2, method="score", compare="diff")
        span = stats.two_proportion_interval(c1, n1, c2, n2, exact=False)
        assert (span.low, span.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_exact_restricted_estimate_is_the_most_likely_one() -> None:
    """Brute force over p2, for the published method, the default; statsmodels' slip is close to it here."""
    for c1, n1, c2, n2, d in ((1277, 1319, 1266, 1319, -0.01), (7, 34, 1, 34, 0.1), (20, 40, 0, 25, 0.3)):
        p2 = np.linspace(max(0, -d), min(1, 1 - d), 400_001)[1:-1]
        p1 = p2 + d
        log = c1 * np.log(p1) + (n1 - c1) * np.log1p(-p1) + c2 * np.log(p2) + (n2 - c2) * np.log1p(-p2)
        best = int(np.argmax(log))
        n = n1 + n2
        variance = (p1[best] * (1 - p1[best]) / n1 + p2[best] * (1 - p2[best]) / n2) * n / (n - 1)
        z = (c1 / n1 - c2 / n2 - d) / math.sqrt(variance)
        assert stats.two_proportion_test(c1, n1, c2, n2, d).statistic == pytest.approx(z, rel=1e-4)
    for count in (1277, 1272, 1274, 1281):
        pair = [stats.two_proportion_test(count, 1319, *SGLANG, -0.01, exact=e).p_above for e in (False, True)]
        assert abs(pair[0] - pair[1]) < 2e-4


def test_exact_interval_is_the_published_one() -> None:
    """R's PropCIs::diffscoreci(7, 34, 1, 34), as statsmodels' pull request 10270 quotes it."""
    span = stats.two_proportion_interval(7, 34, 1, 34)
    assert 0.018 < span.low < 0.030 and 0.33 < span.high < 0.35


def test_unpaired_sides_can_be_exchanged() -> None:
    """The default is the method as published: it does not know which sample is named first. statsmodels' slip does."""
    for exact, same in ((True, True), (False, False)):
        one = stats.two_proportion_interval(1272, 1319, *SGLANG, exact=exact)
        other = stats.two_proportion_interval(*SGLANG, 1272, 1319, exact=exact)
        assert (abs(one.low + other.high) < 1e-6 and abs(one.high + other.low) < 1e-6) is same
    assert stats.two_proportion_interval(1272, 1319, *SGLANG) == stats.two_proportion_interval(
        1272, 1319, *SGLANG, exact=True
    )


def test_wilson_is_statsmodels() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for count, n in ((0, 25), (25, 25), (1, 1), (0, 1), (1266, 1319)):
        found = stats.wilson(count, n)
        low, high = proportion.proportion_confint(count, n, method="wilson")
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-12), pytest.approx(high, abs=1e-12))


# --- simulated error rates; seeds are fixed, bounds are 4 simulation standard errors wide:
#     each of these tests fails for a correct program with a chance below 1e-4 over seeds, and never on this one


def _within(rate: float, low: float, high: float, runs: int) -> bool:
    return low - 4 * math.sqrt(low * (1 - low) / runs) <= rate <= high + 4 * math.sqrt(high * (1 - high) / runs)


@pytest.mark.stat
@pytest.mark.parametrize("p", [0.90, 0.95, 0.99])
def test_wilson_covers(p: float) -> None:
    runs, n = 20_000, 1319
    interval = cache(lambda c: stats.wilson(c, n))
    counts = np.random.default_rng(11).binomial(n, p, runs)
    covered = np.mean([interval(int(c)).low <= p <= interval(int(c)).high for c in counts])
    assert _within(float(covered), 0.94, 0.96, runs)


@pytest.mark.stat
@pytest.mark.parametrize("discordant", [0.005, 0.02, 0.05])
def test_tango_covers_and_keeps_its_size(discordant: float) -> None:
    runs, n, margin = 20_000, 1319, 0.01
    rng = np.random.default_rng(12)
    interval = cache(lambda u, d: stats.tango_interval(u, d, n))
    tables = rng.multinomial(n, [discordant / 2, discordant / 2, 1 - discordant], runs)[:, :2]
    covered = np.mean([interval(int(u), int(d)).low <= 0 <= interval(int(u), int(d)).high for u, d in tables])
    assert _within(float(covered), 0.94, 0.97, runs)

    test = cache(lambda u, d: stats.tango_test(u, d, n, -margin))
    share = max(discordant, 0.012)  # a drop at the margin needs at least as many discordant pairs
    at_margin = rng.multinomial(n, [(share - margin) / 2, (share + margin) / 2, 1 - share], runs)[:, :2]
    passed = np.mean([test(int(u), int(d)).p_above <= 0.05 for u, d in at_margin])
    failed = np.mean([test(int(u), int(d)).p_below <= 0.05 for u, d in at_margin])
    assert passed <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert failed <= 0.06 + 4 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.stat
def test_unpaired_test_keeps_its_size() -> None:
    runs, n, p, margin = 20_000, 1319, 0.96, 0.02
    rng = np.random.default_rng(13)
    test = cache(lambda a, b: stats.two_proportion_test(a, n, b, n, -margin))
    a, b = rng.binomial(n, p - margin, runs), rng.binomial(n, p, runs)
    passed = np.mean([test(int(x), int(y)).p_above <= 0.05 for x, y in zip(a, b, strict=True)])
    assert _within(float(passed), 0.04, 0.05, runs)


@pytest.mark.stat
@pytest.mark.parametrize(("m", "low", "high"), [(80, 0.93, 0.96), (500, 0.94, 0.96)])
def test_clustered_ratio_covers(m: int, low: float, high: float) -> None:
    """Prompts with their own acceptance (beta) and gamma answer lengths, coefficient of variation 0.6."""
    runs, mean = 2_000, 3.0
    rng = np.random.default_rng(14)
    covered = 0
    for _ in range(runs):
        sizes = np.maximum(1, rng.gamma(1 / 0.36, 0.36 * 12, m)).astype(int)
        share = rng.beta(6, 8, m)  # mean 3/7
        totals = rng.binomial(7 * sizes, share)
        span = stats.clustered_ratio(totals, sizes).interval
        assert span is not None
        covered += span.low <= mean <= span.high
    assert _within(covered / runs, low, high, runs)


@pytest.mark.stat
def test_ratio_test_keeps_its_size() -> None:
    runs, bound, reference = 20_000, 0.95, 4.0
    rng = np.random.default_rng(15)
    x = rng.normal(bound * reference, 0.05, runs)
    y = rng.normal(reference, 0.1, runs)
    passed = np.mean(
        [
            stats.ratio_test(stats.Estimate(value=a, se=0.05), stats.Estimate(value=b, se=0.1), bound).p_above <= 0.05
            for a, b in zip(x, y, strict=True)
        ]
    )
    assert _within(float(passed), 0.05, 0.05, runs)


@pytest.mark.parametrize(("up", "down", "n"), [(0, 0, 400), (3, 9, 1319), (40, 60, 500), (0, 20, 20)])
def test_run_to_run_variation_in_a_paired_test(up: int, down: int, n: int) -> None:
    assert stats.paired_runs_test(up, down, n, -0.01, sd=0.0, measured_by=2) == stats.tango_test(up, down, n, -0.01)
    before = stats.tango_interval(up, down, n, 0.9)
    assert stats.paired_runs_interval(up, down, n, sd=0.0, measured_by=2, level=0.9) == before
    for sd, runs in ((0.002, 5), (0.01, 3), (0.01, 30)):
        span = stats.paired_runs_interval(up, down, n, sd=sd, measured_by=runs, level=0.9)
        assert -1 <= span.low <= before.low and before.high <= span.high <= 1
        if span.low > -1:
            low = stats.paired_runs_test(up, down, n, span.low, sd=sd, measured_by=runs)
            assert low.p_above == pytest.approx(0.05, abs=1e-6)
        high = stats.paired_runs_test(up, down, n, span.high, sd=sd, measured_by=runs)
        assert high.p_below == pytest.approx(0.05, abs=1e-6)
    with pytest.raises(ValueError, match="measured_by"):
        stats.paired_runs_test(up, down, n, -0.01, sd=0.01, measured_by=1)

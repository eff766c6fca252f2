"""The public cases that are statistics, by number: the right value of each. docs/cases.md lists them."""

from __future__ import annotations

import numpy as np
import pytest

from evalkit import stats


def span(interval: stats.Interval, digits: int = 4) -> tuple[float, float]:
    return round(interval.low, digits), round(interval.high, digits)


def test_c06_zero_of_1319_has_an_interval() -> None:
    assert span(stats.exact_interval(0, 1319)) == (0, 0.0023)
    assert span(stats.wilson(0, 1319)) == (0, 0.0029)
    assert span(stats.exact_interval(1319, 1319)) == (0.9977, 1)


def test_c22_pairs_are_used() -> None:
    assert round(stats.mcnemar_exact(12, 3), 4) == 0.0352
    assert round(stats.mcnemar_midp(12, 3), 4) == 0.0213
    found = stats.tango_interval(12, 3, 220)
    assert 0 < found.low < 9 / 220 < found.high  # 3.4 to 8.4 points or so: shown, where unpaired shows nothing
    unpaired = stats.two_proportion_test(200, 220, 191, 220, 0.0)
    assert 2 * unpaired.p_above > 0.1 > 2 * stats.tango_test(12, 3, 220, 0.0).p_above


@pytest.mark.parametrize("n", [25, 5000])
def test_c23_a_boundary_score_is_never_plus_minus_nothing(n: int) -> None:
    for count in (0, n):
        for interval in (stats.wilson(count, n), stats.exact_interval(count, n)):
            assert 0.0005 < interval.high - interval.low < 0.15
        mean = stats.repeated_mean([float(count > 0)] * n, range(n))
        assert mean.se is None and mean.interval == stats.exact_interval(count, n)
    assert stats.wilson(0, 25).high > 20 * stats.wilson(0, 5000).high


def test_c25_one_sample_has_no_standard_error_but_an_interval() -> None:
    assert stats.proportion_se(1, 1) is None
    mean = stats.repeated_mean([1.0], [7])
    assert (mean.se, mean.within, mean.between) == (None, None, None)
    assert span(mean.interval) == (0.05, 1.0)
    half = stats.repeated_mean([1.0, 0.0], [7, 7])
    assert half.se is None and half.interval.low < 0.1 and half.interval.high > 0.9


def test_c26_every_repeat_counts_and_the_question_is_the_cluster() -> None:
    found = stats.repeated_mean([1, 1, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 9, 9, 9, 9])
    assert (found.mean, found.units, found.answers) == (0.75, 2, 8)
    assert found.within == pytest.approx(1 / 6)  # 4 * 0.25 over 8 - 2
    assert found.between == pytest.approx(0.125 - 1 / 6 / 4)
    assert found.se == pytest.approx(0.25)


def test_c27_bootstrap_is_n_of_n_with_replacement() -> None:
    for seed, p in ((1, 0.5), (2, 0.9), (3, 0.96)):
        y = np.random.default_rng(seed).random(1000) < p
        found = stats.bootstrap_se(y, np.random.default_rng(seed))
        formula = stats.proportion_se(int(y.sum()), 1000)
        assert found is not None and formula is not None
        assert abs(found / formula - 1) < 0.05
        assert found == stats.bootstrap_se(y, np.random.default_rng(seed)), "seeded"
    assert stats.bootstrap_se([1], np.random.default_rng(0)) is None
    ten = stats.bootstrap_se([1, 0, 1, 1, 0, 1, 1, 1, 0, 1], np.random.default_rng(0))
    assert ten is not None and 0.12 < ten < 0.17


def test_c28_what_fifty_questions_can_see() -> None:
    assert round(stats.mde_unpaired(0.45, 50, 50), 2) == 0.25
    needed = stats.needed_n(0.45, 0.45, 1319, 0.05)
    assert needed is not None and needed > 800


def test_c32_a_tolerance_of_nine_standard_errors_sees_nothing() -> None:
    n, expected, tolerance = 1319, 0.88, 0.08
    se = stats.proportion_se(round(expected * n), n)
    assert se is not None and round(tolerance / se, 1) == 8.9
    needed = stats.needed_count("0.80", n)
    power = [stats.power_threshold(expected - drop, n, needed) for drop in (0.02, 0.03, 0.05, 0.08)]
    assert power[0] < 5e-5 and power[1] < 5e-5 and power[2] < 0.01 and 0.45 < power[3] < 0.55
    assert stats.meets(round(0.82 * n), n, "0.80")  # the loss of 6 points that passes
    assert stats.power_paired(n, 0.08, 0.05, 0.05) > 0.99  # the same 6 points, paired, margin 1 point


def test_c33_realised_false_alarm_rate() -> None:
    """17 of 120 runs of 200 at or under .935; the 103 others spread so that the mean is .944."""
    scores = [0.91, 0.92, 0.925, 0.93] + [0.93] * 3 + [0.935] * 10
    scores += [0.94] * 30 + [0.945] * 30 + [0.95] * 27 + [0.955] * 16
    found = stats.audit_threshold(scores, 0.935, 200, inclusive=False)
    assert (found.runs, found.alarms) == (120, 17)
    assert round(found.rate, 4) == 0.1417 and span(found.interval, 3) == (0.085, 0.217)
    assert found.needed_n is not None and found.needed_n > 200  # what would give 1 % at this threshold
    assert found.proposed < 0.935 and found.margin == pytest.approx(found.mean - found.proposed)
    assert any("17 of 120" in doubt for doubt in found.doubts)
    assert stats.audit_threshold(scores, 0.935, 200).alarms == 7  # inclusive


def test_c34_distance_of_an_inherited_threshold() -> None:
    scores = 0.9439 + 0.0069 * np.tile([-1.0, 1.0], 30) * np.sqrt(59 / 60)
    found = stats.audit_threshold(scores, 0.935, 200)
    assert found.sigmas is not None and round(found.sigmas, 1) == 1.3
    other = stats.audit_threshold(scores, 0.960, 200)  # the one of another model
    assert other.needed_n is None and other.rate == 1 and other.doubts


def test_c35_greedy_runs_vary() -> None:
    buckets = dict(zip(range(840, 885, 5), (2, 3, 7, 13, 12, 10, 7, 5, 2), strict=True))
    scores = [b / 1000 for b, count in buckets.items() for _ in range(count)]
    found = stats.run_variation(scores)
    assert (found.runs, round(found.mean, 3), round(found.sd, 3)) == (61, 0.860, 0.009)
    assert found.sd_interval.low < found.sd < found.sd_interval.high
    strict = stats.audit_threshold(scores, 0.85, 200, inclusive=False)
    assert (strict.alarms, strict.runs) == (12, 61)
    assert stats.audit_threshold(scores, 0.85, 200).alarms == 5  # a score of .850 itself meets it
    one = stats.Estimate(value=0.86, se=0.0)
    widened = stats.with_run_variation(one, found.sd, 1, found.runs)
    assert widened.se == found.sd and widened.df == 60
    assert stats.next_run_interval(found).low < 0.85


def test_c36_thresholds_that_never_pass_and_never_fail() -> None:
    x = np.array([-1.2, -0.9, -0.5, -0.2, 0, 0.1, 0.3, 0.6, 0.8, 1.0])
    x = (x - x.mean()) / x.std(ddof=1)
    never = stats.audit_threshold(0.8550 + 0.0015 * x, 0.86, 1319)
    assert never.rate == 1 and never.sigmas == pytest.approx(-10 / 3)
    always = stats.audit_threshold(0.5842 + 0.0015 * x, 0.38, 1319)
    assert always.rate == 0 and always.sigmas is not None and always.sigmas > 5
    assert any("10 runs" in doubt for doubt in always.doubts)


def test_c37_counts_are_compared_inclusive() -> None:
    assert stats.needed_count(0.92, 500) == 460
    assert stats.meets(460, 500, 0.92) and not stats.meets(459, 500, 0.92)
    assert stats.meets(460, 500, "0.9200")
    for n in (50, 200, 500, 1319):
        for k in range(n + 1):
            assert stats.needed_count(k / n, n) == k and stats.meets(k, n, k / n)


def test_c38_a_floor_above_the_lower_quartile_is_not_defensible() -> None:
    good = np.concatenate([np.linspace(0.86, 0.8946, 25), np.linspace(0.896, 0.9734, 75)])
    floor = stats.audit_threshold(good, 0.90, 1319)
    assert floor.rate > 0.25 and any("raise the alarm" in doubt for doubt in floor.doubts)
    eight = stats.audit_threshold(good[:8], 0.80, 1319)
    assert any("8 runs" in doubt for doubt in eight.doubts)
    mixed = stats.audit_threshold([*np.linspace(0.94, 0.95, 40), 0.0, 0.31], 0.90, 1319)
    assert any("not alike" in doubt for doubt in mixed.doubts)


def test_c39_a_delta_is_sized_by_power() -> None:
    for discordant in (0.01, 0.03, 0.06):
        delta = stats.mde_paired(1319, discordant)
        assert delta < 0.017 < stats.mde_unpaired(0.95, 1319, 1319) + 0.003
        assert stats.power_paired(1319, discordant, delta) == pytest.approx(0.8)
    delta = stats.mde_unpaired(0.95, 1319, 1319)
    assert stats.power_unpaired(0.95, 1319, 0.95, 1319, delta) == pytest.approx(0.8)


def test_c65_a_catastrophe_is_caught_within_fifteen_questions() -> None:
    rule = stats.SequentialPaired(0.01, 0.05, pairs=1319)
    state = rule.state
    while state.stop is stats.Stop.GO_ON:
        state = rule.update(0, 1)
    assert state.stop is stats.Stop.FAILURE and 10 <= state.pairs <= 14 and state.saved == 1319 - state.pairs
    replayed, seen = rule.replay(np.full((1, 14), -1))  # the table's (b, c) = (14, 0)
    assert replayed == [stats.Stop.FAILURE] and seen[0] <= 14
    rng = np.random.default_rng(65)  # .9568 without and .0106 with speculation
    y, r = rng.random((200, 40)) < 0.0106, rng.random((200, 40)) < 0.9568
    stops, pairs = stats.SequentialPaired(0.01, 0.05).replay(y.astype(int) - r)
    assert set(stops) == {stats.Stop.FAILURE} and pairs.max() <= 15
    assert stats.tango_test(0, 14, 20, -0.01).p_below < 2e-4


def test_c66_a_broken_baseline_is_a_finding_of_its_own() -> None:
    n = 1319
    before, after = round(0.3177 * n), round(0.1774 * n)
    against_reference = stats.two_proportion_test(before, n, 1266, n, -0.02)
    assert against_reference.p_below < 1e-6  # the baseline itself
    loss = stats.tango_test(60, 60 + before - after, n, -0.01)
    assert loss.p_below < 1e-6  # and the loss that speculation adds, still shown


def test_c67_a_loss_of_five_points_fails_at_a_margin_of_one() -> None:
    n = 1319
    down, up = 80, 14
    assert stats.power_paired(n, (up + down) / n, 0.0497 - 0.01) > 0.999
    assert stats.tango_test(up, down, n, -0.01).p_below < 1e-4
    assert stats.meets(round(0.895 * n), n, 0.9447 - 0.08)  # what the default tolerance says
    stop, pairs = stats.SequentialPaired(0.01, 0.05, pairs=n).replay(
        _differences(np.random.default_rng(67), up, down, n)
    )
    assert stop == [stats.Stop.FAILURE] and pairs[0] < n


def _differences(rng: np.random.Generator, up: int, down: int, n: int) -> np.ndarray:
    return rng.permutation([1] * up + [-1] * down + [0] * (n - up - down))[None, :]


def test_c68_a_small_k_says_nothing_of_a_large_one() -> None:
    assert stats.fixed_sequence([0.001, 0.01, 0.8, 0.001]) == (True, True, False, False)


def test_c74_twenty_items_cannot_support_the_claim() -> None:
    found = stats.two_proportion_interval(8, 20, 11, 20)
    assert found.low < -0.35 and found.high > 0.12
    best = stats.tango_interval(0, 3, 20)  # the most favourable pairing there can be
    assert best.low < -0.3 and best.high > 0
    wide = stats.two_proportion_interval(23, 63, 22, 63)
    assert wide.low < -0.14 and wide.high > 0.17
    needed = stats.needed_pairs(0.15, 0.15)
    assert needed is not None and needed > 20


def test_c75_a_hundred_rows_are_inconclusive_at_one_point() -> None:
    for correct in (95, 94):
        test = stats.two_proportion_test(correct, 100, 1259, 1319, -0.01)
        assert min(test.p_above, test.p_below) > 0.05
        interval = stats.wilson(correct, 100)
        assert interval.low < 0.9545 < interval.high

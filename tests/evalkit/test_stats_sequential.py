"""Sequential stopping: the bet is fair, the fast twin agrees, the guarantee holds where it is tightest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import stats
from evalkit.stats.sequential import STAKES

GO_ON = stats.Stop.GO_ON


def slow_capital(differences: list[int], mean: float) -> float:
    """The definition: pair by pair, stake by stake."""
    each = [1.0] * len(STAKES)
    for d in differences:
        each = [c * (1 + f * ((d + 1) / (1 + mean) - 1)) for c, f in zip(each, STAKES, strict=True)]
    return sum(each) / len(each)


@given(st.lists(st.sampled_from([-1, 0, 0, 0, 1]), max_size=60), st.sampled_from([-0.05, -0.01, 0.0, 0.01, 0.3]))
@settings(max_examples=60, deadline=None)
def test_capital_is_its_definition(differences: list[int], mean: float) -> None:
    fast = stats.log_capital(differences.count(1), differences.count(-1), len(differences), mean)
    assert math.exp(float(fast)) == pytest.approx(slow_capital(differences, mean), rel=1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([-0.05, -0.01, 0.0, 0.01]))
@settings(max_examples=60, deadline=None)
def test_no_bet_gains_on_average_while_its_hypothesis_holds(discordant: float, tilt: float, mean: float) -> None:
    """Over the whole hypothesis "the mean is at most `mean`": the expected capital after a pair is at most 1."""
    up = discordant * tilt
    down = discordant - up
    factor = [math.exp(float(stats.log_capital(int(d > 0), int(d < 0), 1, mean))) for d in (1, -1, 0)]
    expected = up * factor[0] + down * factor[1] + (1 - discordant) * factor[2]
    if up - down <= mean:
        assert expected <= 1 + 1e-12


@pytest.mark.parametrize("kind", [{"pairs": 300}, {"pairs": 300, "final_share": 0.0}, {}])
def test_replay_is_update(kind: dict) -> None:
    rng = np.random.default_rng(7)
    ends = set()
    for share, d in ((0.0, 0.0), (0.02, 0.0), (0.05, -0.03), (0.3, -0.2), (0.3, 0.2), (0.2, -0.04)):
        x = rng.random((6, 300))
        table = np.where(x < (share + d) / 2, 1, np.where(x < share, -1, 0))
        stops, pairs = stats.SequentialPaired(0.03, 0.05, **kind).replay(table)
        for row, stop, n in zip(table, stops, pairs, strict=True):
            rule = stats.SequentialPaired(0.03, 0.05, **kind)
            state = rule.state
            for step in row:
                state = rule.update(int(step >= 0), int(step <= 0))
                if state.stop is not GO_ON:
                    break
            assert (state.stop, state.pairs) == (stop, n)
            ends.add(stop)
    assert {stats.Stop.SUCCESS, stats.Stop.FAILURE} <= ends


def test_interval_holds_what_the_bets_do_not_refuse() -> None:
    rule = stats.SequentialPaired(0.01)
    assert rule.interval() == stats.Interval(-1.0, 1.0)
    for i in range(400):
        rule.update(int(i % 50 != 0), 1)
    found, fixed = rule.interval(), stats.tango_interval(0, 8, 400)
    assert found.low < fixed.low < -0.02 < fixed.high < found.high, "wider than at a single look, as it must be"
    assert math.exp(float(stats.log_capital(0, 8, 400, found.low))) == pytest.approx(40, rel=1e-3)
    assert math.exp(float(stats.log_capital(8, 0, 400, -found.high))) == pytest.approx(40, rel=1e-3)


def test_futility_waits_while_a_failure_is_in_sight_and_claims_nothing() -> None:
    rule = stats.SequentialPaired(0.01, 0.05, pairs=1319)
    state = rule.state
    for i in range(1319):
        state = rule.update(int(i % 70 != 69), 1)  # 1.4 % lost, none won
        if state.stop is not GO_ON:
            break
    assert state.stop is stats.Stop.FUTILE and state.pairs < 700
    assert state.evidence_futile >= 20 and state.evidence_below < 100 and state.difference == pytest.approx(-1 / 70)


def test_the_end_is_an_end() -> None:
    rule = stats.SequentialPaired(0.01, 0.05, pairs=12)
    for _ in range(11):
        assert rule.update(1, 1).stop is GO_ON
    assert rule.update(1, 1).stop is stats.Stop.UNDECIDED
    with pytest.raises(ValueError, match="already stopped: undecided"):
        rule.update(1, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.SequentialPaired(0.0),
        lambda: stats.SequentialPaired(0.01, 1.5),
        lambda: stats.SequentialPaired(0.01, final_share=0.5),
        lambda: stats.SequentialPaired(0.01, pairs=0),
        lambda: stats.SequentialPaired(0.01, hope=-0.5),
        lambda: stats.SequentialPaired(0.01).update(2, 0),
        lambda: stats.SequentialPaired(0.01).update(float("nan"), 0),  # type: ignore[arg-type]
        lambda: stats.log_capital(0, 0, 0, -1.0),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r".{8,}"):
        call()  # type: ignore[operator]

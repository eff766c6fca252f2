"""The four units of acceptance: ranges, conversions, and that no two of them mix."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.units import AcceptanceRate, AcceptedLength, AcceptedPerStep, ConditionalRate, from_counters, imported


def test_c40_with_and_without_the_targets_own_token() -> None:
    length = from_counters(accepted=10, drafts=43 * 3, steps=43, k=3)
    assert length.value == pytest.approx(1.2326, abs=5e-5)
    assert length.per_step().value == pytest.approx(0.2326, abs=5e-5)
    with pytest.raises(ValueError, match=r"0\.2326, expected 1 to 4; a rate, or"):
        AcceptedLength(0.2326, 3)


def test_c42_a_rate_above_one_never_gets_in() -> None:
    with pytest.raises(ValueError, match="accepted=12 drafts=10"):
        from_counters(accepted=12, drafts=10, steps=10, k=1)
    with pytest.raises(ValueError, match="per cent are given as a fraction"):
        AcceptanceRate(43.4, 7)


def test_c43_no_acceptance_is_a_rate_of_zero() -> None:
    assert from_counters(accepted=0, drafts=30, steps=10, k=3).rate().value == 0
    assert imported(0.25, unit="length_over_k_plus_1", k=3).rate().value == 0  # the biased field, undone


def test_c60_rate_and_spread_of_a_forced_length() -> None:
    length = AcceptedLength(3.78, 7)
    assert length.rate().value == pytest.approx(0.3971, abs=5e-5)
    assert length.conditional().length(7).value == pytest.approx(3.78)


def test_c63_the_same_number_in_two_units() -> None:
    assert imported(0.8, unit="acceptance_rate", k=3).value == pytest.approx(3.4)
    assert imported(0.8, unit="conditional_rate", k=3).value == pytest.approx(2.952)
    for unit in ("", "rate", "percent"):
        with pytest.raises(ValueError, match="expected one of accepted_length"):
            imported(0.8, unit=unit, k=3)


def test_the_conversion_table() -> None:
    """AL 4.04 at K=7: 0.4343 for ATOM and vLLM, with the old SGLang gauge AL / (K + 1) = 0.5050."""
    assert AcceptedLength(4.04, 7).rate().value == pytest.approx(0.4343, abs=5e-5)
    assert imported(0.5050, unit="length_over_k_plus_1", k=7).value == pytest.approx(4.04)
    assert from_counters(accepted=3040, drafts=7000, steps=1000, k=7).value == pytest.approx(4.04)


ONE_OF_EACH = (AcceptedLength(1.0, 3), AcceptedPerStep(1.0, 3), AcceptanceRate(1.0, 3), ConditionalRate(1.0), 1.0, 1)


@pytest.mark.parametrize(
    "op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge, operator.eq]
)
def test_types_do_not_mix(op: Any) -> None:
    for one in ONE_OF_EACH[:4]:
        for other in ONE_OF_EACH:
            if type(one) is not type(other):
                with pytest.raises(TypeError, match="cannot"):
                    op(one, other)


def test_what_two_of_one_type_can_do() -> None:
    a, b = AcceptedLength(3.0, 7), AcceptedLength(2.0, 3)
    assert a > b and b < a and a >= b and b <= a and a != b and a - b == 1.0 and a / b == 1.5
    assert AcceptedLength(3.0, 7) == a and len({a, AcceptedLength(3.0, 7)}) == 1
    with pytest.raises(TypeError, match=r"K=3 and K=7: the rate falls with K"):
        operator.lt(AcceptanceRate(0.4, 3), AcceptanceRate(0.4, 7))
    with pytest.raises(TypeError):
        operator.add(a, b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), True, "3", None])
def test_only_numbers(bad: Any) -> None:
    with pytest.raises(ValueError, match="not a number"):
        AcceptedLength(bad, 7)
    for k in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="K is"):
            AcceptedLength(1.0, k)  # type: ignore[arg-type]


@given(st.integers(1, 15), st.floats(0, 1))
def test_conversions_come_back(k: int, rate: float) -> None:
    length = AcceptanceRate(rate, k).length()
    assert length.rate().value == pytest.approx(rate, abs=1e-9)
    assert length.per_step().length().value == pytest.approx(length.value)
    assert length.conditional().length(k).value == pytest.approx(length.value, abs=1e-6)

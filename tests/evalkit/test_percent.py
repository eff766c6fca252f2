from __future__ import annotations

import pytest

from evalkit.gate.common import share_check
from evalkit.percent import percent


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (1.0, "100 %"),
        (0.997, "100 %"),
        (0.99, "99 %"),
        (0.1, "10 %"),
        (0.01234, "1.2 %"),
        (1 / 1319, "0.076 %"),
        (5e-7, "0.00005 %"),
        (0.0, "0 %"),
        (12.34, "1200 %"),
        (-1.0, "-100 %"),
    ],
)
def test_a_share_has_two_digits_and_no_exponent(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_sign_and_more_digits_on_request() -> None:
    assert (percent(1.0, sign=True), percent(-0.1, sign=True), percent(0.98765, 3)) == ("+100 %", "-10 %", "98.8 %")


def test_a_check_of_all_samples_says_100() -> None:
    check = share_check("requests", "requests failed", 20, 20, 1.0)
    assert check.found == "20 of 20 requests failed (100 %)" and check.expected == "at most 100 %"

"""p-values and shares in words."""

from __future__ import annotations

import pytest

from evalkit.chances import loss_words, p_value
from evalkit.percent import percent
from evalkit.records import Outcome


def test_no_p_value_is_nothing() -> None:
    assert p_value(0.0) == "p < 1e-300" and p_value(1e-310) == "p < 1e-300"
    assert p_value(0.0312) == "p 0.031" and p_value(1.0) == "p 1" and p_value(1e-299, 1) == "p 1e-299"


def test_a_p_near_one_is_never_read_as_support() -> None:
    assert loss_words(Outcome.PASS, 0.001, 0.999, "5 %") == "p 0.001 for a loss under 5 %"
    assert loss_words(Outcome.FAIL, 1.0, 0.0, "5 %") == "p < 1e-300 for a loss over 5 %"
    assert loss_words(Outcome.INCONCLUSIVE, 1.0, 0.06, "5 %") == "no evidence that the loss is under 5 %, p 1"


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "100 %"), (0.996, "100 %"), (0.99, "99 %"), (0.123, "12 %"), (0.0042, "0.42 %")]
)
def test_a_share_is_never_written_with_an_exponent(share: float, words: str) -> None:
    assert percent(share) == words

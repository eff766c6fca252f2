"""What the command line prints, where the screen is narrow."""

from __future__ import annotations

import pytest

from evalkit.console import verdict_text
from evalkit.records import Check, Outcome, Verdict


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_screen_breaks_a_verdict_between_words(width: int) -> None:
    message = "strict-match 0.9363 (1235/1319) against baseline 0.9409 (1241/1319), 1319 paired, 14 lost and 8 won"
    check = Check(name="accuracy", outcome=Outcome.INCONCLUSIVE, expected="x", found="y", message=message)
    verdict = Verdict(outcome=Outcome.INCONCLUSIVE, checks=(check,), run_id="r", notes=("one note " * 12,))
    lines = verdict_text(verdict, width).plain.splitlines()
    assert all(len(line) <= width for line in lines)
    assert set(message.split()) <= {word for line in lines for word in line.split()}
    assert len(verdict_text(verdict).plain.splitlines()) == 3  # a pipe gets one line a check

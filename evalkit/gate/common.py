"""What every check is made with: its record, its three outcomes, its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalkit import stats
from evalkit.baseline import STRICT, score_bit
from evalkit.percent import percent
from evalkit.records import Check, Outcome, Sample

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """Fail if any fails, else inconclusive if any is, else pass; nothing checked is a fail."""
    if not outcomes or FAIL in outcomes:
        return FAIL
    return INCONCLUSIVE if INCONCLUSIVE in outcomes else PASS


def checked(name: str, outcome: Outcome, expected: str, found: str, message: str = "", /, **numbers: Any) -> Check:
    message = message or f"{found}; expected {expected}"
    return Check(name=name, outcome=outcome, expected=expected, found=found, message=message, numbers=numbers)


def decide(test: stats.BoundTest, alpha: float) -> Outcome:
    if test.p_above <= alpha:
        return PASS
    return FAIL if test.p_below <= alpha else INCONCLUSIVE


def share_check(name: str, what: str, count: int, n: int, limit: float) -> Check:
    share = count / n if n else None
    outcome = PASS if share is not None and share <= limit else FAIL
    found = f"{count} of {n} {what}" + (f" ({percent(share)})" if share else "")
    return checked(name, outcome, f"at most {100 * limit:g} %", found, count=count, n=n, limit=limit)


def correct_of(answered: Sequence[Sample]) -> int:
    return sum(score_bit(s, STRICT) for s in answered)


def what_would_tell(outcome: Outcome, mde: float, needed: int | None, unit: str) -> str:
    if outcome is not INCONCLUSIVE:
        return ""
    can = f"; {100 * mde:.1f} pt is what so many can show (80 % power)"
    return f"{can}, {needed or 'no number of'} {unit} would settle this one"

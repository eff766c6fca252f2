"""Strict-match against an absolute floor: exact binomial test, and what the floor is blind to."""

from __future__ import annotations

from scipy import special

from evalkit import stats
from evalkit.baseline import STRICT, Baseline
from evalkit.chances import p_value
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import GateSpec
from evalkit.records import Check

FAR = 5.0  # standard errors between score and floor, beyond which the floor can hardly fail


def floor_check(correct: int, n: int, spec: GateSpec, notes: list[str], name: str = "floor") -> Check:
    """Passes where the true score is shown to lie above the floor, fails where it is shown to lie below.

    A count is compared as a count: the smallest that passes is said. Clopper and Pearson's bounds (see stats).
    """
    assert spec.floor is not None
    floor, alpha = spec.floor, spec.alpha
    above = float(special.bdtrc(correct - 1, n, floor)) if correct else 1.0  # P(X >= correct) at the floor
    below = float(special.bdtr(correct, n, floor))
    outcome = PASS if above <= alpha else FAIL if below <= alpha else INCONCLUSIVE
    span, needed = stats.wilson(correct, n), passing_count(n, floor, alpha)
    enough = f"{needed} of {n} would show it" if needed is not None else f"no count of {n} can show it"
    found = f"{STRICT} {correct / n:.4f} ({correct}/{n})"
    message = (
        f"{found}, 95 % {span.low:.4f} .. {span.high:.4f}, against a floor of {floor:.4f}: "
        f"{p_value(min(above, below))} for {'above' if above <= below else 'below'} it; {enough}"
    )
    se = stats.proportion_se(correct, n)
    if name == "floor" and outcome is PASS and se and (correct / n - floor) / se > FAR:
        away = (correct / n - floor) / se
        notes.append(
            f"the floor of {floor:.4f} lies {away:.1f} standard errors under the score: it is blind to a loss of "
            f"{100 * (correct / n - floor):.1f} pt"
        )
    return checked(
        name, outcome, f"{STRICT} above {floor:.4f}", found, message, score=correct / n, n=n, floor=floor, p=above,
        p_worse=below, needed_count=needed, interval=[span.low, span.high], compared=n,
    )  # fmt: skip


def baseline_floor_check(baseline: Baseline, spec: GateSpec) -> Check:
    """A baseline that is broken itself is a finding of its own: a run as bad as it is not a good one."""
    found = floor_check(baseline.correct, baseline.n, spec, [], "baseline floor")
    words = f"baseline {baseline.source or baseline.run_id}: {found.message}"
    numbers = {name: value for name, value in found.numbers.items() if name != "p"}  # no test of the run
    return checked("baseline floor", found.outcome, found.expected, found.found, words, **numbers)


def passing_count(n: int, floor: float, alpha: float) -> int | None:
    """The smallest count of n that shows a score above the floor; None where even n of n does not."""
    low, high = 0, n + 1
    while low < high:
        middle = (low + high) // 2
        if middle and float(special.bdtrc(middle - 1, n, floor)) <= alpha:
            high = middle
        else:
            low = middle + 1
    return low if low <= n else None

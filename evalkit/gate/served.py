"""What served a run and when: the share of steps on a path of the engine, and the age of the run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import PathShare
from evalkit.records import Check, Run
from evalkit.sessions import uncounted

CLOCKS = 0.01  # days, a quarter of an hour: two machines' clocks may be apart by this much
STEPS = ("decode_steps", "decode_ticks")  # what engines call all their decode steps


def path_check(run: Run, path: PathShare) -> Check:
    """A number measured with a path on paper only says nothing of it: the engine's counters must say that it served."""
    name, expected = f"path {path.name}", f"at least {100 * path.share:g} % of the decode steps on {path.name}"
    if lost := uncounted(run):
        told = f"counters of {lost} of {len(run.samples)} answers are lost, since a session of the run was killed"
        words = f"{told}: what served those is not known; --fresh runs it again"
        return checked(name, INCONCLUSIVE, expected, told, words, compared=0, uncounted=lost)
    share, steps = _share(run.counters, path.name)
    if share is None:
        told = f"counters do not say how many steps ran on {path.name}"
        return checked(name, FAIL, expected, told, f"the engine's {told}; {expected} expected", compared=0)
    found = f"{100 * share:.1f} % of {steps} decode steps" if steps else f"{100 * share:.1f} % of the decode steps"
    return checked(
        name, PASS if share >= path.share else FAIL, expected, found, share=share, compared=steps or 1, limit=path.share
    )


def _share(counters: Mapping[str, Any], name: str) -> tuple[float | None, int | None]:
    """The share of the steps on a path: counted, or as the engine itself says it."""
    total = next((counters[word] for word in STEPS if _count(counters.get(word))), None)
    served = counters.get(f"{name}_steps")
    if total and type(served) is int and 0 <= served <= total:
        return served / total, total
    said = counters.get(f"{name}_share")
    known = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said <= 1
    return (float(said) if known and said is not None else None), total


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def age_check(run: Run, max_days: float, now: str) -> Check:
    """A run of long ago says nothing of what is served now."""
    expected = f"a run of the last {max_days:g} days"
    when = run.provenance.get("finished") or run.provenance.get("started")
    days = _days(str(when), now) if when else None
    if days is None:
        found = f"the run says {when!r} of when it ended" if when else "the run does not say when it ended"
        return checked("age", FAIL, expected, found, compared=0)
    ahead = days < -CLOCKS
    found = f"a run of {when}, {abs(days):.1f} days {'in the future' if ahead else 'ago'}"
    outcome = FAIL if ahead or days > max_days else PASS
    fix = "look at the clocks of both machines" if ahead else "run it again"
    hint = f"{found}; expected {expected}: {fix}" if outcome is FAIL else ""
    return checked("age", outcome, expected, found, hint, days=days, limit=max_days, compared=1)


def _days(then: str, now: str) -> float | None:
    try:
        passed = datetime.fromisoformat(now) - datetime.fromisoformat(then)
    except (ValueError, TypeError):  # no time, or one of the two without a zone
        return None
    return passed.total_seconds() / 86400

"""The verdict in one line."""

from __future__ import annotations

from evalkit.formats import interval, points, points_interval
from evalkit.gate.common import PASS
from evalkit.records import Check, Verdict


def verdict_line(verdict: Verdict) -> str:
    """The verdict in one line: outcome, score against baseline, accepted length against golden, what broke."""
    by_name = {c.name: c for c in verdict.checks}
    parts = [p for p in (_score_part(by_name.get("accuracy")), _length_part(by_name.get("accepted length"))) if p]
    line = f"{verdict.outcome.value.upper():<12}  {', '.join(parts) or 'nothing compared'}"
    telling = [c.name for c in verdict.checks if c.outcome is verdict.outcome and c.outcome is not PASS]
    return f"{line}; {verdict.outcome.value} by {', '.join(telling)}" if telling else line


def _score_part(check: Check | None) -> str:
    if check is None:
        return ""
    x = check.numbers
    if "difference" not in x:
        return f"{check.found} vs no comparable baseline"
    low, high = x["interval"]
    span = f"({points_interval(low, high)})"
    return f"{check.found} vs baseline {x['baseline']:.4f}: {points(x['difference'])} {span}"


def _length_part(check: Check | None) -> str:
    if check is None:
        return ""
    x = check.numbers
    if "ratio" not in x:
        return f"AL {x['accepted_length']:.2f} vs no comparable golden"
    limits = "(unbounded)"
    if x["interval"]:
        low, high = x["interval"]
        limits = f"({interval(low, high, 3)})"
    return f"AL {x['accepted_length']:.2f} vs golden {x['golden']:.2f}: ratio {x['ratio']:.3f} {limits}"

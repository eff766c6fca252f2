"""Verdicts as the markdown of a GitHub step summary: a table of checks for each run, what kept it from passing first.

GitHub takes 1 MiB a step. What would be over that is left out from the end, passed checks first, and said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.formats import interval, percent_interval, points_interval
from evalkit.online_quant import quant_name
from evalkit.outputs.common import overall, pairs, safe
from evalkit.records import Check, Outcome, Run, Verdict

LIMIT = 1 << 20  # bytes of a step summary
CELL = 400  # characters of a table cell: checks of several runs stay readable on one page
ORDER = {Outcome.FAIL: 0, Outcome.INCONCLUSIVE: 1, Outcome.PASS: 2}
HEAD = "| check | outcome | expected | found | interval | margin | n |\n|---|---|---|---|---|---|---:|\n"
# A character reference is text and never structure, in tables, code spans and HTML alike; so nothing that markdown or
# HTML could act on is left as itself. `@` would mention a person.
_ACTIVE = re.compile(r"[&<>|`*_\[\]#~\\@$]|:(?=//)|(?<=www)\.|^[-+=]")


def escape(text: object, limit: int = CELL) -> str:
    """Text from outside as one line that markdown and HTML leave alone."""
    line = " ".join(safe(text).split())
    if len(line) > limit:
        line = line[: limit - 3] + "..."
    return _ACTIVE.sub(lambda found: f"&#{ord(found.group())};", line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much of a run is told."""

    message: int = 2000  # characters of a message
    notes: bool = True
    passed: bool = True
    checks: bool = True


DETAILS = (_Detail(), _Detail(notes=False), _Detail(notes=False, passed=False, message=CELL),
           _Detail(notes=False, checks=False))  # fmt: skip


def summary_text(verdicts: Sequence[Verdict], runs: Sequence[Run], *, limit: int = LIMIT) -> str:
    """The markdown, of at most `limit` bytes."""
    both = pairs(verdicts, runs)
    head = f"## evalkit gate: {overall(verdicts).value.upper()}\n\n"
    for detail in DETAILS:
        text = head + "\n".join(_run_text(verdict, run, detail) for verdict, run in both)
        if len(text.encode()) <= limit:
            return text
    text = f"{head}{len(both)} runs, too many for this page: see the JSON.\n"
    return text if len(text.encode()) <= limit else ""


def write_summary(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> Path:
    """Writes the markdown as a file of its own."""
    return write_text(path, summary_text(verdicts, runs))


def append_summary(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> Path:
    """Adds the markdown to a step's summary, within what is left of its 1 MiB."""
    try:
        left = LIMIT - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8") as file:
            file.write(summary_text(verdicts, runs, limit=left))
    except OSError as e:
        raise EvalkitError(f"cannot write the step summary {path} ({e.strerror})", "run it in a GitHub step") from None
    return path


def _run_text(verdict: Verdict, run: Run | None, detail: _Detail) -> str:
    """One run: a heading, what it was, its table, its notes."""
    text = f"### {escape(verdict.run_id)}: {verdict.outcome.value.upper()}\n\n"
    if run is None:
        text += "published figures, no run\n\n"
    else:
        cell = run.cell
        mode = quant_name(cell, run.provenance)
        what = f"{cell.get('task')}, {cell.get('target')} + {cell.get('draft')}, K={cell.get('k')}, {mode}"
        text += f"{escape(what)}; {len(run.samples)} of {run.task_size} samples\n\n"
    if not verdict.checks:
        return text + "No check was made: nothing was compared.\n"
    checks = sorted(verdict.checks, key=lambda c: ORDER[c.outcome])
    shown = [c for c in checks if detail.passed or c.outcome is not Outcome.PASS] if detail.checks else []
    if shown:
        text += HEAD + "".join(_row(c) for c in shown)
    if left_out := len(checks) - len(shown):
        text += f"\n{left_out} of {len(checks)} checks are not shown: they would not fit.\n"
    telling = [c for c in shown if c.outcome is not Outcome.PASS]
    if telling:
        text += "\n" + "".join(f"- **{escape(c.name)}**: {escape(c.message, detail.message)}\n" for c in telling)
    if verdict.notes and detail.notes:
        notes = "".join(f"- {escape(note, detail.message)}\n" for note in verdict.notes)
        text += f"\n<details><summary>{len(verdict.notes)} notes</summary>\n\n{notes}\n</details>\n"
    return text


def _row(check: Check) -> str:
    x = check.numbers
    cells = [escape(check.name), check.outcome.value, escape(check.expected), escape(check.found)]
    return "| " + " | ".join([*cells, _interval(check), _margin(check), _count(x)]) + " |\n"


def _unit(check: Check) -> str:
    """What a check's margin and interval are in: % of golden's length, tokens a step, a score, or points of one."""
    x = check.numbers
    if "ratio" in x or check.name == "accepted length":
        return "%"
    if check.name == "accepted drafts distribution":
        return "tokens"
    return "score" if "floor" in x else "pt"


def _interval(check: Check) -> str:
    """The interval in the unit of the check's margin, as the report has it; empty where the check has none."""
    span, level = check.numbers.get("interval"), check.numbers.get("level")
    if not isinstance(span, (list, tuple)) or len(span) != 2 or not all(_number(end) for end in span):
        return ""
    low, high = span
    unit = _unit(check)
    words = {"pt": points_interval, "%": percent_interval}.get(unit, interval)(low, high)
    return f"{100 * level:g} %: {words}" if _number(level) else words


def _margin(check: Check) -> str:
    """The margin in its unit; or the cap of a share, or of an age in days."""
    margin, limit = check.numbers.get("margin"), check.numbers.get("limit")
    if _number(margin):
        unit = _unit(check)
        return f"{margin:.3g} tokens" if unit == "tokens" else f"{100 * margin:g} {unit}"
    if not _number(limit):
        return ""
    return f"{limit:g} days" if check.name == "age" else f"{100 * limit:g} %"


def _count(x: Mapping[str, Any]) -> str:
    """How many were compared: pairs where there are pairs, else samples."""
    for name in ("paired", "samples", "n", "found"):
        if isinstance(x.get(name), int) and (x[name] or name != "paired"):
            return str(x[name])
    return ""


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

"""Verdicts as GitHub annotations: lines that the runner shows on the job's and the pull request's page.

A fail is an error, an inconclusive check a warning, a pass of everything one notice. GitHub shows ten of a level for a
step and drops the rest in silence, so the tenth says how many are left out. Texts are escaped as GitHub's own toolkit
does it: a line break in one would end the command and begin another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalkit.formats import counting
from evalkit.online_quant import quant_name
from evalkit.outputs.common import overall, pairs, safe
from evalkit.records import Outcome, Run, Verdict

SHOWN = 10  # annotations of one level that GitHub shows for a step
LEVELS = {Outcome.FAIL: "error", Outcome.INCONCLUSIVE: "warning"}
LENGTH = 1000  # characters of a message


def annotation_lines(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> list[str]:
    """The lines, errors first; one notice where everything passed."""
    outcome = overall(verdicts)
    if outcome is Outcome.PASS:
        names = ", ".join(v.run_id for v in verdicts[:3]) + (" ..." if len(verdicts) > 3 else "")
        n, of = sum(len(v.checks) for v in verdicts), counting(len(verdicts), "verdict")
        return [_line("notice", "evalkit gate: pass", f"{counting(n, 'check')} in {of}, and all pass: {names}")]
    out = []
    for level in LEVELS.values():
        told = [(title, message) for found, title, message in _told(verdicts, runs) if found == level]
        cut = SHOWN - 1 if len(told) > SHOWN else len(told)
        out += [_line(level, title, message) for title, message in told[:cut]]
        if left := len(told) - cut:
            out.append(_line(level, f"evalkit gate: {left} more", "see the step's summary, or the gate's --json"))
    return out


def _told(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """(level, title, message) of every check that is no pass, and of a verdict that no check explains."""
    if not verdicts:
        yield "error", "evalkit gate", "nothing was judged"
    for verdict, run in pairs(verdicts, runs):
        what = verdict.run_id if run is None else _setting(run)
        telling = [c for c in verdict.checks if c.outcome is not Outcome.PASS]
        for check in telling:
            yield LEVELS[check.outcome], f"{what}: {check.name}", f"{check.message} ({verdict.run_id})"
        if verdict.outcome is not Outcome.PASS and not telling:
            yield LEVELS[verdict.outcome], f"{what}: verdict", f"{verdict.run_id} is {verdict.outcome.value}"


def _setting(run: Run) -> str:
    """`dspark K=7 nvfp4`; of plain decoding `K=0 nvfp4`."""
    cell = run.cell
    draft = cell.get("draft") if cell.get("k") else None
    return f"{f'{draft} ' if draft else ''}K={cell.get('k')} {quant_name(cell, run.provenance)}"


def _line(level: str, title: str, message: str) -> str:
    """One workflow command."""
    words = " ".join(safe(message).split())
    words = words if len(words) <= LENGTH else f"{words[: LENGTH - 3]}..."
    head = _escape(" ".join(safe(title).split())).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={head}::{_escape(words)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

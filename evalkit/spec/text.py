"""A judged specification as text: the published scores it rests on, the sweep, each cell's comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from evalkit import stats
from evalkit.baseline import ReferenceScore
from evalkit.console import COLOUR, folded
from evalkit.layout import fold
from evalkit.records import Check, Outcome, Verdict

if TYPE_CHECKING:
    from evalkit.spec.judge import CellResult, SpecResult

ALWAYS = ("score", "sweep", "expected refusal")
TELLING = ("warning", "waiver", "no ", "a subset", "the floor")  # how notes begin that change how a verdict is read


def spec_text(found: SpecResult, width: int = 0) -> Text:
    """All of it; `width` folds long lines at words, 0 leaves them."""
    text = Text()
    text.append(fold(f"{found.spec.name} ({found.spec.path.name})", width, later="  ") + "\n", style="bold")
    for ref in found.references:
        text.append("  published   " + folded(reference_line(ref), width) + "\n", style="dim")
    said: set[str] = set()  # notes are printed once
    for cell in found.cells:
        _cell(text, cell, width, said)
    text.append(f"\ngate: {found.outcome.value.upper()}", style=f"bold {COLOUR[found.outcome]}")
    told = f"gate: {found.outcome.value.upper()}"
    text.append(fold(_counts(found), width, f"{told}  ", "      ")[len(told) :])
    return text


def reference_line(ref: ReferenceScore) -> str:
    """A published score with the error and interval of its count, and where it is from."""
    se, span = stats.proportion_se(ref.correct, ref.n), stats.wilson(ref.correct, ref.n)
    error = f" ± {se:.4f}" if se is not None else ""
    told = "" if ref.stderr is not None else ", error not published"
    words = f"{ref.name}: {ref.metric} {ref.score:.4f}{error} ({ref.correct}/{ref.n}){told}"
    return f"{words}, 95 % {span.low:.4f} .. {span.high:.4f}; {ref.source}"


def _cell(text: Text, cell: CellResult, width: int, said: set[str]) -> None:
    verdict = cell.verdict
    name = cell.cell.name if verdict.run_id == cell.cell.name else f"{cell.cell.name}  ({verdict.run_id})"
    text.append(f"\n{verdict.outcome.value}", style=f"bold {COLOUR[verdict.outcome]}")
    text.append(fold(name, width, f"{verdict.outcome.value:14}")[len(verdict.outcome.value) :] + "\n", style="bold")
    shown = [c for c in verdict.checks if told(c)]
    for check in shown:
        text.append(f"  {check.outcome.value:12}", style=COLOUR[check.outcome])
        text.append(folded(f"{check.name}: {check.message}", width) + "\n")
    if others := len(verdict.checks) - len(shown):
        text.append(f"  pass          and {others} more checks\n", style=COLOUR[Outcome.PASS])
    for note in [n for n in notes_of(cell) if n not in said]:
        said.add(note)
        text.append("  note        " + folded(note, width) + "\n", style="dim")


def told(check: Check) -> bool:
    """Whether a check is worth its line: what did not pass, and what compared something."""
    return check.outcome is not Outcome.PASS or "compared" in check.numbers or check.name in ALWAYS


def notes_of(cell: CellResult) -> Iterator[str]:
    """Notes that change how the verdict is read: warnings, and what refused a cell broken on purpose."""
    verdict: Verdict = cell.verdict
    for note in verdict.notes:
        if cell.cell.refused_by or cell.run is None or note.startswith(TELLING):
            yield note


def _counts(found: SpecResult) -> str:
    n = {o: sum(c.verdict.outcome is o for c in found.cells) for o in Outcome}
    parts = [f"{count} {outcome.value}" for outcome, count in n.items() if count]
    refused = sum(bool(c.cell.refused_by) and c.verdict.outcome is Outcome.PASS for c in found.cells)
    waived = sum(any(note.startswith("waiver of ") for note in c.verdict.notes) for c in found.cells)
    words = f"{', '.join(parts)} of {len(found.cells)} cells" + (f", {waived} under a waiver" if waived else "")
    return f"{words}; {refused} refused as expected" if refused else words

"""What the cases of test_servers.py share: their setting, and how two runs of the same questions are held together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.realservers import evidence
from tools.realservers.install import Failed


@dataclass(frozen=True, slots=True)
class Setting:
    """Where things are, and how many questions are asked."""

    folder: Path
    pair: Path
    data: Path
    limit: int  # of GSM8K
    same: int  # of the comparisons


Found = tuple[list[evidence.Row], list[str], list[str]]  # rows, lines, verdict


def since(before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[int, int] | None:
    return (after[0] - before[0], after[1] - before[1]) if before and after else None


def texts(ours: evidence.Run, theirs: evidence.Run, label: str) -> str:
    """One line on the answers, which names each that differs. In float32 and greedy none is expected to but for a tie
    of two tokens; raises Failed where one has no such cause."""
    found, n = evidence.differences(ours, theirs), len(theirs.samples)
    if unknown := [d for d in found if not d.explained]:
        raise Failed(f"{label}: {len(unknown)} of {n} answers differ from ours: {'; '.join(map(str, unknown[:3]))}")
    if not found:
        return f"{label}: {n} of {n} answers are ours, character by character, and so is strict-match"
    return f"{label}: {n - len(found)} of {n} answers are ours, character by character; {'; '.join(map(str, found))}"


def equal(rows: Sequence[evidence.Row], ours: evidence.Run, theirs: evidence.Run, label: str) -> str:
    """One line on a server that must give everything as our engine does."""
    line = texts(ours, theirs, label)
    mine = evidence.by_document(ours)
    other = [s.doc_id for s in theirs.samples if counts(mine[s.doc_id]) != counts(s)]
    if other or rows[0].length != rows[-1].length:
        raise Failed(f"{label}: steps differ in {len(other)} questions; {rows[0].length} and {rows[-1].length}")
    told = theirs.counters.get("acceptance", {})
    summed = told.get("accepted"), told.get("steps")
    if summed != (rows[0].accepted, rows[0].steps):
        raise Failed(
            f"{label}: {summed} (accepted, steps) by its counters, {rows[0].accepted}, {rows[0].steps} by ours"
        )
    length = repr(1 + summed[0] / summed[1])
    if length != rows[0].length:
        raise Failed(f"{label}: accepted length {length} by its counters, {rows[0].length} by ours")
    return (f"{line}; the verify steps of every question are equal, and its counters around the questions give "
            f"{summed[0]} in {summed[1]}: accepted length {length}")  # fmt: skip


def counts(sample: evidence.Sample) -> list[tuple[int, int]]:
    """Verify steps without their order: a reply tells how many kept how many drafts."""
    return sorted((x.k, x.accepted) for x in sample.steps if x.k)

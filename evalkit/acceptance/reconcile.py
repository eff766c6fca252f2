"""Stored steps against the tokens of the answers they made, and against the engine's own count of verify steps.

Our engine's identity, exact for every answer: its first token is prefill's and belongs to no step; a step gives its
accepted drafts and the target's own token; one that a stop or limit cuts is the last and gives just the drafts that are
left. So tokens = 1 + sum(accepted_trimmed + (0 if cut else 1)).

A server tells less: some leave out steps without a draft, some count a stop's token and some do not. There only the
tokens that the steps don't account for are summed, and no single answer is blamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evalkit.records import Run, Sample
from evalkit.sessions import gave_up, uncounted

VERIFY_STEPS = "verify_steps"  # the engine's own counter
SERVER_SLACK = 0.01  # share of a server's tokens that its steps may leave unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What steps and tokens say of each other. `wrong` (a contradiction) and `unknown` (no count) are sentences."""

    steps: int  # verify steps that are stored
    told: int | None  # that the engine counted, in the sessions whose counters are known
    lost: int  # answers of other sessions, whose steps that count leaves out
    tokens: int  # of the answers that were compared
    unexplained: int  # tokens that the steps give too many or too few
    answers: int
    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def reconcile(run: Run) -> Reconciled:
    """Compares the steps (or totals) of every answer with its tokens, and all of them with the engine's counter."""
    answered = [s for s in run.samples if not s.error]
    served = "server" in run.cell
    compared = [s for s in answered if _tells(s)] if served or not run.cell.get("k") else answered
    misfits = [(s, off) for s in compared if (off := _off(s, run.cell.get("k")))]
    stored = sum(step.k >= 1 for s in answered for step in s.steps)
    tokens, unexplained = sum(s.tokens for s in compared), sum(abs(off) for _, off in misfits)
    wrong, unknown = [], []
    if served:
        if unexplained > SERVER_SLACK * tokens:
            share = f"{100 * unexplained / tokens:.1f} %" if tokens else "all"
            unknown.append(f"steps and tokens of the answers differ by {unexplained} of {tokens} tokens ({share})")
    else:
        order = [s for s in compared if not _ordered(s)]
        if misfits:
            sample, off = misfits[0]
            words = f"{sample.tokens} tokens, its {len(sample.steps)} steps give {sample.tokens + off}"
            wrong.append(f"{len(misfits)} of {len(compared)} answers do not fit their steps; first document "
                         f"{sample.doc_id}: {words}")  # fmt: skip
        if order:
            wrong.append(f"{len(order)} answers have a step that can't be (trimmed and not cut, or cut before the "
                         f"last); first document {order[0].doc_id}")  # fmt: skip
    told = _told(run.counters.get(VERIFY_STEPS))
    lost = uncounted(run)
    if run.cell.get("k") and not answered:
        unknown.append("no answers, so no steps to compare")
    if not served:
        _count(run, stored, told, lost, wrong, unknown)
    return Reconciled(steps=stored, told=told, lost=lost, tokens=tokens, unexplained=unexplained,
                      answers=len(compared), wrong=tuple(wrong), unknown=tuple(unknown))  # fmt: skip


def _tells(sample: Sample) -> bool:
    return bool(sample.steps) or bool(sample.counts and sample.counts.steps)


def _off(sample: Sample, k: int | None) -> int:
    """Tokens that the steps give more (or less, negative) than the answer has."""
    counts = sample.counts
    if not sample.steps and counts is not None and counts.steps:
        more = 1 + counts.steps + counts.accepted - sample.tokens
        return max(0, more - (k or 0) - 1) if more > 0 else more  # what the last step gave past the end is no misfit
    given = sum(step.accepted_trimmed + (not step.cut) for step in sample.steps)
    return (1 + given if sample.tokens or given else 0) - sample.tokens


def _ordered(sample: Sample) -> bool:
    """Whether only the last step is cut, and every step that is not has all its drafts."""
    whole = all(not s.cut for s in sample.steps[:-1])
    return whole and all(bool(s.cut) or s.accepted_trimmed == s.accepted for s in sample.steps)


def _told(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _count(run: Run, stored: int, told: int | None, lost: int, wrong: list[str], unknown: list[str]) -> None:
    """The engine's counter holds the steps of all sessions that ended in order, given-up requests included."""
    if told is None:
        unknown.append("the engine's counters do not say how many verify steps there were")
        return
    given_up = gave_up(run) or bool(run.stopped) or any(s.error for s in run.samples)
    bad = (told < stored and not lost) or (told > stored and not given_up)
    if bad:
        wrong.append(f"{stored} verify steps are stored, the engine counted {told}")
    elif told and not stored:
        unknown.append(f"no verify step is stored, the engine counted {told}: no answer came back that shows them")

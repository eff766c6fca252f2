"""What the gate says of a run that a server made: where its acceptance comes from, and what went wrong on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from evalkit.acceptance.model import AcceptanceStats
from evalkit.records import Check, Outcome, Run
from evalkit.servers.setting import stored_faults

TELLING = 3  # problems and kinds that are named


def source_check(run: Run, found: AcceptanceStats) -> list[Check]:
    """Where acceptance was counted by a server: whether its counts are evidence. None for steps of our own.

    No acceptance at all is a fail: a draft that does nothing would leave the accuracy as it is and pass.
    """
    if "server" not in run.cell:
        return []
    expected = "acceptance that can be trusted"
    if not found.steps and found.accepted_length is None:
        words = "; ".join(found.problems[:TELLING]) or "the server tells no acceptance that evalkit can read"
        words += ": nothing is known of the draft"
        return [_check(Outcome.FAIL, expected, "no acceptance", words)]
    if found.problems:
        words = f"from {found.source}: {'; '.join(found.problems[:TELLING])}"
        return [_check(Outcome.INCONCLUSIVE, expected, f"{len(found.problems)} problems", words)]
    told = f"from {found.source}"
    return [_check(Outcome.PASS, expected, told, f"{told}, {found.steps} verify steps")]


def setting_check(run: Run) -> list[Check]:
    """A server that told another setting than the run's, or that drafted at K=0: what is judged is then not what ran.

    None where nothing is held against the run.
    """
    if not (faults := stored_faults(run)):
        return []
    words, expected = "; ".join(faults), "a server of the run's own setting"
    hint = f"{words}: the answers are of another setting; run again with what the server tells"
    return [Check(name="served setting", outcome=Outcome.FAIL, expected=expected, found=words, message=hint)]


def _check(outcome: Outcome, expected: str, found: str, message: str) -> Check:
    return Check(name="acceptance source", outcome=outcome, expected=expected, found=found, message=message)


def failed_words(run: Run) -> str:
    """The kinds of requests that failed: ` (timed out 3, HTTP 500 1)`; "" where none did."""
    kinds = Counter(s.error.split(":")[0][:40] for s in run.samples if s.error)
    words = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common(TELLING))
    return f": {words}" if words else ""


def server_notes(run: Run) -> list[str]:
    """Faults that a later attempt repaired; they changed no answer, and a reader must know of them."""
    told = run.counters.get("client")
    if not isinstance(told, Mapping) or not told.get("repaired"):
        return []
    kinds = Counter(dict(told["repaired"]))
    words = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    many = sum(s.attempts > 1 for s in run.samples)
    return [f"{many} of {len(run.samples)} requests were sent again after a fault of the server ({words})"]

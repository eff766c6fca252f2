"""Several runs judged at once: Holm's correction over the sweep, so that many looks don't make a false pass likely.

A run passes alone when every test of it passes at alpha, so its largest p-value is the p-value of "this run lies on
some margin" (intersection-union). Holm steps through these p-values; a run passes in the sweep only if its adjusted one
is at most alpha too, and the chance that any run on a margin passes is then at most alpha. A fail stays a fail: the
correction takes passes back, never alarms.

Where the order was fixed before the runs (K=3, then 5, then 7), the runs may instead be tested in that order, each at
the whole alpha, up to the first that does not pass: those after it pass nothing, whatever their p. The chance of any
false pass is the same alpha, since a run on a margin has to pass before another can. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalkit import stats
from evalkit.chances import p_value
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, combine
from evalkit.records import Check, Outcome, Verdict

HOLM = "sweep"  # name of the check that the correction adds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of a sweep: p-values for "the loss is under the margin", None where there was no such test."""

    run: str
    outcome: Outcome
    accuracy_p: float | None
    length_p: float | None
    p: float | None  # the largest of the run's tests
    adjusted: float


def p_values(verdict: Verdict) -> dict[str, float]:
    """The p-value of every test in a verdict, by the check's name."""
    return {c.name: float(c.numbers["p"]) for c in verdict.checks if c.name != HOLM and "p" in c.numbers}


def adjust(verdicts: Sequence[Verdict], *, alpha: float = GateSpec().alpha, in_order: bool = False) -> list[Verdict]:
    """The verdicts of a sweep, each with a check on its adjusted p-value. A run without any test counts as p = 1.
    `in_order`: the fixed sequence in place of Holm."""
    names = [v.run_id for v in verdicts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise EvalkitError(f"run {twice[0]} is given twice", "give each run once: a copy would be another test")
    raw = [max(p_values(v).values(), default=None) for v in verdicts]
    if in_order:
        return _in_order(verdicts, raw, alpha)
    adjusted = stats.holm([1.0 if p is None else p for p in raw])
    return [_with(v, p, q, len(names), alpha) for v, p, q in zip(verdicts, raw, adjusted, strict=True)]


def _with(verdict: Verdict, p: float | None, adjusted: float, runs: int, alpha: float) -> Verdict:
    outcome = Outcome.PASS if p is not None and adjusted <= alpha else Outcome.INCONCLUSIVE
    found = "no test to adjust" if p is None else f"{p_value(p)}, adjusted {p_value(adjusted)[2:]}"
    message = f"{found} (Holm over {runs} runs, the largest p of each); passes at {alpha:g} or less"
    if outcome is not Outcome.PASS and any(c.numbers.get("sequential") == "success" for c in verdict.checks):
        message += "; it was stopped as soon as its own p was small enough: run it whole for a sweep"
    check = Check(
        name=HOLM, outcome=outcome, expected=f"a Holm-adjusted p of at most {alpha:g}", found=found, message=message,
        numbers={"p_run": p, "p_adjusted": adjusted, "runs": runs, "alpha": alpha},
    )  # fmt: skip
    checks = (*verdict.checks, check)
    return replace(verdict, outcome=combine([c.outcome for c in checks]), checks=checks)


def _in_order(verdicts: Sequence[Verdict], raw: Sequence[float | None], alpha: float) -> list[Verdict]:
    """A run that does not pass for any reason, one without a test among them, ends the sequence."""
    alone = [p if p is not None and v.outcome is Outcome.PASS else 1.0 for v, p in zip(verdicts, raw, strict=True)]
    reached = stats.fixed_sequence(alone, alpha)
    ended = next((v.run_id for v, ok in zip(verdicts, reached, strict=True) if not ok), "")
    out = []
    for i, (v, p, ok) in enumerate(zip(verdicts, raw, reached, strict=True)):
        place, adjusted = f"number {i + 1} of {len(verdicts)} in a fixed order", max(alone[: i + 1])
        why = "all before it pass" if i and ok else "tested first" if not i else f"{ended} before it did not pass"
        why = f"it is where the sequence ends: {place}" if not ok and v.run_id == ended else f"{place}, {why}"
        found = "no test" if p is None else p_value(p)
        check = Check(
            name=HOLM, outcome=Outcome.PASS if ok else Outcome.INCONCLUSIVE,
            expected=f"a p of at most {alpha:g}, and that of every run before it", found=found,
            message=f"{found}, {why}; passes at {alpha:g} or less",
            numbers={"p_run": p, "p_adjusted": adjusted, "runs": len(verdicts), "alpha": alpha, "place": i + 1},
        )  # fmt: skip
        checks = (*v.checks, check)
        out.append(replace(v, outcome=combine([c.outcome for c in checks]), checks=checks))
    return out


def combined(verdicts: Sequence[Verdict]) -> Outcome:
    """Fail if any run fails, else inconclusive if any is, else pass."""
    return combine([v.outcome for v in verdicts])


def rows(verdicts: Sequence[Verdict]) -> list[Row]:
    """Adjusted verdicts as rows of one table, in the order given."""
    out = []
    for v in verdicts:
        p, holm = p_values(v), next(c for c in v.checks if c.name == HOLM).numbers
        out.append(Row(run=v.run_id, outcome=v.outcome, accuracy_p=p.get("accuracy"), length_p=p.get("accepted length"),
                       p=holm["p_run"], adjusted=holm["p_adjusted"]))  # fmt: skip
    return out

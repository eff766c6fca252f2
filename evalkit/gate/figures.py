"""Published figures judged as far as they go: unpaired against other published scores, and against a golden curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import special

from evalkit import stats
from evalkit.baseline import STRICT, ReferenceScore
from evalkit.chances import loss_words
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked, combine, decide
from evalkit.gate.demands import demand
from evalkit.gate.floor import floor_check
from evalkit.gate.length import golden_estimate
from evalkit.gate.limits import GateSpec
from evalkit.gate.published import compare_counts
from evalkit.golden import GoldenValue
from evalkit.records import Check, Verdict

CURVE_ONLY = "curve only, uncertainty assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Figures of one configuration as somebody published them. Lengths in tokens a step, the target's own included."""

    name: str = ""  # what the verdict calls them
    source: str = ""  # where they were published
    target: str = ""
    task: str = ""
    shots: int | None = None
    correct: int | None = None
    n: int | None = None
    stderr: float | None = None
    k: int | None = None
    quant: str = ""
    length: float | None = None
    length_se: float | None = None


def judge_figures(
    found: Published, *, golden: GoldenValue | None, references: Sequence[ReferenceScore], spec: GateSpec
) -> Verdict:
    """The verdict on published figures. There are no samples, so nothing is paired and nothing else can be checked."""
    notes = ["published figures: there is no run behind them, so nothing is paired and no answer was looked at"]
    checks: list[Check] = []
    if found.correct is not None and found.n is not None:
        checks.append(_score(found, found.correct, found.n))
        checks += _against(found, found.correct, found.n, references, spec, notes)
        if spec.floor is not None:
            checks.append(floor_check(found.correct, found.n, spec, notes))
    if golden is not None or found.length is not None:
        checks.append(_length(found, golden, spec, notes))
    checks = demand(checks, spec.demands, 0 if found.length is None else found.k or 1)  # no length: none is asked for
    outcome = combine([c.outcome for c in checks])
    return Verdict(outcome=outcome, checks=tuple(checks), run_id=found.name, notes=tuple(notes))


def _score(found: Published, correct: int, n: int) -> Check:
    """The score with its error; the published error must be the one that its count gives."""
    se, span = stats.proportion_se(correct, n), stats.wilson(correct, n)
    shown = f"{STRICT} {correct / n:.4f} ± {se:.4f} ({correct}/{n})" if se is not None else f"{STRICT} {correct}/{n}"
    words = f"{shown}, 95 % {span.low:.4f} .. {span.high:.4f}"
    outcome, told = PASS, "standard error not published"
    if found.stderr is not None:
        agrees = se is not None and abs(round(se, 4) - found.stderr) < 1e-9
        outcome = PASS if agrees else FAIL
        told = f"published error {found.stderr:.4f}" + ("" if agrees else " is not that of its count")
    return checked("score", outcome, "the error that the count gives", shown, f"{words}; {told}",
                   score=correct / n, correct=correct, n=n, se=se, interval_95=[span.low, span.high])  # fmt: skip


def _against(
    found: Published, correct: int, n: int, references: Sequence[ReferenceScore], spec: GateSpec, notes: list[str]
) -> list[Check]:
    by_name = {ref.name: ref for ref in references}
    checks: list[Check] = []
    for asked in spec.against:
        ref = by_name[asked.name]
        margin = spec.score_margin if asked.margin is None else asked.margin
        twice = sum(a.name == asked.name for a in spec.against) > 1
        name = f"reference {asked.name}" + (f" at {100 * margin:g} pt" if twice else "")
        if why := ref.refusal(target=found.target, task=found.task, shots=found.shots):
            words = f"published {ref} is refused: {why}"
            checks.append(checked(name, INCONCLUSIVE, f"at most {100 * margin:g} pt below {ref}", words, compared=0))
            continue
        checks.append(compare_counts(correct, n, ref, margin, spec.alpha, name, exact=False))
        if f"protocol of {ref.name}: {ref.protocol}" not in notes:
            notes.append(f"protocol of {ref.name}: {ref.protocol}")
    return checks


def _length(found: Published, value: GoldenValue | None, spec: GateSpec, notes: list[str]) -> Check:
    margin, level = spec.length_margin, 1 - 2 * spec.alpha
    expected = f"accepted length at most {100 * margin:g} % below golden"
    if value is None:
        shown = f"accepted length {found.length:g}"
        return checked("accepted length", INCONCLUSIVE, expected, shown, f"{shown} and no golden value", compared=0)
    golden, assumed = golden_estimate(value, spec, notes)
    curve = f"; {CURVE_ONLY}" if assumed else ""
    against = f"golden {golden.value:.3f} at K={value.k} (se {golden.se:.3f}{curve})"
    numbers: dict[str, Any] = {"golden": golden.value, "golden_se": golden.se, "golden_se_assumed": assumed}
    bound, numbers["margin"], numbers["compared"] = 1 - margin, margin, 0
    if found.length is None:
        numbers["least"] = least = bound * (golden.value + float(special.ndtri(1 - spec.alpha)) * golden.se)
        words = f"no accepted length is published to compare with {against}"
        words += f"; a run without error of its own passes from {least:.2f}"
        return checked("accepted length", INCONCLUSIVE, expected, "none published", words, **numbers)
    own_se = spec.assumed_golden_se * found.length if found.length_se is None else found.length_se
    own = stats.Estimate(value=found.length, se=own_se)
    test, span = stats.ratio_test(own, golden, bound), stats.ratio_interval(own, golden, level)
    outcome = decide(test, spec.alpha)
    limits = f"{span.low:.3f} .. {span.high:.3f}" if span else "unbounded"
    shown = f"accepted length {found.length:.3f} (se {own_se:.3f}{', assumed' if found.length_se is None else ''})"
    words = (
        f"{shown} against {against}: ratio {found.length / golden.value:.3f}, {100 * level:g} % {limits}, "
        f"{loss_words(outcome, test.p_above, test.p_below, f'{100 * margin:g} %')}"
    )
    if outcome is INCONCLUSIVE:
        room, distance = math.hypot(own_se, bound * golden.se), abs(found.length - bound * golden.value)
        enough = distance / stats.mde_estimate(1.0, 0.0, spec.alpha)
        words += f"; an error of {enough:.3f} would settle it, here {room:.3f}"
    numbers |= {
        "accepted_length": found.length, "se": own_se, "ratio": found.length / golden.value, "p": test.p_above,
        "p_worse": test.p_below, "interval": [span.low, span.high] if span else None, "compared": 1,
    }  # fmt: skip
    return checked("accepted length", outcome, expected, shown, words, **numbers)

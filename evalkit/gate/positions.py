"""Accepted drafts by position against golden."""

from __future__ import annotations

from evalkit.acceptance import distribution_test
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import GateSpec
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Check, Run


def positions_check(run: Run, golden: Curve, value: GoldenValue, spec: GateSpec, notes: list[str]) -> list[Check]:
    """Accepted drafts by position against golden: tokens a step lost at any positions, against a margin in tokens.

    Against a golden histogram it always is a check. A curve without one implies only sums of survival, with an
    assumed spread: where that spread alone hides a loss of the margin, the comparison is a note.
    """
    margin, expected = spec.distribution_margin * value.accepted_length, "positions that accept as golden's do"
    lengths = golden.lengths(value.mode)
    assumed = {k: spec.assumed_golden_se * length for k, length in lengths.items()}
    if value.histogram is None and len([k for k in lengths if k <= value.k]) < 2:
        notes.append(f"golden/{value.source} has neither a histogram nor another K: positions are not compared")
        return []
    try:
        test = distribution_test(
            run.samples, value.k, margin=margin, histogram=value.histogram, se=value.se, clusters=value.clusters,
            lengths=lengths, lengths_se=assumed, alpha=spec.alpha, covariance=value.covariance,
        )  # fmt: skip
    except ValueError as e:
        notes.append(f"golden/{value.source} is unusable for positions: {e}")
        return []
    if test is None:
        return []
    outcome = PASS if test.p_under <= spec.alpha else FAIL if test.p_over <= spec.alpha else INCONCLUSIVE
    found = f"{test.lost:.3f} tokens a step lost"
    against = "histogram" if test.source == "histogram" else "survival implied by its curve"
    sure, p = f"{100 * (1 - spec.alpha):g} %", min(test.p_under, test.p_over)
    equal = "" if test.p_equal is None else f", p {test.p_equal:.2g} for no difference at all"
    message = (
        f"{found} and {test.gained:.3f} gained against golden's {against} (Wasserstein-1 {test.wasserstein:.3f} "
        f"tokens), at most {test.upper:.3f} lost at {sure}; margin {margin:.3f} tokens, p {p:.2g}{equal}"
    )
    if outcome is INCONCLUSIVE and not test.decidable:
        notes.append(f"accepted drafts distribution: {message}; golden is too uncertain to judge by")
        return []
    if outcome is INCONCLUSIVE:
        message += "; more documents would settle it"
    return [checked(
        "accepted drafts distribution", outcome, f"{expected}, at most {margin:.3f} tokens a step lost", found, message,
        groups=[list(g) for g in test.groups], here=list(test.here), golden=list(test.golden), lost=test.lost,
        gained=test.gained, wasserstein=test.wasserstein, upper=test.upper, margin=margin, p=test.p_under,
        p_worse=test.p_over, p_equal=test.p_equal, source=test.source,
    )]  # fmt: skip

"""Accepted drafts by position against golden."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.acceptance import distribution_test
from evalkit.acceptance.clusters import cluster_counts
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
        compared=len(run.samples),
    )]  # fmt: skip


def rate_check(run: Run, value: GoldenValue, spec: GateSpec) -> Check | None:
    """The accept rate at each position (share of steps whose first j drafts were kept) against golden's, in points.

    Passes when every position is shown to lose less than the margin (intersection-union: each at alpha), fails when
    one is shown to lose more (Bonferroni over the positions). None without a golden histogram or for one document.
    """
    counts = cluster_counts(run.samples, value.k)
    if value.histogram is None or value.se is None or len(counts) < 2:
        return None
    here = stats.survival_counts(counts)[:, 1:].sum(axis=0) / counts.sum()
    there = stats.survival_counts(np.array([value.histogram]))[0, 1:] / sum(value.histogram)
    if value.covariance is None:
        spread = stats.histogram_covariance(value.histogram, value.se)
    else:
        spread = np.array(value.covariance)
    se = np.sqrt(np.diag(stats.survival_covariance(counts)) + np.diag(spread))
    df = min(len(counts) - 1, (value.clusters or math.inf) - 1)
    distance = here - there + spec.position_margin
    t = np.divide(distance, se, out=np.sign(distance) * 40, where=se > 1e-12)
    above, below = special.stdtr(df, -t), special.stdtr(df, t)
    p, p_worse = float(above.max()), min(1.0, value.k * float(below.min()))
    worst = int(np.argmin(t))
    outcome = PASS if p <= spec.alpha else FAIL if p_worse <= spec.alpha else INCONCLUSIVE
    margin = f"{100 * spec.position_margin:g} pt"
    found = f"{100 * here[worst]:.1f} % at position {worst + 1}"
    half = float(special.stdtrit(df, 1 - spec.alpha)) * float(se[worst])
    low, high = (100 * (here[worst] - there[worst] + side * half) for side in (-1, 1))
    message = (
        f"worst is {found}, golden {100 * there[worst]:.1f} %: {100 * (here[worst] - there[worst]):+.1f} pt, "
        f"{100 * (1 - 2 * spec.alpha):g} % {low:+.1f} .. {high:+.1f} pt, p {p:.2g} for a loss under {margin} at every "
        f"of {value.k} positions"
    )
    if outcome is INCONCLUSIVE:
        message += "; more documents would settle it"
    return checked(
        "accept rate by position", outcome, f"at most {margin} below golden at every position", found, message,
        here=[float(x) for x in here], golden=[float(x) for x in there], se=[float(x) for x in se], worst=worst + 1,
        interval=[low / 100, high / 100], margin=spec.position_margin, p=p, p_worse=p_worse, compared=len(counts),
    )  # fmt: skip

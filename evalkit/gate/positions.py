"""Accepted drafts by position against golden."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.acceptance import DistributionTest, distribution_of_counts
from evalkit.acceptance.columns import cluster_counts
from evalkit.chances import loss_words, p_value
from evalkit.formats import points, points_interval
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import GateSpec
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Check, Run

MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # of the documents that there are


def positions_check(run: Run, golden: Curve, value: GoldenValue, spec: GateSpec, notes: list[str]) -> list[Check]:
    """Accepted drafts by position against golden: tokens a step lost at any positions, against a margin in tokens.

    Against a golden histogram it always is a check. A curve without one implies only sums of survival, with an
    assumed spread: where that spread alone hides a loss of the margin, the comparison is a note.
    """
    margin, expected = spec.distribution_margin * value.accepted_length, "positions that accept as golden's do"
    lengths = golden.lengths(value.mode)
    assumed = {k: spec.assumed_golden_se * length for k, length in lengths.items()}
    if value.histogram is None and len([k for k in lengths if k <= value.k]) < 2:
        notes.append(f"{value.place} has neither a histogram nor another K: positions are not compared")
        return []
    counts = cluster_counts(run.samples, value.k)

    def tested(documents: np.ndarray) -> DistributionTest | None:
        return distribution_of_counts(
            documents, value.k, margin=margin, histogram=value.histogram, se=value.se, clusters=value.clusters,
            lengths=lengths, lengths_se=assumed, alpha=spec.alpha, covariance=value.covariance,
        )  # fmt: skip

    try:
        test = tested(counts)
    except ValueError as e:
        notes.append(f"{value.place} is unusable for positions: {e}")
        return []
    if test is None:
        return []
    outcome = PASS if test.p_under <= spec.alpha else FAIL if test.p_over <= spec.alpha else INCONCLUSIVE
    found = f"{test.lost:.3f} tokens a step lost"
    against = "histogram" if test.source == "histogram" else "survival implied by its curve"
    sure = f"{100 * (1 - spec.alpha):g} %"
    p = loss_words(outcome, test.p_under, test.p_over, "it")
    equal = "" if test.p_equal is None else f", {p_value(test.p_equal)} for no difference at all"
    message = (
        f"{found} and {test.gained:.3f} gained against golden's {against} (Wasserstein-1 {test.wasserstein:.3f} "
        f"tokens), at most {test.upper:.3f} lost at {sure}; margin {margin:.3f} tokens, {p}{equal}"
    )
    if outcome is INCONCLUSIVE and not test.decidable:
        notes.append(f"accepted drafts distribution: {message}; golden is too uncertain to judge by")
        return []
    needed = None
    if outcome is INCONCLUSIVE:
        needed = documents_needed(counts, lambda x: (t := tested(x)) and min(t.p_under, t.p_over) <= spec.alpha)
        message += _settled_by(needed)
    return [checked(
        "accepted drafts distribution", outcome, f"{expected}, at most {margin:.3f} tokens a step lost", found, message,
        groups=[list(g) for g in test.groups], here=list(test.here), golden=list(test.golden), lost=test.lost,
        gained=test.gained, wasserstein=test.wasserstein, upper=test.upper, margin=margin, p=test.p_under,
        p_worse=test.p_over, p_equal=test.p_equal, source=test.source,
        compared=len(run.samples), needed=needed,
    )]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RateTest:
    """Accept rates at positions 1..K against golden's: p is of "each loses less than the margin", p_worse of "one
    loses more"; `t` by position."""

    here: np.ndarray
    golden: np.ndarray
    se: np.ndarray
    t: np.ndarray
    df: float
    p: float
    p_worse: float


def rate_test(
    counts: np.ndarray, histogram: Sequence[int], covariance: np.ndarray, clusters: int | None, margin: float
) -> RateTest:
    """Passes when every position is shown to lose less than the margin (intersection-union: each at alpha), fails when
    one is shown to lose more (Bonferroni over the positions). `counts` [documents, K+1]."""
    here = stats.survival_counts(counts)[:, 1:].sum(axis=0) / counts.sum()
    golden = stats.survival_counts(np.array([histogram]))[0, 1:] / sum(histogram)
    se = np.sqrt(np.diag(stats.survival_covariance(counts)) + np.diag(covariance))
    df = float(min(len(counts) - 1, (clusters or math.inf) - 1))
    distance = here - golden + margin
    t = np.divide(distance, se, out=np.sign(distance) * 40, where=se > 1e-12)
    p, p_worse = float(special.stdtr(df, -t).max()), min(1.0, len(t) * float(special.stdtr(df, t).min()))
    return RateTest(here=here, golden=golden, se=se, t=t, df=df, p=p, p_worse=p_worse)


def rate_check(run: Run, value: GoldenValue, spec: GateSpec) -> Check | None:
    """The accept rate at each position (share of steps whose first j drafts were kept) against golden's, in points.
    None without a golden histogram or for one document."""
    counts = cluster_counts(run.samples, value.k)
    if value.histogram is None or value.se is None or len(counts) < 2:
        return None
    if value.covariance is None:
        spread = stats.histogram_covariance(value.histogram, value.se)
    else:
        spread = np.array(value.covariance)
    test = rate_test(counts, value.histogram, spread, value.clusters, spec.position_margin)
    worst = int(np.argmin(test.t))
    here, there = float(test.here[worst]), float(test.golden[worst])
    outcome = PASS if test.p <= spec.alpha else FAIL if test.p_worse <= spec.alpha else INCONCLUSIVE
    margin, found = f"{100 * spec.position_margin:g} pt", f"{100 * here:.1f} % at position {worst + 1}"
    half = float(special.stdtrit(test.df, 1 - spec.alpha)) * float(test.se[worst])
    low, high = here - there - half, here - there + half
    shown = loss_words(outcome, test.p, test.p_worse, margin)
    shown += f" at {'one' if outcome is FAIL else 'each'} of {value.k} positions"
    message = (
        f"worst is {found}, golden {100 * there:.1f} %: {points(here - there)}, {100 * (1 - 2 * spec.alpha):g} % "
        f"{points_interval(low, high)}, {shown}"
    )
    needed = None
    if outcome is INCONCLUSIVE:

        def decides(documents: np.ndarray) -> bool:
            found = rate_test(documents, value.histogram or (), spread, value.clusters, spec.position_margin)
            return min(found.p, found.p_worse) <= spec.alpha

        needed = documents_needed(counts, decides)
        message += _settled_by(needed)
    return checked(
        "accept rate by position", outcome, f"at most {margin} below golden at every position", found, message,
        here=test.here.tolist(), golden=test.golden.tolist(), se=test.se.tolist(), worst=worst + 1,
        interval=[low, high], margin=spec.position_margin, p=test.p, p_worse=test.p_worse, compared=len(counts),
        needed=needed,
    )  # fmt: skip


def documents_needed(counts: np.ndarray, decides: Callable[[np.ndarray], object]) -> int | None:
    """About how many documents like these would let a test decide, if what was seen stays: the smallest multiple of
    them that does. None where none up to 64 does: the golden is too uncertain, or the rate lies on the margin."""
    return next((len(counts) * m for m in MULTIPLES if decides(np.tile(counts, (m, 1)))), None)


def _settled_by(needed: int | None) -> str:
    if needed is None:
        return "; it lies too near the margin, or golden is too uncertain, for more documents to settle it"
    return f"; about {needed} documents would settle it"

"""One cell of a gate simulated: data drawn at a known true effect, and the gate's own tests put to them.

A loss of accuracy is drawn as lost answers on top of the questions that flip both ways by chance. A loss of length is
drawn by taking all drafts of some steps away, which loses the same share at every position. Documents differ as much as
the golden's own design effect says. Only arrays are drawn, no records: `tests/evalkit/test_spec_audit.py` holds the
twin, the whole gate on records of the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalkit import stats
from evalkit.acceptance import distribution_of_counts
from evalkit.gate.limits import GateSpec
from evalkit.gate.positions import rate_test


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a cell is when nothing is lost.

    `discordant` is the share of questions that flip without any loss, both ways alike. `histogram` [K+1] are golden's
    shares of steps with 0..K accepted drafts, `design_effect` how much more its documents vary than single steps.
    """

    n: int
    score: float
    discordant: float = 0.02
    paired: bool = True
    published: tuple[tuple[int, float], ...] = ()  # (n, margin) of each published score that is compared with
    histogram: tuple[float, ...] | None = None
    length: float | None = None  # of a curve without a histogram
    measured: bool = True  # the golden's own error is its data's; else assumed
    golden_documents: int = 0
    steps: float = 7.0  # a document
    design_effect: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is truly lost: points of accuracy as a fraction of 1, a share of the accepted length."""

    accuracy: float = 0.0
    length: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often the gate ended in each way at one true effect in every cell; `any_passed`: at least one cell passed."""

    what: str
    draws: int
    passed: float
    any_passed: float
    failed: float
    inconclusive: float
    on_margin: bool = False


PValues = Mapping[str, tuple[float, float]]  # check -> (p of "the loss is under the margin", p of "it is over")


def draw(truth: Truth, effect: Effect, limits: GateSpec, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """The p-values of every test of one cell, on fresh data."""
    out: dict[str, tuple[float, float]] = {}
    if truth.paired:
        up, down = draw_pairs(truth, effect.accuracy, rng)
        test = stats.tango_test(up, down, truth.n, -limits.accuracy_margin)
        out["accuracy"] = test.p_above, test.p_below
    if truth.published:
        correct = int(rng.binomial(truth.n, max(0.0, truth.score - effect.accuracy)))
        for i, (n, margin) in enumerate(truth.published):
            test = stats.two_proportion_test(correct, truth.n, int(rng.binomial(n, truth.score)), n, -margin)
            out[f"reference {i + 1}"] = test.p_above, test.p_below
    if truth.histogram is not None:
        here = draw_counts(truth, effect.length, truth.n, rng)
        golden = draw_counts(truth, 0.0, truth.golden_documents or truth.n, rng) if truth.measured else None
        out |= acceptance_tests(here, golden, truth, limits, rng)
    return out


def outcome(found: PValues, alpha: float) -> str:
    """pass, fail or inconclusive, as the gate combines them."""
    if any(worse <= alpha and p > alpha for p, worse in found.values()):
        return "fail"
    return "pass" if found and all(p <= alpha for p, _ in found.values()) else "inconclusive"


def draw_pairs(truth: Truth, loss: float, rng: np.random.Generator) -> tuple[int, int]:
    """Questions won and lost against the baseline: its score is kept, `loss` more are lost than won."""
    lost = min(truth.discordant / 2 + loss, truth.score)
    won = min(truth.discordant / 2, 1 - truth.score)
    down, up, _ = rng.multinomial(truth.n, [lost, won, max(0.0, 1 - lost - won)])
    return int(up), int(down)


def draw_counts(truth: Truth, loss: float, documents: int, rng: np.random.Generator) -> np.ndarray:
    """Steps with 0..K accepted drafts of each document: [documents, K+1]. The mean length is 1 - loss of it."""
    assert truth.histogram is not None
    shares = np.array(truth.histogram, dtype=np.float64)
    shares = shares / shares.sum()
    mean = float(shares @ np.arange(shares.size))
    gone = min(1.0, loss * (1 + mean) / mean)
    shares = (1 - gone) * shares
    shares[0] += gone
    sizes = 1 + rng.poisson(max(0.0, truth.steps - 1), documents)
    if truth.design_effect > 1.02:
        within = float((sizes**2).sum() / sizes.sum())
        more = min(truth.design_effect - 1, 0.9 * (within - 1))
        weights = rng.dirichlet(np.maximum(shares * ((within - 1) / more - 1), 1e-9), documents)
    else:
        weights = np.repeat(shares[None], documents, axis=0)
    return rng.multinomial(sizes, weights)


def acceptance_tests(
    here: np.ndarray, golden: np.ndarray | None, truth: Truth, limits: GateSpec, rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Length, distribution and rates of drawn steps against drawn golden steps, or against a curve only (`golden` None:
    its value is drawn with the assumed error, and nothing but the length is judged)."""
    k = here.shape[1] - 1
    own = estimate(here)
    if golden is None:
        assert truth.length is not None
        value = max(1.01, truth.length * (1 + limits.assumed_golden_se * rng.standard_normal()))
        reference = stats.Estimate(value=value, se=limits.assumed_golden_se * value)
        test = stats.ratio_test(own, reference, 1 - limits.length_margin)
        return {"accepted length": (test.p_above, test.p_below)}
    there = estimate(golden)
    reference = stats.Estimate(value=there.value, se=there.se, df=len(golden) - 1)
    test = stats.ratio_test(own, reference, 1 - limits.length_margin)
    out = {"accepted length": (test.p_above, test.p_below)}
    histogram = [int(x) for x in golden.sum(axis=0)]
    covariance = stats.survival_covariance(golden)
    rates = rate_test(here, histogram, covariance, len(golden), limits.position_margin)
    out["accept rate by position"] = rates.p, rates.p_worse
    if outcome(out, limits.alpha) == "fail":
        return out  # the slow test can't change a fail
    lost = distribution_of_counts(
        here, k, margin=limits.distribution_margin * there.value, histogram=histogram, se=there.se,
        clusters=len(golden), covariance=covariance.tolist(), alpha=limits.alpha,
    )  # fmt: skip
    if lost is not None:
        out["accepted drafts distribution"] = lost.p_under, lost.p_over
    return out


def estimate(counts: np.ndarray) -> stats.Estimate:
    """Accepted length of counted steps, as the gate estimates it."""
    values = np.arange(counts.shape[1])
    found = stats.clustered_ratio(counts @ values, counts.sum(axis=1), counts @ values**2).estimate(offset=1.0)
    assert found is not None
    return found


def passes(cells: Sequence[PValues], alpha: float, *, in_order: bool = False) -> list[bool]:
    """Whether each cell's largest p is small enough after Holm's correction over all of them, or in their order."""
    worst = [max((p for p, _ in found.values()), default=1.0) for found in cells]
    return list(stats.fixed_sequence(worst, alpha)) if in_order else [p <= alpha for p in stats.holm(worst)]


def geometric(length: float, k: int) -> tuple[float, ...]:
    """A histogram 0..K of this accepted length with one conditional rate: the shape where only a length is known."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**j for j in range(1, k + 1)) < length - 1 else (low, rate)
    survival = [rate**j for j in range(k + 1)] + [0.0]
    return tuple(survival[j] - survival[j + 1] for j in range(k + 1))


def slack(rate: float, draws: int) -> float:
    """Three simulation standard errors of a rate."""
    return 3 * math.sqrt(rate * (1 - rate) / draws)

"""Every acceptance figure against numbers worked out by hand or published, and what must be refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.acceptance import looks_forced, summarize
from evalkit.errors import EvalkitError
from evalkit.records import Sample, StepRecord


def step(a: int, k: int = 3, trimmed: int | None = None, **more: Any) -> StepRecord:
    return StepRecord(k=k, accepted=a, accepted_trimmed=a if trimmed is None else trimmed, **more)


def sample(i: int, *steps: StepRecord, **more: Any) -> Sample:
    known: dict[str, Any] = {"tokens": 1 + sum(s.accepted_trimmed + 1 for s in steps), "finish_reason": "stop"}
    return Sample(doc_id=i, doc_hash=f"d{i}", prompt_hash=f"p{i}", question="", gold="", steps=steps, **(known | more))


def from_histogram(counts: list[int], k: int) -> list[Sample]:
    """One sample a step."""
    values = [a for a, n in enumerate(counts) for _ in range(n)]
    return [sample(i, step(a, k)) for i, a in enumerate(values)]


@pytest.mark.parametrize(
    ("counts", "length", "survival"),
    [
        ([2704, 1414, 1027, 12992], 3.340, [0.851, 0.773, 0.716]),
        ([2361, 1051, 1050, 956, 744, 7636], 4.419, [0.829, 0.753, 0.677, 0.607, 0.553]),
        ([2376, 1365, 707, 511, 384, 694, 1081, 4741], 5.131, [0.800, 0.685, 0.625, 0.582, 0.549, 0.491, 0.400]),
    ],
)
def test_histograms_of_the_reference_study(counts: list[int], length: float, survival: list[float]) -> None:
    k = len(counts) - 1
    found = summarize(from_histogram(counts, k), k)
    assert found.accepted_length is not None
    assert round(found.accepted_length, 3) == length
    assert [round(s, 3) for s in found.survival] == survival
    assert found.histogram == tuple(counts)
    assert found.accepted_length == pytest.approx(1 + sum(found.survival))
    assert found.acceptance_rate == pytest.approx((found.accepted_length - 1) / k)
    conditional = [c for c in found.conditional if c is not None]
    assert math.prod(conditional) == pytest.approx(found.survival[-1])


def test_published_counters() -> None:
    """Case C52: 4,816 steps at K=7 with 12,208 accepted drafts are an accepted length of 3.5349."""
    many, few = 12208 // 4816 + 1, 12208 // 4816
    high = 12208 - few * 4816
    found = summarize([sample(0, *[step(many, 7)] * high, *[step(few, 7)] * (4816 - high))], 7)
    assert found.accepted_length is not None
    assert round(found.accepted_length, 4) == 3.5349
    assert (found.drafts, found.accepted) == (33712, 12208)
    assert found.looks_forced  # two adjacent values only


def test_pooled_is_not_the_mean_of_requests() -> None:
    """Case C58 in small: a long request at 2.6 and a short one at 4."""
    long = sample(0, *[step(2, 7)] * 384, *[step(1, 7)] * 256)
    short = sample(1, *[step(3, 7)] * 10)
    found = summarize([long, short], 7)
    assert found.accepted_length == pytest.approx(2.6215, abs=1e-4)
    assert found.mean_of_requests == pytest.approx(3.3)


def test_raw_and_trimmed() -> None:
    """Case C41: five accepted drafts with the end of text third count as 6 tokens; three are emitted."""
    one = sample(0, step(5, 5, trimmed=3, cut="stop"), tokens=4)
    found = summarize([one], 5)
    assert found.accepted_length == 6
    assert found.accepted_length_trimmed == 4
    assert found.emitted_per_step == 3
    assert (found.cut_at_stop, found.cut_at_limit, found.cut_share) == (1, 0, 1.0)


def test_steps_without_a_draft_enter_no_figure() -> None:
    """Case C51: 993 drafted steps with 3562 accepted, 821 tokens without a draft."""
    steps = [step(4, 5)] * 583 + [step(3, 5)] * 410 + [step(0, 0)] * 821
    found = summarize([sample(0, *steps, tokens=5377)], 5)
    assert found.steps == 993
    assert found.steps_without_draft == 821
    assert found.accepted_length == pytest.approx(1 + 3562 / 993)
    assert found.emitted_per_step == pytest.approx(2.963, abs=1e-3)


def test_no_steps_gives_none_and_never_nan() -> None:
    for samples in ([], [sample(0)], [sample(0, step(0, 0))]):
        found = summarize(samples, 0)
        assert found.accepted_length is None
        assert found.estimate() is None
        for field in dataclasses.fields(found):
            value = getattr(found, field.name)
            assert not (isinstance(value, float) and math.isnan(value)), field.name


def test_a_position_nothing_reached_has_no_conditional_rate() -> None:
    found = summarize([sample(0, step(0), step(0)), sample(1, step(0))], 3)
    assert found.survival == (0.0, 0.0, 0.0)
    assert found.conditional == (0.0, None, None)
    assert found.accepted_length == 1.0


def test_failed_requests_are_left_out() -> None:
    found = summarize([sample(0, step(3)), sample(1, step(0), error="timeout"), sample(2, step(1))], 3)
    assert (found.steps, found.clusters) == (2, 2)


def test_repeats_of_a_document_are_one_cluster() -> None:
    apart = summarize([sample(i, step(i % 4)) for i in range(8)], 3)
    together = summarize([sample(i // 2, step(i % 4)) for i in range(8)], 3)
    assert (apart.clusters, together.clusters) == (8, 4)


def test_clustered_error_is_larger_where_prompts_differ() -> None:
    rng = np.random.default_rng(5)
    samples = [
        sample(i, *[step(int(a), 7) for a in rng.binomial(7, share, 15)]) for i, share in enumerate(rng.beta(3, 3, 80))
    ]
    found = summarize(samples, 7)
    assert found.design_effect is not None and found.se is not None
    assert found.design_effect > 3
    assert found.interval is not None and found.accepted_length is not None
    assert found.interval.low < found.accepted_length < found.interval.high
    one = summarize(samples[:1], 7)
    assert (one.se, one.interval, one.estimate()) == (None, None, None)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (step(4, 3), "accepted=4"),
        (step(-1, 3), "accepted=-1"),
        (step(2, 3, trimmed=3), "accepted_trimmed=3"),
        (StepRecord(k=3, accepted=float("nan"), accepted_trimmed=0), "accepted=nan"),  # type: ignore[arg-type]
        (step(2, 5), "5 drafts in a run at K=3"),
        (step(2, 3, cut="eos"), "cut by 'eos'"),
        (step(2, 3, confidence=(0.5, float("nan"), 0.5)), "confidence outside"),
        (step(2, 3, confidence=(1.2, 0.1, 0.5)), "confidence outside"),
    ],
)
def test_counts_that_contradict_are_refused(bad: StepRecord, words: str) -> None:
    with pytest.raises(EvalkitError, match=words):
        summarize([sample(0, step(1), bad)], 3)


@given(st.lists(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=6), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_identities_hold(requests: list[list[tuple[int, int]]]) -> None:
    samples = [sample(i, *[step(min(a, k), k) for k, a in pairs if k]) for i, pairs in enumerate(requests)]
    found = summarize(samples, 7)
    assert sum(found.histogram) == found.steps
    assert 0 <= found.accepted <= found.drafts <= 7 * found.steps
    assert list(found.survival) == sorted(found.survival, reverse=True)


@pytest.mark.parametrize(
    ("histogram", "forced"),
    [
        ([0, 0, 0, 0, 300, 200, 0, 0], True),  # two adjacent values
        ([0, 0, 0, 500, 0, 0, 0, 0], True),  # pinned
        ([0, 0, 0, 0, 0, 0, 0, 500], True),  # never a miss
        ([250, 250, 0, 0], True),
        ([480, 20, 0, 0], False),  # a very weak draft
        ([500, 0, 0, 0], False),  # a dead draft: another check's matter
        ([0, 0, 0, 0, 100, 99, 0, 0], False),  # too few steps to say
        ([0, 0, 0, 1, 300, 200, 0, 0], False),
        ([0, 0, 0, 300, 0, 200, 0, 0], False),  # not adjacent
        ([100, 200], False),  # K=1 has no other values
        ([], False),
    ],
)
def test_forced_acceptance_is_seen_in_the_histogram(histogram: list[int], forced: bool) -> None:
    assert looks_forced(histogram) is forced


def test_flag_of_a_sample_makes_the_run_forced() -> None:
    assert summarize([sample(0, step(1)), sample(1, step(2), forced=True)], 3).forced


def test_confidence_calibration_by_hand() -> None:
    steps = [
        step(2, 2, confidence=(0.9, 0.8)),
        step(1, 2, confidence=(0.9, 0.8)),
        step(0, 2, confidence=(0.5, 0.2)),
        step(1, 2),  # no confidence: left out
    ]
    found = {(c.kind, c.position): c for c in summarize([sample(0, *steps)], 2).calibration}
    first, second = found["conditional", 1], found["conditional", 2]
    assert (first.steps, first.rate) == (3, pytest.approx(2 / 3))
    assert first.ece_10 == pytest.approx((2 * 0.1 + 0.5) / 3)
    assert (second.steps, second.rate) == (2, 0.5)  # only steps whose first draft was accepted
    assert second.ece_10 == pytest.approx(0.3)
    cumulative = found["cumulative", 2]
    assert cumulative.steps == 3
    assert cumulative.mean_confidence == pytest.approx((0.72 + 0.72 + 0.1) / 3)
    assert cumulative.ece_20 == pytest.approx((abs(2 * 0.72 - 1) + 0.1) / 3)


def test_drafts_past_a_stop_say_nothing_about_confidence() -> None:
    cut = StepRecord(k=3, accepted=1, accepted_trimmed=1, cut="stop", confidence=(0.9, 0.9, 0.9))
    whole = StepRecord(k=3, accepted=1, accepted_trimmed=1, confidence=(0.9, 0.9, 0.9))
    found = {(c.kind, c.position): c.steps for c in summarize([sample(0, cut, whole)], 3).calibration}
    assert found == {
        ("conditional", 1): 2, ("conditional", 2): 1, ("cumulative", 1): 2, ("cumulative", 2): 1, ("cumulative", 3): 1,
    }  # fmt: skip


def test_a_calibrated_draft_has_a_small_error() -> None:
    rng = np.random.default_rng(6)
    steps = []
    for _ in range(4000):
        c = rng.beta(4, 2, 3)
        misses = np.flatnonzero(rng.random(3) > c)
        steps.append(step(int(misses[0]) if misses.size else 3, 3, confidence=tuple(float(x) for x in c)))
    for found in summarize([sample(0, *steps)], 3).calibration:
        assert found.ece_10 < 0.03, found

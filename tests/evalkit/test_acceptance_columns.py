"""Figures made of arrays are those that the steps give one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import stats
from evalkit.acceptance import summarize
from evalkit.acceptance.columns import cluster_counts, steps_of
from evalkit.errors import EvalkitError
from evalkit.records import Sample, StepRecord
from evalkit.report import curves
from tests.evalkit import plain_acceptance as plain

K = 4


@st.composite
def step(draw: st.DrawFn) -> StepRecord:
    k = draw(st.integers(0, K))
    accepted = draw(st.integers(0, k))
    sure = draw(st.lists(st.floats(0, 1), max_size=k))
    return StepRecord(k=k, accepted=accepted, accepted_trimmed=draw(st.integers(0, accepted)), confidence=tuple(sure),
                      cut=draw(st.sampled_from(("", "", "stop", "limit"))))  # fmt: skip


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    parts = draw(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.lists(step(), max_size=12)), max_size=8))
    return [
        Sample(doc_id=doc, doc_hash=str(doc), prompt_hash="p", question="q", gold="1", error="lost" if failed else "",
               tokens=3, steps=tuple(steps))
        for doc, failed, steps in parts
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(samples())
def test_counts_starts_and_calibration_are_those_of_the_steps(found: list[Sample]) -> None:
    assert (cluster_counts(found, K) == plain.cluster_counts(found, K)).all()
    made, told = steps_of(found), plain.verify_steps(found)
    assert made.start[made.verify].tolist() == [at for _, at, _ in told]
    assert made.judged[made.verify].tolist() == [plain.judged(x) for _, _, x in told]
    for here, there in zip(made.judged_at(K), plain.judged_at(found, K), strict=True):
        assert here.tolist() == there.tolist()
    there = {(c.kind, c.position): c for c in summarize(found, K).calibration}
    here = plain.calibration(found, K)
    assert there.keys() == here.keys()
    for key, (predicted, kept) in here.items():
        c, p, y = there[key], np.array(predicted), np.array(kept, dtype=float)
        assert (c.steps, c.mean_confidence, c.rate) == (len(p), float(p.mean()), float(y.mean()))
        assert c.ece_10 == stats.calibration_error(p, y, bins=10)


def test_curves_of_the_report_are_those_of_the_steps() -> None:
    """Seed 5; 400 documents, some with steps without a draft and a cut."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(400):
        steps = []
        for _ in range(int(rng.integers(1, 30))):
            k = int(rng.integers(0, 8))
            accepted = int(rng.integers(0, k + 1))
            steps.append(StepRecord(k=k, accepted=accepted, accepted_trimmed=accepted, confidence=tuple(rng.random(k))))
        last = steps[-1]
        steps[-1] = StepRecord(k=last.k, accepted=last.accepted, accepted_trimmed=last.accepted // 2, cut="stop")
        found.append(Sample(doc_id=i, doc_hash=str(i), prompt_hash="p", question="q", gold="1", tokens=9,
                            steps=tuple(steps), error="lost" if i % 50 == 9 else ""))  # fmt: skip
    told = plain.verify_steps(found)
    points = curves.by_position(steps_of(found))
    assert len(points) >= 5
    for point in points:
        inside = [(place, x.accepted) for place, at, x in told if point.low <= at < point.high]
        assert point.steps == len(inside) and point.value == pytest.approx(1 + np.mean([a for _, a in inside]))
        by = {place: [a for other, a in inside if other == place] for place, _ in inside}
        ratio = stats.clustered_ratio([sum(v) for v in by.values()], [len(v) for v in by.values()])
        assert ratio.interval is not None and point.interval is not None
        assert point.interval.low == pytest.approx(1 + ratio.interval.low)
    drafts = plain.reached_drafts(found)
    bins = curves.reliability(steps_of(found))
    assert sum(b.steps for b in bins) == len(drafts) and len(bins) == curves.CONFIDENCE_BINS
    for i, b in enumerate(bins):
        own = [(c, kept) for _, c, kept in drafts if i / 10 <= c < (i + 1) / 10]
        assert b.steps == len(own) and b.value == pytest.approx(np.mean([kept for _, kept in own]))


def test_no_steps_give_no_curve() -> None:
    assert curves.by_position(steps_of([])) == [] and curves.reliability(steps_of([])) == []
    assert cluster_counts([], 3).shape == (0, 4)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"accepted": 2.5}, "accepted=2.5"), ({"accepted": True}, "accepted=True"), ({"k": 10**30}, "k=10000000"),
        ({"accepted_trimmed": 3}, "accepted_trimmed=3"), ({"cut": "quit"}, "cut by 'quit'"),
        ({"confidence": (0.5, float("nan"))}, "outside 0..1"), ({"confidence": ("high",)}, "outside 0..1"),
        ({"k": 6}, "6 drafts in a run at K=5"),
    ],
)  # fmt: skip
def test_a_wrong_step_is_named(bad: dict[str, object], words: str) -> None:
    good = {"k": 5, "accepted": 2, "accepted_trimmed": 2}
    steps = tuple(StepRecord(**{**good, **change}) for change in ({}, bad))  # type: ignore[arg-type]
    one = Sample(doc_id=7, doc_hash="d", prompt_hash="p", question="q", gold="1", steps=steps)
    with pytest.raises(EvalkitError, match=words) as told:
        steps_of([one], 5)
    assert "sample 7" in str(told.value)

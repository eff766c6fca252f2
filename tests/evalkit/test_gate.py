"""The gate: each check passes, refuses and says "not enough", and no broken run gets through."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import stats, sweep
from evalkit.baseline import Baseline, ReferenceScore, Row, Variation, load_reference_scores
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, combine, judge, verdict_line
from evalkit.golden import Curve, GoldenValue, same_model
from evalkit.records import Check, Outcome, Run, Sample, StepRecord, Verdict

N, K = 400, 7
MARKS = {"target_sha": "t1", "draft_sha": "d1", "task_sha": "q1", "draft_width": "k", "temperature": 0.0}
NAN = float("nan")


@cache
def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def steps(i: int, k: int = K, share: float = 0.55) -> tuple[StepRecord, ...]:
    drawn = np.random.default_rng(i).binomial(k, share, 6)
    return tuple(StepRecord(k=k, accepted=int(a), accepted_trimmed=int(a)) for a in drawn)


def make_sample(i: int, **more: Any) -> Sample:
    known: dict[str, Any] = {
        "doc_id": i, "doc_hash": sha(f"d{i}"), "prompt_hash": sha(f"p{i}"), "question": "q", "gold": "1",
        "finish_reason": "stop", "steps": steps(i),
        "scores": {"strict-match": float(i % 20 != 0), "flexible-extract": 1.0},
    }  # fmt: skip
    known |= more
    known.setdefault("tokens", tokens_of(known["steps"]))
    return Sample(**known)


def tokens_of(made: tuple[StepRecord, ...]) -> int:
    """The tokens that these steps and a prefill give."""
    return 1 + sum(s.accepted_trimmed + (not s.cut) for s in made)


def make_run(n: int = N, change: Callable[[int], dict[str, Any]] | None = None, **more: Any) -> Run:
    samples = tuple(make_sample(i, **(change(i) if change else {})) for i in range(n))
    known: dict[str, Any] = {
        "id": "run-1", "complete": True, "provenance": {}, "samples": samples, "expected": n, "task_size": n,
        "cell": {"target": "gradeschool-m3", "draft": "dspark", "task": "gradeschool", "k": K, "quant": "fp8",
                 "temperature": 0.0, "shots": 0},
        "fingerprint": MARKS | {"quant": "fp8"}, "counters": {"verify_steps": verify_steps(samples)},
    }  # fmt: skip
    return Run(**(known | more))


def verify_steps(samples: tuple[Sample, ...]) -> int:
    return sum(step.k > 0 for s in samples if not s.error for step in s.steps)


def make_baseline(n: int = N, strict: Callable[[int], int] = lambda i: int(i % 20 != 0), **more: Any) -> Baseline:
    rows = {sha(f"d{i}")[:16]: Row(sha(f"p{i}")[:16], strict(i), 1) for i in range(n)}
    known: dict[str, Any] = {"run_id": "b", "target": "gradeschool-m3", "task": "gradeschool", "rows": rows,
                             "fingerprint": MARKS, "source": "b.json"}  # fmt: skip
    return Baseline(**(known | more))


def make_golden(length: float = 4.85, se: float | None = 0.03, k: int = K, **more: Any) -> Curve:
    value = GoldenValue(
        k=k, accepted_length=length, mode="thinking_off", source="g.yaml", se=se,
        clusters=None if se is None else 1000, fingerprint=None if se is None else MARKS | {"quant": "float32"},
    )  # fmt: skip
    value = dataclasses.replace(value, **more)
    return Curve(model="gradeschool-m3", source="g.yaml", values={value.mode: {k: value}})


def verdict(run: Run | None = None, **more: Any) -> Verdict:
    known: dict[str, Any] = {"baseline": make_baseline(), "golden": make_golden()}
    return judge(run or make_run(), **(known | more))


def named(v: Verdict, name: str) -> Check:
    return next(c for c in v.checks if c.name == name)


def swap(run: Run, i: int, **change: Any) -> Run:
    samples = list(run.samples)
    samples[i] = dataclasses.replace(samples[i], **change)
    return dataclasses.replace(run, samples=tuple(samples))


def test_a_sound_run_passes_and_says_what_it_compared() -> None:
    found = verdict()
    assert found.outcome is Outcome.PASS, found.checks
    accuracy, length = named(found, "accuracy"), named(found, "accepted length")
    assert accuracy.numbers["paired"] == N and "400 paired, 0 lost and 0 won" in accuracy.message
    assert length.numbers["samples"] == N and length.numbers["steps"] == 6 * N
    assert all(c.expected and c.found and c.message for c in found.checks)
    line = verdict_line(found)
    assert line.startswith("PASS ") and "0.9500 (380/400) vs baseline 0.9500: 0.0 pt" in line and "AL 4.8" in line
    json.dumps([dict(c.numbers) for c in found.checks], allow_nan=False)  # plain values, no NaN
    assert "\n" not in line


def test_k0_has_no_acceptance_to_judge() -> None:
    plain = make_run(change=lambda i: {"steps": ()})
    plain = dataclasses.replace(plain, cell={**plain.cell, "k": 0, "draft": "none"})
    found = judge(plain, baseline=make_baseline(), golden=None)
    assert found.outcome is Outcome.PASS
    assert "K=0" in found.notes[0]
    assert "AL" not in verdict_line(found)


# --- broken runs: each is refused, by the check that knows why


def dead(i: int) -> dict[str, Any]:
    return {"steps": (StepRecord(k=K, accepted=0, accepted_trimmed=0),) * 5}


BROKEN: dict[str, tuple[Callable[[], Run], str, str]] = {
    "lost questions": (lambda: make_run(200, expected=N, task_size=N), "completeness", "was to have 400"),
    "interrupted": (lambda: make_run(complete=False), "completeness", "was to have 400"),
    "no sample": (lambda: make_run(0), "completeness", "nothing to compare"),
    "duplicated sample": (
        lambda: swap(make_run(), 1, doc_id=0, doc_hash=sha("d0"), prompt_hash=sha("p0")),
        "completeness",
        "counted twice",
    ),
    "larger than its task": (lambda: make_run(task_size=300), "completeness", "another task"),
    "failed request": (lambda: swap(make_run(), 3, error="timeout", scores={}), "requests", "1 of 400"),
    "all failed": (lambda: make_run(change=lambda i: {"error": "x", "scores": {}}), "scores", "no score at all"),
    "truncated": (
        lambda: make_run(change=lambda i: {"finish_reason": "length" if i < 5 else "stop"}),
        "truncation",
        "5 of 400 answers",
    ),
    "NaN score": (lambda: swap(make_run(), 3, scores={"strict-match": NAN}), "scores", "strict-match nan"),
    "missing metric": (lambda: swap(make_run(), 3, scores={"flexible-extract": 1.0}), "scores", "strict-match None"),
    "score of 2": (lambda: swap(make_run(), 3, scores={"strict-match": 2.0}), "scores", "strict-match 2.0"),
    "wrong prompts": (
        lambda: make_run(change=lambda i: {"prompt_hash": sha(f"5-shot p{i}")}),
        "accuracy",
        "nothing comparable .*400 with another prompt",
    ),
    "one wrong prompt": (lambda: swap(make_run(), 3, prompt_hash=sha("x")), "accuracy", "only 399 of 400"),
    "another task": (
        lambda: make_run(change=lambda i: {"doc_hash": sha(f"other {i}")}),
        "accuracy",
        "400 of other questions",
    ),
    "answers in the wrong form": (
        lambda: make_run(change=lambda i: {"scores": {"strict-match": 0.0, "flexible-extract": float(i % 10 > 0)}}),
        "protocol",
        "not in the form",
    ),
    "worse": (
        lambda: make_run(change=lambda i: {"scores": {"strict-match": float(i % 20 > 1), "flexible-extract": 1.0}}),
        "accuracy",
        "20 lost and 0 won",
    ),
    "dead draft": (lambda: make_run(change=dead), "draft", "none accepted"),
    "draft that never proposed": (lambda: make_run(change=lambda i: {"steps": ()}), "draft", "0 verify steps"),
    "weak draft": (lambda: make_run(change=lambda i: {"steps": steps(i, K, 0.3)}), "accepted length", "ratio 0.6"),
    "forced": (lambda: swap(make_run(), 9, forced=True), "real acceptance", "forced, not verified"),
    "forced and silent": (
        lambda: make_run(change=lambda i: {"steps": (StepRecord(k=K, accepted=4 - i % 2, accepted_trimmed=3),) * 6}),
        "real acceptance",
        "looks forced",
    ),
    "one more accepted than proposed": (
        lambda: swap(make_run(), 3, steps=(StepRecord(k=K, accepted=8, accepted_trimmed=7),)),
        "acceptance",
        "accepted=8",
    ),
    "NaN in the steps": (
        lambda: swap(make_run(), 3, steps=(StepRecord(k=K, accepted=NAN, accepted_trimmed=0),)),  # type: ignore[arg-type]
        "acceptance",
        "accepted=nan",
    ),
    "NaN confidence": (
        lambda: swap(make_run(), 3, steps=(StepRecord(k=K, accepted=1, accepted_trimmed=1, confidence=(NAN,)),)),
        "acceptance",
        "confidence outside",
    ),
    "another K": (
        lambda: swap(make_run(), 3, steps=(StepRecord(k=9, accepted=1, accepted_trimmed=1),)),
        "acceptance",
        "9 drafts in a run at K=7",
    ),
    "drafts at K=0": (lambda: make_run(cell={"k": 0, "target": "t", "task": "q"}), "acceptance", "at K=0"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_run_is_refused(kind: str) -> None:
    make, name, words = BROKEN[kind]
    found = verdict(make())
    assert found.outcome is Outcome.FAIL
    check = named(found, name)
    assert check.outcome is Outcome.FAIL
    assert re.search(words, check.message), check.message
    line = verdict_line(found)
    assert line.startswith("FAIL ") and re.search(f"; fail by .*{name}", line)
    json.dumps([dict(c.numbers) for c in found.checks], allow_nan=False)


# --- what cannot be told is inconclusive, with what would tell


def test_a_subset_never_passes() -> None:
    found = verdict(make_run(task_size=1319), baseline=make_baseline(1319))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "a subset of 400 of 1319" in found.notes[0]
    assert named(found, "accuracy").outcome is Outcome.PASS


def test_too_few_samples() -> None:
    found = verdict(make_run(50), baseline=make_baseline(50))
    assert named(found, "completeness").outcome is Outcome.INCONCLUSIVE
    assert found.outcome is Outcome.INCONCLUSIVE


def test_missing_standards_are_never_a_pass() -> None:
    found = judge(make_run(), baseline=None, golden=None)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "no baseline" in named(found, "accuracy").message
    assert "evalkit golden record" in named(found, "accuracy").message
    assert "--k 7" in named(found, "accepted length").message
    assert "no comparable baseline" in verdict_line(found)


@pytest.mark.parametrize(("key", "value"), [("target_sha", "t2"), ("task_sha", "q2"), ("temperature", 1.0)])
def test_a_baseline_of_another_setting_is_refused_with_both_values(key: str, value: Any) -> None:
    run = make_run(fingerprint=MARKS | {key: value})
    check = named(verdict(run), "accuracy")
    fix = "run the target that the baseline was recorded of" if key == "target_sha" else "evalkit golden record"
    words = rf"nothing comparable .*another setting \({key} {MARKS[key]} / {value}\); fix: {fix}"
    assert check.outcome is Outcome.INCONCLUSIVE and re.search(words, check.message)
    asked = named(verdict(run, spec=GateSpec(demands=("accuracy",))), "accuracy")
    assert asked.outcome is Outcome.FAIL and "nothing was compared, and the gate demands it" in asked.message


def test_golden_without_this_k() -> None:
    check = named(verdict(golden=make_golden(3.0, k=3)), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "has K=3" in check.message and "--k 7" in check.message


@pytest.mark.parametrize("key", ["target_sha", "task_sha", "temperature", "draft_width"])
def test_golden_of_another_configuration_is_not_compared(key: str) -> None:
    golden = make_golden(fingerprint=MARKS | {key: "other"})
    check = named(verdict(golden=golden), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert f"not comparable with golden/g.yaml ({key} other /" in check.message


@pytest.mark.parametrize(("key", "value"), [
    ("verify", "block"), ("confidence_threshold", 0.5), ("verify_rows", 64),
])  # fmt: skip
def test_golden_of_another_verify_rule_is_not_compared(key: str, value: Any) -> None:
    plain = make_run()
    other = dataclasses.replace(plain, cell={**plain.cell, key: value})
    check = named(verdict(other), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE and f"({key} not recorded / {value})" in check.message
    same = verdict(other, golden=make_golden(fingerprint=MARKS | {key: value}))
    assert named(same, "accepted length").outcome is Outcome.PASS


def test_golden_of_another_quant_mode_or_draft_is_compared_and_told() -> None:
    found = verdict(make_run(fingerprint=MARKS | {"quant": "fp8", "draft_sha": "d2"}))
    assert found.outcome is Outcome.PASS
    assert "golden/g.yaml was recorded at quant float32, this run fp8" in found.notes
    assert "golden/g.yaml was recorded at draft_sha d1, this run d2" in found.notes


def test_few_discordant_questions_leave_it_open() -> None:
    run = make_run(change=lambda i: {"scores": {"strict-match": float(i % 20 != 0 and i not in (1, 2, 3, 4, 5)),
                                                "flexible-extract": 1.0}})  # fmt: skip
    check = named(verdict(run), "accuracy")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.numbers["lost"] == 5 and check.numbers["needed"] > N
    assert "is what so many can show" in check.message and "would settle this one" in check.message


def test_the_fourfold_table_and_the_questions_that_flipped_are_told() -> None:
    def change(i: int) -> dict[str, Any]:  # the baseline is wrong at multiples of 20
        right = i == 40 or (i % 20 != 0 and i not in (3, 17, 31, 33, 41, 55, 77))
        return {"scores": {"strict-match": float(right), "flexible-extract": 1.0}}

    found = named(verdict(make_run(change=change)), "accuracy")
    x = found.numbers
    assert found.outcome is not Outcome.PASS and "; lost documents 3, 17, 31, 33, 41 and 2 more" in found.message
    assert x["lost_documents"] == [3, 17, 31, 33, 41, 55, 77] and x["won_documents"] == [40]
    assert (x["both_right"], x["both_wrong"]) == (N - 20 - 7, 19)
    assert (x["mcnemar_exact"], x["mcnemar_midp"]) == pytest.approx((0.0703, 0.0391), abs=5e-5)  # 7 lost and 1 won


def test_length_near_the_margin_leaves_it_open() -> None:
    base = named(verdict(), "accepted length").numbers["accepted_length"]
    check = named(verdict(golden=make_golden(base / 0.955)), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.numbers["needed"] is None and "the golden value itself is too uncertain" in check.message
    sure = named(verdict(golden=make_golden(base / 0.955, se=0.0001)), "accepted length")
    assert sure.outcome is Outcome.INCONCLUSIVE
    assert sure.numbers["needed"] > N and "samples would settle it" in sure.message


def test_assumed_uncertainty_is_shown_as_such() -> None:
    found = verdict(golden=make_golden(se=None))
    check = named(found, "accepted length")
    assert check.numbers["golden_se_assumed"] is True
    assert "curve only, uncertainty assumed" in check.message
    assert any("curve only" in n and "2.5 %" in n for n in found.notes)


def test_too_good_is_a_warning() -> None:
    found = verdict(golden=make_golden(4.0))
    assert found.outcome is Outcome.PASS
    assert any("too good" in n for n in found.notes)


def test_one_document_shows_no_spread() -> None:
    found = verdict(make_run(1), baseline=make_baseline(1))
    assert named(found, "accepted length").outcome is Outcome.INCONCLUSIVE


# --- acceptance by position, forced signs, conditions of a golden


def counts_of(run: Run, shift: int = 0) -> tuple[int, ...]:
    """The run's histogram, 30 times as many steps; with every step `shift` drafts better, as far as K goes."""
    drawn = np.bincount([min(K, t.accepted + shift) for s in run.samples for t in s.steps], minlength=K + 1)
    return tuple(int(30 * n) for n in drawn)


def with_histogram(shift: int = 0, reverse: bool = False) -> Curve:
    counts = counts_of(make_run(), shift)
    if reverse:  # the same mean of another shape: all steps at two values
        low, total = int(np.dot(counts, range(K + 1)) // sum(counts)), int(np.dot(counts, range(K + 1)))
        high = total - low * sum(counts)
        counts = tuple(sum(counts) - high if a == low else high if a == low + 1 else 0 for a in range(K + 1))
    length = 1 + float(np.dot(counts, range(K + 1))) / sum(counts)
    return make_golden(length, se=0.01, histogram=counts)


@pytest.mark.parametrize(
    ("golden", "outcome", "words"),
    [
        (with_histogram(), Outcome.PASS, "0.000 tokens a step lost"),
        (with_histogram(1), Outcome.FAIL, "tokens a step lost"),
        (with_histogram(reverse=True), Outcome.FAIL, "Wasserstein-1"),
    ],
)
def test_accepted_drafts_distribution_is_a_check_of_its_own(golden: Curve, outcome: Outcome, words: str) -> None:
    found = verdict(golden=golden)
    check = named(found, "accepted drafts distribution")
    assert check.outcome is outcome, check.message
    assert words in check.message and "margin 0.2" in check.message
    x = check.numbers
    assert x["wasserstein"] == pytest.approx(x["lost"] + x["gained"]) and x["source"] == "histogram"


def test_same_length_other_shape_is_only_seen_by_the_distribution() -> None:
    found = verdict(golden=with_histogram(reverse=True))
    assert named(found, "accepted length").outcome is Outcome.PASS
    assert found.outcome is Outcome.FAIL


def imported_curve(lengths: dict[int, float], **more: Any) -> Curve:
    values = {
        k: GoldenValue(k=k, accepted_length=v, mode="thinking_off", source="i.yaml", **more) for k, v in lengths.items()
    }
    return Curve(model="gradeschool-m3", source="i.yaml", values={"thinking_off": values})


def test_a_curve_without_histogram_is_compared_by_what_it_implies_or_says_why_not() -> None:
    unusable = verdict(golden=imported_curve({5: 3.59, 6: 3.57, 7: 4.85}))
    assert any("unusable for positions: the curve falls from 3.59 at K=5" in n for n in unusable.notes)
    implied = verdict(golden=imported_curve({3: 3.7, 7: 4.85}))
    assert any("distribution" in n or "positions" in n for n in implied.notes) or named(
        implied, "accepted drafts distribution"
    )
    sharp = verdict(golden=imported_curve({3: 2.2, 7: 4.4}), spec=GateSpec(assumed_golden_se=0.004))
    assert any("unusable" in n for n in sharp.notes)  # 1.2 in the first three positions, 2.2 in the last four
    lost = verdict(golden=imported_curve({3: 4.0, 7: 5.9}), spec=GateSpec(assumed_golden_se=0.004))
    check = named(lost, "accepted drafts distribution")
    assert check.outcome is Outcome.FAIL and check.numbers["groups"] == [[1, 3], [4, 7]]


def test_c41_c51_raw_trimmed_and_per_forward_are_told_apart() -> None:
    cut = (StepRecord(k=K, accepted=5, accepted_trimmed=3, cut="stop"), StepRecord(k=0, accepted=0, accepted_trimmed=0))
    found = verdict(make_run(change=lambda i: {"steps": (*steps(i), *cut)}))
    assert any("after trimming" in n for n in found.notes)
    assert any("400 steps had no draft" in n and "tokens a forward pass" in n for n in found.notes)


def test_c45_no_acceptance_on_a_speculative_run_is_a_fail() -> None:
    found = verdict(make_run(change=lambda i: {"steps": ()}))
    assert found.outcome is Outcome.FAIL and named(found, "draft").outcome is Outcome.FAIL


def test_a_limit_of_one_token_leaves_no_verify_step_and_blames_no_draft() -> None:
    short = make_run(change=lambda i: {"tokens": 1, "steps": (), "finish_reason": "length" if i % 2 else "stop"})
    check = named(verdict(short), "draft")
    assert check.outcome is Outcome.INCONCLUSIVE and "contributes nothing" not in check.message
    assert check.message.startswith("no verify step: the token limit ends") and "raise --max-tokens" in check.message
    longer = named(verdict(swap(short, 3, tokens=2)), "draft")
    assert longer.outcome is Outcome.FAIL and "contributes nothing" in longer.message


def test_c55_a_draft_that_contributes_nothing() -> None:
    few = make_run(change=lambda i: {"steps": (StepRecord(k=K, accepted=int(i % 50 == 0), accepted_trimmed=0),) * 6})
    check = named(verdict(few), "draft")
    assert check.outcome is Outcome.FAIL
    assert "contributes nothing (wrong method, checkpoint or template)" in check.message


def test_c56_says_how_long_the_answers_were() -> None:
    longest = max(s.tokens for s in make_run().samples)
    assert any(f"answers of up to {longest} tokens" in n for n in verdict().notes)


def test_c59_a_length_on_a_golden_number_is_remarked_and_with_a_constant_rate_it_fails() -> None:
    run = make_run()
    length = named(verdict(run), "accepted length").numbers["accepted_length"]
    near = verdict(run, golden=make_golden(round(length, 3)))
    assert near.outcome is Outcome.PASS and any("golden number" in n for n in near.notes)
    own = verdict(run, golden=make_golden(length, run_id=run.id))
    assert not any("golden number" in n for n in own.notes)

    def drawn(i: int) -> dict[str, Any]:
        kept = (np.random.default_rng(i).random((6, K)) < 0.8).cumprod(axis=1).sum(axis=1)
        return {"steps": tuple(StepRecord(k=K, accepted=int(a), accepted_trimmed=int(a)) for a in kept)}

    forced = make_run(change=drawn)
    length = named(verdict(forced), "accepted length").numbers["accepted_length"]
    check = named(verdict(forced, golden=make_golden(round(length, 3))), "real acceptance")
    assert check.outcome is Outcome.FAIL and "one conditional rate at every position" in check.message


def test_c62_a_golden_of_another_checkpoint_is_not_compared() -> None:
    golden = make_golden(fingerprint=MARKS | {"quant": "fp8", "target_sha": "the nvfp4 checkpoint"})
    check = named(verdict(golden=golden), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE and "target_sha the nvfp4 checkpoint / t1" in check.message


def test_c91_a_golden_at_temperature_1_is_not_compared_with_a_greedy_run() -> None:
    for golden in (imported_curve({7: 4.85}, temperature=1.0), make_golden(fingerprint=MARKS | {"temperature": 1.0})):
        check = named(verdict(golden=golden), "accepted length")
        assert check.outcome is Outcome.INCONCLUSIVE and "temperature 1" in check.message
    assert named(verdict(golden=imported_curve({7: 4.85}, temperature=0.0)), "accepted length").outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("data", "same"), [("coding", False), ("gradeschool", True), ("", True), ("Grade-School test", True)]
)
def test_a_curve_that_says_it_is_of_other_data_is_not_compared(data: str, same: bool) -> None:
    """On prompts of another kind a sound draft has another length, and a broken one may have the same."""
    check = named(verdict(golden=imported_curve({7: 4.85}, temperature=0.0, dataset=data)), "accepted length")
    assert check.outcome is (Outcome.PASS if same else Outcome.INCONCLUSIVE)
    assert same or "(data coding / gradeschool)" in check.message
    asked = verdict(golden=imported_curve({7: 4.85}, dataset=data), spec=GateSpec(demands=("length",)))
    assert named(asked, "accepted length").outcome is (Outcome.PASS if same else Outcome.FAIL)


# --- run-to-run variation


def varying(excess: float, runs: int = 5) -> Variation:
    names = tuple(f"r{i}" for i in range(runs))
    return Variation(runs=names, scores=(0.95,) * runs, sd=excess, expected_sd=0.0, excess_sd=excess)


def test_c35_run_to_run_variation_widens_the_decision() -> None:
    plain = named(verdict(), "accuracy")
    assert plain.outcome is Outcome.PASS
    zero = named(verdict(baseline=make_baseline(variation=varying(0.0))), "accuracy")
    assert zero.outcome is Outcome.PASS and "run-to-run sd 0 pt of 5 runs" in zero.message
    assert zero.numbers["p"] == plain.numbers["p"] and zero.numbers["interval"] == plain.numbers["interval"]
    wide = named(verdict(baseline=make_baseline(variation=varying(0.005))), "accuracy")
    assert wide.outcome is Outcome.INCONCLUSIVE and wide.numbers["p"] > 0.05
    assert "run-to-run sd 0.5 pt of 5 runs, 0.5 pt beyond single answers, added to the error of both" in wide.message
    (low, high), (before, after) = wide.numbers["interval"], plain.numbers["interval"]
    assert low < before < after < high


# --- a sweep: several runs in one verdict


def named_run(name: str, lost: int) -> Verdict:
    run = make_run(change=lambda i: {"scores": {"strict-match": float(i % 20 != 0 and i % 397 >= lost),
                                                "flexible-extract": 1.0}})  # fmt: skip
    return verdict(dataclasses.replace(run, id=name))


def test_a_sweep_passes_a_run_only_by_its_adjusted_p() -> None:
    alone = verdict()
    (p,) = {max(sweep.p_values(alone).values())}
    assert alone.outcome is Outcome.PASS and 0.0001 < p <= 0.05
    many = sweep.adjust([dataclasses.replace(alone, run_id=f"r{i}") for i in range(9)])
    rows = sweep.rows(many)
    assert [r.adjusted for r in rows] == pytest.approx([min(1, 9 * p)] * 9) and rows[0].p == p
    assert 9 * p > 0.05 and {v.outcome for v in many} == {Outcome.INCONCLUSIVE}
    check = named(many[0], "sweep")
    assert "Holm over 9 runs" in check.message and check.numbers["p_run"] == p
    assert sweep.combined(many) is Outcome.INCONCLUSIVE
    (single,) = sweep.adjust([alone])
    assert single.outcome is Outcome.PASS and sweep.combined([single]) is Outcome.PASS


def test_a_sweep_with_a_failed_run_fails_and_takes_no_alarm_back() -> None:
    good, bad = verdict(), named_run("bad", 60)
    assert bad.outcome is Outcome.FAIL
    found = sweep.adjust([good, bad])
    assert sweep.combined(found) is Outcome.FAIL and found[1].outcome is Outcome.FAIL
    empty = dataclasses.replace(verdict(make_run(0)), run_id="empty")
    rows = sweep.rows(sweep.adjust([good, empty]))
    assert (rows[1].p, rows[1].accuracy_p, rows[1].adjusted) == (None, None, 1.0)
    with pytest.raises(EvalkitError, match="run run-1 is given twice"):
        sweep.adjust([good, good])


def test_runs_in_a_fixed_order_pass_at_the_whole_alpha_up_to_the_first_that_does_not() -> None:
    alone = verdict()
    (p,) = {max(sweep.p_values(alone).values())}
    many = [dataclasses.replace(alone, run_id=f"r{i}") for i in range(9)]
    assert 9 * p > 0.05, "Holm would pass none of them"
    found = sweep.adjust(many, in_order=True)
    assert {v.outcome for v in found} == {Outcome.PASS} and [r.adjusted for r in sweep.rows(found)] == [p] * 9
    assert "number 9 of 9 in a fixed order, all before it pass" in named(found[-1], "sweep").message

    many[4] = dataclasses.replace(named_run("open", 5), run_id="r4")
    assert many[4].outcome is Outcome.INCONCLUSIVE
    found = sweep.adjust(many, in_order=True)
    outcomes = [named(v, "sweep").outcome for v in found]
    assert outcomes == [Outcome.PASS] * 4 + [Outcome.INCONCLUSIVE] * 5
    assert "where the sequence ends: number 5 of 9" in named(found[4], "sweep").message
    assert "r4 before it did not pass" in named(found[5], "sweep").message and found[5].outcome is Outcome.INCONCLUSIVE


def test_any_reason_not_to_pass_ends_a_fixed_order_and_an_alarm_stays() -> None:
    good, bad = verdict(), named_run("bad", 60)
    small = verdict(make_run(0))  # nothing was tested
    cut = verdict(
        make_run(change=lambda i: {"finish_reason": "length"} if i < 20 else {})
    )  # its tests pass, it does not
    for first in (bad, small, cut):
        first = dataclasses.replace(first, run_id="first")
        found = sweep.adjust([first, good], in_order=True)
        assert [v.outcome for v in found] == [first.outcome, Outcome.INCONCLUSIVE]
        assert sweep.combined(found) is Outcome.FAIL
    with pytest.raises(EvalkitError, match="given twice"):
        sweep.adjust([good, good], in_order=True)


# --- published scores


def flash(n_wrong: int, **cell: Any) -> Run:
    more = {"target": "minimax-m3.1-flash", "task": "gsm8k_inferencex", "k": 0, "quant": "fp8", "shots": 5}
    return make_run(
        1319,
        change=lambda i: {"scores": {"strict-match": float(i >= n_wrong), "flexible-extract": 1.0}, "steps": ()},
        cell=more | cell,
    )


def test_published_score_is_shown_but_not_compared_elsewhere() -> None:
    found = verdict(references=load_reference_scores())
    assert found.outcome is Outcome.PASS
    notes = [n for n in found.notes if "0.9598 (1266/1319)" in n]
    assert notes == [
        "published sglang strict-match 0.9598 (1266/1319) is not comparable: "
        "it is of target minimax-m3.1-flash, this run of gradeschool-m3, "
        "and it is of task gsm8k_inferencex, this run of gradeschool, and it has 5 shots, this run 0"
    ]


@pytest.mark.parametrize(
    ("n_wrong", "outcome", "p"),
    [(42, Outcome.PASS, 0.0001), (60, Outcome.PASS, None), (75, Outcome.INCONCLUSIVE, None), (150, Outcome.FAIL, None)],
)
def test_published_score_of_the_same_target(n_wrong: int, outcome: Outcome, p: float | None) -> None:
    found = judge(flash(n_wrong), baseline=None, golden=None, references=load_reference_scores())
    check = named(found, "reference sglang")
    assert check.outcome is outcome, check.message
    assert check.numbers["reference_n"] == 1319 and check.numbers["paired"] == 0
    if p is not None:
        assert check.numbers["p"] == pytest.approx(p, abs=1e-4)
    assert [c.name for c in found.checks if c.name.startswith("reference")] == ["reference sglang"]


def test_shots_and_task_must_match_the_published_score() -> None:
    (sglang,) = [r for r in load_reference_scores() if r.gates]
    assert "5 shots, this run 0" in sglang.not_comparable(flash(42, shots=0))
    assert "task" in sglang.not_comparable(flash(42, task="gradeschool"))
    assert isinstance(sglang, ReferenceScore) and not sglang.not_comparable(flash(42))


def test_a_part_of_the_data_or_other_data_is_not_the_task_that_a_score_was_published_of() -> None:
    """Half of the questions, given as --data, is a whole run of its own; it is no run of the published task."""
    (sglang,) = [r for r in load_reference_scores() if r.gates]
    assert "1319 questions of gsm8k_inferencex, this run of other data (700 questions)" in sglang.not_comparable(
        dataclasses.replace(flash(42), task_size=700)
    )
    for documents, same in (({"sha256": "a", "pinned": "a"}, True), ({"sha256": "a", "pinned": "b"}, False),
                            ({"sha256": "a"}, True)):  # fmt: skip
        run = dataclasses.replace(flash(42), provenance={"documents": documents})
        assert ("of other data" not in sglang.not_comparable(run)) is same


# --- the specification, the outcome


@pytest.mark.parametrize(
    "bad",
    [{"alpha": 0}, {"alpha": 1}, {"accuracy_margin": NAN}, {"length_margin": -0.1}, {"max_failed": NAN},
     {"max_truncated": 1.0}, {"min_samples": 0}, {"suspicious_ratio": NAN}],
)  # fmt: skip
def test_a_senseless_spec_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(EvalkitError, match="gate: "):
        GateSpec(**bad)


def test_a_run_without_k_is_refused() -> None:
    with pytest.raises(EvalkitError, match="K=None"):
        verdict(make_run(cell={}))


@given(st.lists(st.sampled_from(list(Outcome)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_outcome_is_the_worst(outcomes: list[Outcome]) -> None:
    found = combine(outcomes)
    if not outcomes or Outcome.FAIL in outcomes:
        assert found is Outcome.FAIL
    elif Outcome.INCONCLUSIVE in outcomes:
        assert found is Outcome.INCONCLUSIVE
    else:
        assert found is Outcome.PASS


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_more_losses_never_help(data: st.DataObject) -> None:
    order = [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS]
    lost = data.draw(st.integers(0, 40))
    more = data.draw(st.integers(lost, 41))

    def outcome(count: int) -> Outcome:
        scores = {True: {"strict-match": 0.0}, False: {"strict-match": 1.0}}
        run = make_run(120, change=lambda i: {"scores": scores[i < count], "steps": ()}, cell={"k": 0})
        return named(judge(run, baseline=make_baseline(120, lambda i: 1), golden=None), "accuracy").outcome

    assert order.index(outcome(more)) <= order.index(outcome(lost))


# --- simulated error rates


@pytest.mark.stat
def test_the_gate_passes_a_run_at_the_margin_at_most_alpha_of_the_time() -> None:
    """Whole gate at n=400 with wide margins (5 points, 5 %), truth exactly at the accuracy margin.

    Seed 21, 300 runs; nominal alpha 0.05. The test allows 0.05 + 4 simulation standard errors = 0.10, so a
    correct gate fails it with a chance below 1e-4 over seeds, and never on this seed.
    """
    rng, runs, n, spec = np.random.default_rng(21), 300, 400, GateSpec(accuracy_margin=0.05)
    baseline = make_baseline(n, lambda i: int(i % 10 != 0))
    template = make_run(n)
    passed = failed = 0
    for _ in range(runs):
        lost, won = rng.random(n) < 0.07 / 0.9, rng.random(n) < 0.02 / 0.1  # 7 % lost, 2 % won: -5 points
        right = [(i % 10 != 0 and not lost[i]) or (i % 10 == 0 and won[i]) for i in range(n)]
        samples = tuple(
            dataclasses.replace(s, scores={"strict-match": float(r)})
            for s, r in zip(template.samples, right, strict=True)
        )
        found = judge(
            dataclasses.replace(template, samples=samples), baseline=baseline, golden=make_golden(), spec=spec
        )
        passed += found.outcome is Outcome.PASS
        failed += found.outcome is Outcome.FAIL
    limit = 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert passed / runs <= limit
    assert failed / runs <= limit
    assert passed + failed < runs / 2  # at the margin most runs are told "not enough data"


@pytest.mark.stat
def test_accepted_length_at_the_margin_passes_at_most_alpha_of_the_time() -> None:
    """Golden and run both drawn, 120 prompts each, truth 5 % below golden.

    Seed 22, 4000 pairs; the allowance of 4 simulation standard errors is 0.014. Works on the two functions that
    the check consists of, since building records would take most of the time.
    """
    rng, runs, m, mean = np.random.default_rng(22), 4000, 120, 4.0

    def estimate(length: float) -> stats.Estimate:
        sizes = np.maximum(1, rng.gamma(4, 3, m)).astype(int)
        share = rng.beta(6, 6 * (7 - (length - 1)) / (length - 1), m)
        found = stats.clustered_ratio(rng.binomial(7 * sizes, share), sizes)
        assert found.se is not None
        return stats.Estimate(value=1 + found.ratio, se=found.se, df=found.clusters - 1)

    tests = [stats.ratio_test(estimate(0.95 * mean), estimate(mean), 0.95) for _ in range(runs)]
    passed = np.mean([t.p_above <= 0.05 for t in tests])
    failed = np.mean([t.p_below <= 0.05 for t in tests])
    assert passed <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert failed <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert passed > 0.03  # and it is not needlessly deaf


def test_the_fix_for_another_setting_is_not_the_record_command_of_this_one() -> None:
    run = make_run(
        cell={"target": "t", "draft": "dspark", "task": "gsm8k", "k": K, "quant": "fp8", "data": "mine.jsonl"}
    )
    check = named(judge(run, baseline=None, golden=None), "accuracy")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "--baseline THAT_RUN" in check.message
    other = make_golden(fingerprint={**MARKS, "task_sha": "another"})
    found = named(judge(run, baseline=None, golden=other), "accepted length")
    assert "--golden FILE" in found.message


def test_a_golden_of_another_model_is_not_compared() -> None:
    """Nor are its distribution and positions, and where the golden is demanded that is a fail."""
    other = dataclasses.replace(make_golden(4.0), model="minimaxm3.1flash")
    check = named(verdict(golden=other), "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE and "of minimaxm3.1flash, this run of gradeschool-m3" in check.message
    demanded = verdict(golden=other, spec=GateSpec(demands=("length",)))
    assert named(demanded, "accepted length").outcome is Outcome.FAIL and demanded.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("curve", "target", "same"),
    [
        ("minimaxm3.1flash", "MiniMaxAI/MiniMax-M3.1-Flash", True),
        ("gradeschool-m3", "gradeschool-m3", True),
        ("minimaxm3", "MiniMaxAI/MiniMax-M3.1-Flash", False),
        ("m3", "/models/m3/", True),
        ("", "", False),
    ],
)
def test_a_model_is_known_by_its_letters_and_digits(curve: str, target: str, same: bool) -> None:
    assert same_model(curve, target) is same

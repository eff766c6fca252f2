"""Checks of a specification: floor, positions, losslessness, paths, age, forced runs, demands; each seen to fail."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from evalkit.acceptance import told_forced, too_even
from evalkit.baseline import ReferenceScore
from evalkit.chances import p_value
from evalkit.errors import EvalkitError
from evalkit.fingerprint import docs_sha
from evalkit.gate import GateSpec, judge
from evalkit.gate.figures import Published, judge_figures
from evalkit.gate.floor import passing_count
from evalkit.gate.limits import DEMANDS, Against, PathShare
from evalkit.golden import GoldenValue
from evalkit.lossless import compare, first_difference, law_p
from evalkit.records import Check, Outcome, Run, StepRecord, Verdict
from tests.evalkit.test_gate import K, N, counts_of, make_baseline, make_golden, make_run, make_sample, named, verdict

PASS, FAIL, OPEN = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
NOW = "2026-11-30T12:00:00+00:00"


def checked(name: str, spec: GateSpec, run: Run | None = None, **more: Any) -> Check:
    return named(verdict(run, spec=spec, **more), name)


def plain_of(run: Run, **change: Any) -> Run:
    """The same run at K=0, with the same texts unless `change` of the samples says otherwise."""
    cell = {**run.cell, "k": 0, "draft": "none"}
    samples = tuple(dataclasses.replace(s, steps=()) for s in run.samples)
    known = {"id": "plain", "samples": samples, "counters": {"verify_steps": 0}}
    return dataclasses.replace(run, cell={**cell, **change.pop("cell", {})}, **(known | change))


def full_run(**told: Any) -> Run:
    """A run that records all that texts must share."""
    names = ("tokenizer_sha", "prompts_sha", "stop", "max_tokens", "top_p", "top_k")
    return make_run(fingerprint={**make_run().fingerprint, **dict.fromkeys(names, 1), "quant": "fp8", **told})


def with_texts(run: Run, text: str = "abc", **more: Any) -> Run:
    return dataclasses.replace(run, samples=tuple(dataclasses.replace(s, text=text, **more) for s in run.samples))


def scored(n: int, right: int) -> Run:
    return make_run(n, change=lambda i: {"scores": {"strict-match": float(i < right), "flexible-extract": 1.0}})


# --- floor


@pytest.mark.parametrize(("floor", "outcome"), [(0.90, PASS), (0.94, OPEN), (0.99, FAIL)])
def test_c36_c37_the_floor_is_a_test_of_a_count(floor: float, outcome: Outcome) -> None:
    found = checked("floor", GateSpec(floor=floor))
    assert found.outcome is outcome and f"of {N} would show it" in found.message
    assert found.numbers["compared"] == N and found.numbers["n"] == N


def test_the_smallest_count_that_passes_a_floor_passes_and_the_one_below_does_not() -> None:
    for n, floor in ((1319, 0.90), (500, 0.92), (50, 0.5)):
        needed = passing_count(n, floor, 0.05)
        assert needed is not None and needed > floor * n
        for count, outcome in ((needed, PASS), (needed - 1, OPEN)):
            run = make_run(
                n, change=lambda i, c=count: {"scores": {"strict-match": float(i < c), "flexible-extract": 1.0}}
            )
            assert checked("floor", GateSpec(floor=floor), run, baseline=None).outcome is outcome
    assert passing_count(3, 0.9, 0.05) is None


def test_c38_a_floor_far_below_is_said_to_be_blind() -> None:
    assert any("it is blind to a loss of" in n for n in verdict(spec=GateSpec(floor=0.5)).notes)


def test_c66_a_broken_baseline_is_a_finding_of_its_own() -> None:
    low = make_baseline(strict=lambda i: int(i % 3 == 0))
    found = verdict(make_run(change=lambda i: {"scores": {"strict-match": float(i % 6 == 0), "flexible-extract": 1.0}}),
                    baseline=low, spec=GateSpec(floor=0.8))  # fmt: skip
    assert named(found, "baseline floor").outcome is FAIL and named(found, "accuracy").outcome is FAIL


# --- positions


def histogram_golden(shift: int = 0) -> Any:
    counts = counts_of(make_run(), shift)
    length = 1 + float(np.dot(counts, range(K + 1))) / sum(counts)
    return make_golden(length, se=0.01, histogram=counts)


def test_every_position_is_compared_and_the_worst_is_named() -> None:
    found = checked("accept rate by position", GateSpec(), golden=histogram_golden())
    assert found.outcome is PASS and found.numbers["compared"] == N and len(found.numbers["here"]) == K
    worse = checked("accept rate by position", GateSpec(), golden=histogram_golden(1))
    assert worse.outcome is FAIL and f"at position {worse.numbers['worst']}" in worse.message


@pytest.mark.parametrize("name", ["accept rate by position", "accepted drafts distribution"])
def test_what_positions_leave_open_says_how_many_documents_would_settle_it(name: str) -> None:
    spec, few = GateSpec(distribution_margin=0.02), make_run(30)
    counts = counts_of(few)
    golden = make_golden(1 + float(np.dot(counts, range(K + 1))) / sum(counts), se=0.01, histogram=counts)
    found = named(verdict(few, golden=golden, spec=spec), name)
    needed = found.numbers["needed"]
    assert found.outcome is OPEN and f"about {needed} documents would settle it" in found.message and needed > 30
    many = make_run(needed, change=lambda i: {"steps": few.samples[i % 30].steps})
    assert named(verdict(many, golden=golden, spec=spec), name).outcome is PASS
    less = make_run(30 * (needed // 30 - 1), change=lambda i: {"steps": few.samples[i % 30].steps})
    assert named(verdict(less, golden=golden, spec=spec), name).outcome is OPEN
    unsure = make_golden(golden.values["thinking_off"][K].accepted_length, se=0.2, histogram=counts)
    if name == "accept rate by position":
        words = named(verdict(few, golden=unsure, spec=spec), name).message
        assert "golden is too uncertain, for more documents to settle it" in words


# --- losslessness


def test_c71_c72_texts_of_plain_decoding_pass_and_others_are_named() -> None:
    run = with_texts(full_run(quant="float32", dtype="float32"))
    assert named(verdict(run, plain=plain_of(run)), "lossless").outcome is PASS
    other = dataclasses.replace(run, samples=(dataclasses.replace(run.samples[0], text="abX"), *run.samples[1:]))
    found = named(verdict(other, plain=plain_of(run)), "lossless")
    assert found.outcome is FAIL and "document 0 at character 2 ('X' / 'c', gap not recorded)" in found.message
    assert found.numbers["divergences"] == 1 and found.numbers["compared"] == N


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Told(type(make_sample(0))):
    """A sample of an engine that tells each token's text."""

    pieces: tuple[str, ...] = ()


def told(i: int, pieces: tuple[str, ...], gaps: tuple[float, ...] = ()) -> Any:
    known = {f.name: getattr(make_sample(i), f.name) for f in dataclasses.fields(make_sample(i))}
    return Told(**{**known, "text": "".join(pieces), "gaps": gaps, "pieces": pieces})


@pytest.mark.parametrize(("gaps", "outcome", "words"), [
    ((9.0, 0.02, 9.0), PASS, "near-ties"), ((9.0, 3.0, 9.0), FAIL, "rounding does not explain"),
    ((), OPEN, "gap not recorded"),
])  # fmt: skip
def test_c72_c73_a_near_tie_is_apart_from_a_bug(gaps: tuple[float, ...], outcome: Outcome, words: str) -> None:
    run = full_run()
    here = dataclasses.replace(run, samples=tuple(told(i, ("a", "B", "c")) for i in range(N)))
    plain = plain_of(dataclasses.replace(run, samples=tuple(told(i, ("a", "b", "c"), gaps) for i in range(N))))
    found = named(verdict(here, plain=plain), "lossless")
    assert found.outcome is outcome and words in found.message and "at token 1 ('B' / 'b'" in found.message
    assert found.numbers["flips_per_token"] == pytest.approx(N / sum(s.tokens for s in run.samples))


def test_a_plain_run_of_another_setting_is_refused_with_the_fields() -> None:
    run = with_texts(full_run())
    spec = GateSpec(demands=("lossless",))
    other = plain_of(run, fingerprint={**run.fingerprint, "quant": "nvfp4", "shots": 5})
    found = checked("lossless", spec, run, plain=other)
    assert found.outcome is FAIL and "quant fp8 / nvfp4" in found.message and "shots 0 / 5" in found.message
    assert "no plain run" in checked("lossless", spec, run).message
    assert "a run at K=7" in checked("lossless", spec, run, plain=run).message
    half = dataclasses.replace(plain_of(run), samples=plain_of(run).samples[: N // 2])
    assert "only 200 of 400" in checked("lossless", spec, run, plain=half).message


def test_first_difference_and_equal_heads() -> None:
    assert (
        first_difference("abc", "abc") is None
        and first_difference("abc", "ab") == 2
        and first_difference("", "") is None
    )
    assert not compare([(make_sample(0), make_sample(0))]).divergences


@pytest.mark.stat
def test_one_law_is_seldom_refused_and_another_is_seen() -> None:
    """Seed 5, 300 pairs of runs of one law: p under 0.05 in at most 0.05 + 4 errors = 0.10 of them. A law with a tenth
    of its tokens replaced is refused at 0.001."""
    rng = np.random.default_rng(5)

    def text(shift: float) -> str:
        return "".join(rng.choice(list("abcd"), 40, p=[0.4 - shift, 0.3, 0.2, 0.1 + shift]))

    def pairs(shift: float, n: int) -> list:
        return [tuple(dataclasses.replace(make_sample(i), text=text(x)) for x in (shift, 0.0)) for i in range(n)]

    found = [law_p(pairs(0.0, 20)) for _ in range(100)]
    assert np.mean([p <= 0.05 for p in found if p is not None]) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 100)
    p = law_p(pairs(0.1, 60))
    assert p is not None and p <= 0.001


# --- paths and age


@pytest.mark.parametrize(("counters", "outcome", "words"), [
    ({"mono_steps": 95, "decode_steps": 100}, PASS, "95.0 % of 100 decode steps"),
    ({"mono_steps": 3, "decode_ticks": 100}, FAIL, "3.0 % of 100"), ({"mono_share": 0.5}, FAIL, "50.0 %"),
    ({"mono_steps": 101, "decode_steps": 100}, FAIL, "do not say"), ({}, FAIL, "do not say how many steps ran on mono"),
    ({"mono_share": float("nan")}, FAIL, "do not say"), ({"mono_steps": 0, "decode_steps": 0}, FAIL, "do not say"),
])  # fmt: skip
def test_a_path_must_have_served(counters: dict[str, Any], outcome: Outcome, words: str) -> None:
    spec = GateSpec(paths=(PathShare(name="mono", share=0.9),))
    found = checked("path mono", spec, make_run(counters=counters))
    assert found.outcome is outcome and words in found.message


@pytest.mark.parametrize(("when", "outcome"), [
    ("2026-11-30T09:00:00+00:00", PASS), ("2026-11-29T11:00:00+00:00", FAIL), ("2026-12-02T12:00:00+00:00", FAIL),
    ("yesterday", FAIL), ("2026-11-30T09:00:00", FAIL), (None, FAIL),
])  # fmt: skip
def test_yesterdays_run_fails_by_its_age(when: str | None, outcome: Outcome) -> None:
    run = make_run(provenance={"finished": when} if when else {})
    found = named(verdict(run, spec=GateSpec(max_age_days=1), now=NOW), "age")
    assert found.outcome is outcome


# --- forced runs: four detectors


@pytest.mark.parametrize("facts", [
    {"env": {"SGLANG_SIMULATE_ACC_LEN": "4.04"}}, {"flags": {"synthetic_acceptance_length": 4.04}},
    {"command": ["serve", "--spec-decode-acceptance-length", "4.04"]},
    {"command": ["serve", "--spec-decode-acceptance-length=4"]},
    {"env": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": 3}},
    {"flags": {"rejection-sample-method": "synthetic"}},
    {"served": {"pages": {"/server_info": {"speculative_config": {"rejection_sample_method": "synthetic"}}}}},
    {"command": ["serve", "--rejection-sample-method", "synthetic", "--port", "8000"]},
])  # fmt: skip
def test_c59_c64_a_flag_that_forces_acceptance_is_refused(facts: dict[str, Any]) -> None:
    found = named(verdict(make_run(provenance=facts)), "real acceptance")
    assert found.outcome is FAIL and found.numbers["detectors"] == ["flag"], found


@pytest.mark.parametrize("facts", [
    {"env": {"SGLANG_SIMULATE_ACC_LEN": "-1"}}, {"flags": {"synthetic_acceptance_length": None}},
    {"command": ["serve"]}, {"flags": {"rejection-sample-method": "standard"}},
    {"command": ["serve", "--rejection-sample-method", "block", "--served-model-name", "synthetic"]},
    {"notes": ["acceptance is real"]},
])  # fmt: skip
def test_a_flag_that_is_off_says_nothing(facts: dict[str, Any]) -> None:
    assert told_forced(facts) == ()


def test_the_servers_own_words_are_believed() -> None:
    found = named(
        verdict(make_run(provenance={"server": {"log": "WARNING: synthetic acceptance is on"}})), "real acceptance"
    )
    assert found.outcome is FAIL and found.numbers["detectors"] == ["server"] and "server.log says" in found.message


def test_a_pinned_mean_with_too_little_variance_is_refused() -> None:
    """Every document has the same steps, whose mean is the golden number: a controller, no draft."""
    row = tuple(StepRecord(k=K, accepted=a, accepted_trimmed=a) for a in (0, 1, 3, 4, 6, 7))
    run = make_run(change=lambda i: {"steps": row})
    found = named(verdict(run, golden=make_golden(4.5)), "real acceptance")
    assert found.outcome is FAIL and found.numbers["detectors"] == ["pinned mean"]
    assert "documents differ less than chance" in found.message
    assert not too_even(0.2, 10) and not too_even(None, 400) and not too_even(0.81, 1319)


def test_a_two_point_histogram_is_refused() -> None:
    run = make_run(change=lambda i: {"steps": (StepRecord(k=K, accepted=4 - i % 2, accepted_trimmed=3),) * 6})
    assert named(verdict(run), "real acceptance").numbers["detectors"] == ["two-point histogram"]


# --- demands


@pytest.mark.parametrize("kind", DEMANDS)
def test_nothing_compared_is_a_fail_where_it_is_demanded(kind: str) -> None:
    spec = GateSpec(demands=(kind,))
    found = judge(make_run(), baseline=None, golden=None, spec=spec)
    assert found.outcome is FAIL
    failed = [c.name for c in found.checks if c.outcome is FAIL]
    assert failed == [DEMANDS[kind].strip()]
    assert judge(make_run(), baseline=None, golden=None).outcome is OPEN


def test_a_run_at_k0_is_not_asked_for_acceptance() -> None:
    run = dataclasses.replace(plain_of(make_run()), id="p")
    found = judge(run, baseline=make_baseline(), golden=None, spec=GateSpec(demands=("length", "accuracy")))
    assert found.outcome is PASS, found.checks


def test_c62_a_policy_decides_whether_another_quant_mode_or_draft_is_judged() -> None:
    golden = make_golden()
    policies: tuple[tuple[dict[str, Any], str], ...] = (
        ({"golden_quant": "same"}, "quant float32 / fp8"), ({"golden_draft": "same"}, "draft_sha d1 / d2"),
    )  # fmt: skip
    for policy, words in policies:
        run = make_run(fingerprint={**make_run().fingerprint, "draft_sha": "d2"})
        assert named(verdict(run, golden=golden), "accepted length").outcome is PASS
        found = named(verdict(run, golden=golden, spec=GateSpec(**policy)), "accepted length")
        assert found.outcome is OPEN and words in found.message
        asked = GateSpec(**policy, demands=("length",))
        assert named(verdict(run, golden=golden, spec=asked), "accepted length").outcome is FAIL


def test_c18_c34_a_reference_of_another_protocol_is_refused_with_every_field() -> None:
    spec = GateSpec(against=(Against(name="x"),), demands=("published",))
    ref = reference()
    found = checked("reference x", spec, references=[ref])
    assert found.outcome is FAIL and "it is of target m, this run of gradeschool-m3" in found.message
    assert "it is of task t, this run of gradeschool" in found.message and "5 shots, this run 0" in found.message


def test_c32_c71_a_gain_too_good_to_be_true_is_a_warning() -> None:
    found = checked("accuracy", GateSpec(), baseline=make_baseline(strict=lambda i: int(i % 20 > 2)))
    assert found.outcome is PASS and "warning: a gain of" in found.message
    assert "warning" not in checked("accuracy", GateSpec()).message


# --- published figures


def reference(**more: Any) -> ReferenceScore:
    known: dict[str, Any] = {
        "name": "x", "target": "m", "task": "t", "shots": 5, "metric": "strict-match", "score": 0.96, "n": 1000,
        "correct": 960, "stderr": None, "gates": True, "source": "s", "protocol": "p",
    }  # fmt: skip
    return ReferenceScore(**(known | more))


def figures(found: Published, golden: GoldenValue | None = None, **limits: Any) -> Verdict:
    return judge_figures(found, golden=golden, references=[reference()], spec=GateSpec(**limits))


def test_published_figures_are_judged_as_far_as_they_go() -> None:
    found = Published(name="a", target="m", task="t", correct=965, n=1000, stderr=0.0058, k=7, length=4.0)
    value = GoldenValue(k=7, accepted_length=4.04, mode="thinking_unknown", source="g.yaml")
    got = figures(found, value, against=(Against(name="x", margin=0.02), Against(name="x", margin=0.001)))
    assert named(got, "score").outcome is PASS
    assert named(got, "reference x at 2 pt").outcome is PASS and named(got, "reference x at 0.1 pt").outcome is OPEN
    assert "curve only, uncertainty assumed" in named(got, "accepted length").message


def test_a_published_error_that_is_not_that_of_its_count_fails() -> None:
    got = figures(Published(name="a", correct=965, n=1000, stderr=0.0158))
    assert got.outcome is FAIL and "is not that of its count" in named(got, "score").message


def test_nothing_published_is_a_fail() -> None:
    assert figures(Published(name="a")).outcome is FAIL


@pytest.mark.parametrize("bad", [{"floor": 1.5}, {"max_age_days": 0}, {"tie_gap": -1}, {"golden_draft": "some"},
                                 {"demands": ("acuracy",)}, {"paths": (PathShare(name="m", share=0),)},
                                 {"against": (Against(name="x", margin=0.9),)}])  # fmt: skip
def test_senseless_limits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(EvalkitError, match="gate: "):
        GateSpec(**bad)


# --- a run that says less of its task than there is


SHORT: dict[str, tuple[dict[str, Any], str]] = {
    "a smaller task than its baseline's": ({}, "its task has 300, baseline b.json of the same task has 400"),
    "a limit that is not what it was to have": ({"cell": {"limit": 100}}, "its limit is 100, and it was to have 300"),
    "a limit that is the whole task": ({"cell": {"limit": 300}}, "a whole task has no limit"),
    "no limit and a subset": ({"cell": {"limit": 0}, "task_size": 400}, "no limit, and was to have 300 of the task's"),
    "other documents": (
        {"fingerprint": {"docs_sha": docs_sha(range(400))}, "baseline": None}, "not those of its fingerprint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_a_run_of_fewer_samples_than_its_task_is_no_whole_one(name: str) -> None:
    change, words = SHORT[name]
    run = make_run(300)
    run = dataclasses.replace(
        run, cell={**run.cell, **change.get("cell", {})}, task_size=change.get("task_size", 300),
        fingerprint={**run.fingerprint, **change.get("fingerprint", {})},
    )  # fmt: skip
    found = named(verdict(run, baseline=change.get("baseline", make_baseline())), "completeness")
    assert found.outcome is FAIL and words in found.message


def test_a_true_subset_stays_inconclusive_and_a_whole_run_passes() -> None:
    run = make_run(300, task_size=400)
    run = dataclasses.replace(run, cell={**run.cell, "limit": 300},
                              fingerprint={**run.fingerprint, "docs_sha": docs_sha(range(300))})  # fmt: skip
    assert named(verdict(run), "completeness").outcome is OPEN
    whole = make_run()
    whole = dataclasses.replace(whole, cell={**whole.cell, "limit": 0},
                                fingerprint={**whole.fingerprint, "docs_sha": docs_sha(range(N))})  # fmt: skip
    assert named(verdict(whole), "completeness").outcome is PASS


# --- runs without evidence, and runs that are their own standard


def plain_run(**more: Any) -> Run:
    run = make_run(change=lambda i: {"steps": ()}, **more)
    return dataclasses.replace(run, cell={**run.cell, "k": 0, "draft": "none"})


def test_a_run_that_is_the_baseline_is_not_compared_with_itself() -> None:
    run = plain_run(id="b")
    found = judge(run, baseline=make_baseline(), golden=None)
    assert "accuracy" not in {c.name for c in found.checks}
    assert any(note.startswith("this run is the baseline") for note in found.notes)
    demanded = judge(run, baseline=make_baseline(), golden=None, spec=GateSpec(demands=("accuracy",)))
    assert named(demanded, "accuracy").outcome is FAIL
    other = judge(plain_run(id="c"), baseline=make_baseline(), golden=None)
    assert named(other, "accuracy").outcome is PASS


def test_the_advice_is_never_to_record_the_run_that_is_judged() -> None:
    damaged = make_run(fingerprint={**make_run().fingerprint, "target_sha": "damaged"})
    message = named(verdict(damaged), "accuracy").message
    assert "golden record" not in message and "the target that the baseline was recorded of" in message
    assert "a target that you trust" in message and f"evalkit gate {damaged.id} --baseline THAT_RUN" in message
    for baseline in (None, make_baseline(fingerprint={"target_sha": "another"})):
        message = named(judge(plain_run(), baseline=baseline, golden=None), "accuracy").message
        assert "golden record" not in message and "baseline record" not in message
        assert "a target that you trust" in message


def test_a_run_whose_requests_all_failed_shows_nothing_of_its_answers() -> None:
    run = make_run(change=lambda i: {"error": "refused", "steps": (), "scores": {}, "finish_reason": "", "tokens": 0})
    run = dataclasses.replace(run, counters={"verify_steps": 8275})
    found = verdict(run)
    assert found.outcome is FAIL and named(found, "requests").found.endswith("(100 %)")
    cut = named(found, "truncation")
    assert cut.outcome is OPEN and cut.found == "no answers"
    counts = named(found, "step counts")
    assert counts.outcome is OPEN and "no verify step is stored, the engine counted 8275" in counts.message
    silent = named(verdict(dataclasses.replace(run, counters={"verify_steps": 0})), "step counts")
    assert silent.outcome is OPEN and "no answers" in silent.message


def test_what_is_not_shown_is_not_said_with_a_bare_p() -> None:
    fails = named(verdict(golden=make_golden(7.0)), "accepted length")
    assert fails.outcome is FAIL and p_value(fails.numbers["p_worse"]) in fails.message
    assert "for a loss over 5 %" in fails.message and "for a loss under" not in fails.message
    unsure = named(verdict(golden=make_golden(make_length() / 0.95)), "accepted length")
    assert unsure.outcome is OPEN and "no evidence that the loss is under 5 %, p " in unsure.message


def make_length() -> float:
    return float(named(verdict(), "accepted length").numbers["accepted_length"])

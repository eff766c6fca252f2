"""A run that stops early: in a drawn order, by a rule that may be looked at, stored as what the rule saw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from evalkit import console, stats, sweep
from evalkit.backends import Failure
from evalkit.backends.scripted import Scripted
from evalkit.baseline import Baseline, ReferenceScore, Variation, load_baseline, record_baseline
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge, verdict_line
from evalkit.golden import Standards
from evalkit.judging import Judged, write_report
from evalkit.records import Check, Outcome, Run, Verdict
from evalkit.run import Interrupted, run_cell
from evalkit.runfile import RUN_FILE, SAMPLES_FILE, load_run
from evalkit.stopping import Stopper, baseline_sha, drawn_order, follow
from tests.evalkit.places import make_place

N = 120
MARGIN = 0.2  # 120 questions can't show less


def right(request: Any) -> str:
    i = int(request.id)
    return f" It is {i} + 1 = {i + 1} , so\n#### {i + 1}"


def wrong(request: Any) -> str:
    return f" I think\n#### {int(request.id) + 2}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path, N)


def execute(place: Path, answer: Any, *, k: int = 7, runs: str = "runs", baseline: Baseline | None = None,
            backend: Any = None, margin: float = MARGIN, alpha: float | None = None, **words: Any) -> Run:  # fmt: skip
    where = {"model": str(place / "target"), "draft": str(place / "draft"), "data": place / "test.jsonl"}
    early = {"stop_early": True} if baseline else {}
    made = backend or Scripted(answer, k=k)
    cell = Cell.make(**{"k": k, **where, **early, **words})
    return run_cell(cell, runs_dir=place / runs, backend=lambda c: made, baseline=baseline, margin=margin,
                    alpha=alpha)  # fmt: skip


@pytest.fixture
def baseline(place: Path) -> Baseline:
    record_baseline(execute(place, right, k=0, runs="base"), place / "b.json")
    return load_baseline(place / "b.json")


def judged(run: Run, baseline: Baseline | None, **more: Any) -> Verdict:
    return judge(run, baseline=baseline, golden=None, spec=GateSpec(accuracy_margin=MARGIN, **more))


def named(v: Verdict, name: str) -> Check:
    return next(c for c in v.checks if c.name == name)


def test_c65_a_broken_engine_stops_within_fifteen_questions_with_a_fail(place: Path, baseline: Baseline) -> None:
    backend = Scripted(wrong, k=7)
    made = execute(place, wrong, baseline=baseline, backend=backend)
    n = len(made.samples)
    assert 10 <= n <= 15 and made.complete and made.expected == made.task_size == N
    assert made.stopped == f"failure after {n} of {N} questions"
    assert len(backend.asked) < N  # the engine was asked to stop
    told = made.stopping
    assert told is not None
    assert (told.state, told.seen, told.down, told.alpha, told.planned) == ("failure", n, n, 0.05, N)
    head = json.loads((place / "runs" / made.id / RUN_FILE).read_text())
    assert head["stopping"]["alpha"] == 0.05 and head["stopping"]["seen"] == n and head["stopped"] == made.stopped

    found = judged(made, baseline)
    assert found.outcome is Outcome.FAIL
    accuracy, whole = named(found, "accuracy"), named(found, "completeness")
    assert (
        accuracy.outcome is Outcome.FAIL and f"failure after {n} of {N} pairs, {n} lost and 0 won" in accuracy.message
    )
    assert accuracy.numbers["p_worse"] <= 0.05
    assert whole.outcome is Outcome.PASS and "stopped early by a valid rule (failure after" in whole.message


def test_a_smaller_alpha_asks_for_more_and_the_gate_agrees(place: Path, baseline: Baseline) -> None:
    usual, strict = (execute(place, wrong, baseline=baseline, alpha=a, runs=f"r{a}") for a in (None, 0.001))
    assert usual.stopping is not None and strict.stopping is not None
    assert (usual.stopping.alpha, strict.stopping.alpha) == (0.05, 0.001)
    assert len(usual.samples) < len(strict.samples) < N and strict.stopping.state == "failure"
    check = named(judged(strict, baseline), "accuracy")
    assert check.outcome is Outcome.FAIL and usual.id != strict.id


def test_an_equal_engine_passes_by_the_rule_and_says_so(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)
    n = len(made.samples)
    assert n < N and made.stopped == f"success after {n} of {N} questions"
    found = judged(made, baseline, min_samples=10)
    accuracy = named(found, "accuracy")
    assert accuracy.outcome is Outcome.PASS and "by the sequential rule: success after" in accuracy.message
    assert accuracy.numbers["p"] <= 0.05 and accuracy.numbers["interval"][0] > -MARGIN
    assert named(found, "completeness").outcome is Outcome.PASS
    short = named(judged(made, baseline), "completeness")
    assert short.outcome is Outcome.INCONCLUSIVE and "at least 100 are needed" in short.message


def test_what_is_seen_is_the_head_of_a_drawn_order_whatever_finishes_first(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)  # Scripted finishes every other request first
    order = drawn_order(0, range(N))
    assert sorted(order) == list(range(N)) and order != list(range(N)) and order != drawn_order(1, range(N))
    assert {s.doc_id for s in made.samples} == set(order[: len(made.samples)])
    lines = (place / "runs" / made.id / SAMPLES_FILE).read_text().splitlines()
    assert [json.loads(line)["doc_id"] for line in lines] == order[: len(lines)]


def some(request: Any) -> str:
    """Wrong at every fourth: hardly to be told from a loss of 20 points."""
    return (wrong if int(request.id) % 4 == 0 else right)(request)


def lean(run: Run) -> list[Any]:
    return [dataclasses.replace(s, seconds=0.0) for s in run.samples]


class Breaks(Scripted):
    def __init__(self, answer: Any, after: int) -> None:
        super().__init__(answer, k=7)
        self.after = after

    def generate(self, requests: Any, on_finish: Any) -> None:
        def counted(result: Any) -> None:
            on_finish(result)
            self.after -= 1
            if not self.after:
                raise KeyboardInterrupt

        super().generate(requests, counted)


@pytest.mark.parametrize("answer", [right, some])
@pytest.mark.parametrize("after", [3, 64, 70])
def test_an_interrupted_run_stops_where_the_uninterrupted_one_does(
    place: Path, baseline: Baseline, answer: Any, after: int
) -> None:
    whole = execute(place, answer, baseline=baseline, runs="whole")
    with pytest.raises(Interrupted):
        execute(place, answer, baseline=baseline, backend=Breaks(answer, after))
    made = execute(place, answer, baseline=baseline)
    assert lean(made) == lean(whole) and made.stopped == whole.stopped and made.stopping == whole.stopping


def test_a_failed_request_is_asked_again_and_what_lies_behind_it_is_dropped(place: Path, baseline: Baseline) -> None:
    first = drawn_order(0, range(N))[1]

    def fails(request: Any) -> Any:
        return Failure(id=request.id, error="oom") if int(request.id) == first else right(request)

    with pytest.raises(Interrupted):
        execute(place, fails, baseline=baseline, backend=Breaks(fails, 68))
    made = execute(place, right, baseline=baseline)
    whole = execute(place, right, baseline=baseline, runs="whole")
    assert lean(made) == lean(whole) and made.stopping == whole.stopping


def test_a_run_that_goes_to_its_end_is_judged_by_the_rule_still(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline, margin=0.01)
    assert (
        len(made.samples) == N
        and made.stopped == ""
        and made.stopping is not None
        and made.stopping.state == "undecided"
    )
    found = judge(made, baseline=baseline, golden=None, spec=GateSpec(accuracy_margin=0.01))
    assert named(found, "completeness").outcome is Outcome.PASS
    accuracy = named(found, "accuracy")
    assert accuracy.outcome is Outcome.INCONCLUSIVE and "by the sequential rule: undecided" in accuracy.message


def test_a_stop_never_passes_by_the_test_of_fixed_size(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)
    n = len(made.samples)
    assert stats.tango_test(0, 0, n, -0.1).p_above <= 0.05  # Tango would pass at half the margin ...
    tighter = judge(made, baseline=baseline, golden=None, spec=GateSpec(accuracy_margin=0.1, min_samples=10))
    assert named(tighter, "accuracy").outcome is Outcome.INCONCLUSIVE  # ... where the rule says nothing yet


def test_stops_that_were_none_are_refused(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)
    cut = dataclasses.replace(made, samples=made.samples[:-1])
    check = named(judged(cut, baseline), "completeness")
    assert check.outcome is Outcome.FAIL and "not the first" in check.message
    seen = drawn_order(0, range(N))[:20]
    peeked = dataclasses.replace(made, samples=tuple(s for s in made.samples if s.doc_id in seen))
    check = named(judged(peeked, baseline), "completeness")
    assert check.outcome is Outcome.FAIL and "its rule says go on after 20, the run success" in check.message
    bare = dataclasses.replace(made, stopping=None)
    assert named(judged(bare, baseline), "completeness").outcome is Outcome.FAIL
    for other in (None, dataclasses.replace(baseline, rows={**baseline.rows, "x": next(iter(baseline.rows.values()))})):
        check = named(judged(made, other), "completeness")
        assert check.outcome is Outcome.INCONCLUSIVE and "not the one given here" in check.message


def test_without_a_baseline_of_these_prompts_nothing_starts(place: Path, baseline: Baseline) -> None:
    backend = Scripted(right, k=7)
    rows = dict(list(baseline.rows.items())[1:])
    with pytest.raises(EvalkitError, match="119 of 120 prompts are the same"):
        execute(place, right, baseline=dataclasses.replace(baseline, rows=rows), backend=backend)
    with pytest.raises(EvalkitError, match="no baseline to compare with"):
        execute(place, right, stop_early=True, backend=backend)
    with pytest.raises(EvalkitError, match="another task_sha"):
        marks = {**baseline.fingerprint, "task_sha": "x"}
        execute(place, right, baseline=dataclasses.replace(baseline, fingerprint=marks), backend=backend)
    varies = Variation(runs=("a", "b"), scores=(0.9, 0.8), sd=0.07, expected_sd=0.0, excess_sd=0.07)
    with pytest.raises(EvalkitError, match="varies from run to run by 7 pt"):
        execute(place, right, baseline=dataclasses.replace(baseline, variation=varies), backend=backend)
    assert not backend.asked and not (place / "runs").exists()


def test_a_subset_is_refused(place: Path) -> None:
    with pytest.raises(EvalkitError, match="--stop-early with --limit 5: a subset can never pass"):
        Cell.make(stop_early=True, limit=5)


def test_a_stopped_run_is_no_baseline_and_reads_back(place: Path, baseline: Baseline) -> None:
    made = execute(place, wrong, k=0, baseline=baseline)
    with pytest.raises(EvalkitError, match="is incomplete"):
        record_baseline(made, place / "c.json")
    assert load_run(place / "runs" / made.id) == made
    again = execute(place, wrong, k=0, baseline=baseline)
    assert again.id == made.id + "-2"  # complete: never continued


def test_a_futile_run_leaves_it_open(place: Path, baseline: Baseline) -> None:
    made = execute(place, some, baseline=baseline)
    assert made.stopped.startswith("futile after") and len(made.samples) < N
    found = judged(made, baseline)
    assert named(found, "completeness").outcome is Outcome.PASS
    accuracy = named(found, "accuracy")
    assert accuracy.outcome is Outcome.INCONCLUSIVE and "run the whole task without --stop-early" in accuracy.message
    assert accuracy.numbers["p"] > 0.05 and accuracy.numbers["p_worse"] > 0.05


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.2])
def test_p_is_at_most_alpha_exactly_where_the_rule_decides(loss: float) -> None:
    for seed in range(6):
        order = drawn_order(seed, range(300))
        pairs = [(int(i >= 300 * loss), 1) for i in order]
        found = follow(stats.SequentialPaired(0.05, 0.05, pairs=300), pairs)
        assert (found.p <= 0.05) == (found.stop is stats.Stop.SUCCESS)
        assert (found.p_worse <= 0.05) == (found.stop is stats.Stop.FAILURE)
        assert found.interval.low <= (found.up - found.down) / found.seen <= found.interval.high


def test_samples_are_taken_in_order(baseline: Baseline, place: Path) -> None:
    made = execute(place, right, baseline=baseline)
    assert made.stopping is not None and made.stopping.baseline_sha == baseline_sha(baseline)
    stopper = Stopper(made.stopping, dict.fromkeys(range(N), 1))
    by_id = {s.doc_id: s for s in made.samples}
    a, b, c = stopper.order[:3]
    assert stopper.ready(by_id[c]) == [] and stopper.ready(by_id[b]) == []
    assert [s.doc_id for s in stopper.ready(by_id[a])] == [a, b, c]


def test_every_page_says_that_it_was_stopped(place: Path, baseline: Baseline, capsys: Any) -> None:
    made = execute(place, wrong, baseline=baseline)
    console.console().print(console.run_table(made))
    console.console().print(console.runs_table([made]))
    out = capsys.readouterr().out
    assert made.stopped in out and f"{len(made.samples)}/{N}  stopped" in out
    found = Judged(run=made, verdict=judged(made, baseline),
                   standards=Standards(golden=None, baseline=baseline, references=()))  # fmt: skip
    page = write_report(made, found, place / "r.html").read_text()
    assert f"stopped early: {made.stopped}" in page and "incomplete: cannot certify" not in page
    assert verdict_line(found.verdict).startswith("FAIL ")


def test_a_published_score_is_not_passed_by_a_stop(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)
    assert "documents" in made.provenance  # of the test's own data, which no published score is of
    made = dataclasses.replace(made, provenance={**made.provenance, "documents": {}})
    words: dict[str, Any] = {"name": "x", "target": "target", "task": "gradeschool", "shots": None, "stderr": None}
    published = ReferenceScore(**words, metric="strict-match", score=0.9, n=10, correct=9, gates=True, source="s",
                               protocol="p")  # fmt: skip
    found = judge(made, baseline=baseline, golden=None, references=[published])
    check = named(found, "reference x")
    assert check.outcome is Outcome.INCONCLUSIVE and "a test of fixed size tells nothing" in check.message


def test_a_sweep_of_runs_that_stopped_early_says_why_none_passes(place: Path, baseline: Baseline) -> None:
    found = judged(execute(place, right, baseline=baseline), baseline, min_samples=10)
    many = sweep.adjust([dataclasses.replace(found, run_id=f"r{i}") for i in range(2)])
    assert "stopped as soon as its own p was small enough" in named(many[0], "sweep").message


def test_a_success_is_not_passed_where_the_baseline_varies_by_run(place: Path, baseline: Baseline) -> None:
    made = execute(place, right, baseline=baseline)
    varies = Variation(runs=("a", "b"), scores=(0.9, 0.8), sd=0.07, expected_sd=0.0, excess_sd=0.07)
    check = named(judged(made, dataclasses.replace(baseline, variation=varies)), "accuracy")
    assert check.outcome is Outcome.INCONCLUSIVE and "which the rule can't allow for" in check.message

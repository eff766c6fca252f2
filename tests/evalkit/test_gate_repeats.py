"""Repeats of one setting judged as one: questions are averaged first, everything else must hold in each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit import stats
from evalkit.backends.scripted import Scripted
from evalkit.baseline import Baseline
from evalkit.cli import main
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge
from evalkit.gate.repeats import join_repeats
from evalkit.records import Outcome, Run, Verdict
from evalkit.run import run_cell
from tests.evalkit.places import make_place
from tests.evalkit.test_gate import dead, make_baseline, make_golden, make_run, named, swap, varying

N = 400


def drawn(repeats: int, *, loss: float = 0.0, seed: int = 0, n: int = N) -> list[Run]:
    """Runs whose questions are right with a chance of their own (mean 0.95 less `loss`), drawn anew each time."""
    rng = np.random.default_rng(seed)
    chance = np.where(np.arange(n) % 10 == 0, 0.5 - 10 * loss, 1.0)
    return [scored(rng.random(n) < chance, f"run-{j}") for j in range(repeats)]


def scored(right: Sequence[bool] | np.ndarray, name: str, **more: Any) -> Run:
    return make_run(len(right), lambda i: {"scores": {"strict-match": float(right[i]), "flexible-extract": 1.0}},
                    id=name, **more)  # fmt: skip


def joined(runs: Sequence[Run], baseline: Baseline | None = None, spec: GateSpec | None = None) -> Verdict:
    spec, baseline = spec or GateSpec(accuracy_margin=0.03), baseline or make_baseline(len(runs[0].samples))
    each = [judge(run, baseline=baseline, golden=make_golden(), spec=spec) for run in runs]
    return join_repeats(runs, each, baseline=baseline, spec=spec)


def test_c26_repeats_decide_what_one_run_leaves_open() -> None:
    runs = drawn(8)
    alone = [judge(run, baseline=make_baseline(), golden=make_golden(), spec=GateSpec(accuracy_margin=0.03))
             for run in runs]  # fmt: skip
    widths = [np.ptp(named(v, "accuracy").numbers["interval"]) for v in alone]
    found = joined(runs)
    accuracy = named(found, "accuracy")
    assert Outcome.INCONCLUSIVE in {named(v, "accuracy").outcome for v in alone}
    assert accuracy.outcome is Outcome.PASS and found.outcome is Outcome.PASS, accuracy.message
    assert np.ptp(accuracy.numbers["interval"]) < min(widths)
    assert "in 8 repeats of 400 questions" in accuracy.message and "variance within a question 0.02" in accuracy.message
    assert accuracy.numbers["runs"] == [run.id for run in runs] and accuracy.numbers["within"] > 0
    assert found.notes[0] == f"8 repeats judged as one: {', '.join(r.id for r in runs)}"


def test_repeats_that_say_the_same_are_no_new_evidence() -> None:
    one = drawn(1)[0]
    copies = [replace(one, id=f"run-{j}") for j in range(5)]
    alone = judge(one, baseline=make_baseline(), golden=make_golden(), spec=GateSpec(accuracy_margin=0.03))
    for key in ("difference", "interval", "p", "p_worse"):
        assert named(joined(copies), "accuracy").numbers[key] == named(alone, "accuracy").numbers[key]


def test_a_loss_in_the_mean_of_repeats_fails() -> None:
    accuracy = named(joined(drawn(6, loss=0.05), spec=GateSpec(accuracy_margin=0.01)), "accuracy")
    assert accuracy.outcome is Outcome.FAIL and "for a loss over 1 pt" in accuracy.message


def test_what_is_open_says_what_would_settle_it() -> None:
    accuracy = named(joined(drawn(2), spec=GateSpec(accuracy_margin=0.005)), "accuracy")
    assert accuracy.outcome is Outcome.INCONCLUSIVE
    assert (
        f"{accuracy.numbers['needed']} questions (or more repeats of these) would settle this one" in accuracy.message
    )


def test_repeats_that_answer_the_same_settle_nothing() -> None:
    one = drawn(1)[0]
    same, spec = [replace(one, id=f"run-{j}") for j in range(6)], GateSpec(accuracy_margin=0.005)
    message = named(joined(same, spec=spec), "accuracy").message
    assert (
        "repeats of these" not in message and "questions would settle this one; no number of repeats would" in message
    )
    assert (
        "no number of repeats" not in named(joined(drawn(2), spec=GateSpec(accuracy_margin=0.005)), "accuracy").message
    )


@pytest.mark.parametrize(("temperature", "advised"), [(0.0, False), (0.7, True)])
def test_repeats_are_advised_where_a_run_samples(temperature: float, advised: bool) -> None:
    run, baseline = drawn(1)[0], make_baseline()
    run = replace(run, cell={**run.cell, "temperature": temperature},
                  fingerprint={**run.fingerprint, "temperature": temperature})  # fmt: skip
    baseline = replace(baseline, fingerprint={**baseline.fingerprint, "temperature": temperature})
    check = named(judge(run, baseline=baseline, golden=make_golden(), spec=GateSpec(accuracy_margin=0.005)), "accuracy")
    assert check.outcome is Outcome.INCONCLUSIVE and "questions" in check.message
    assert ("gate --repeats" in check.message) is advised


def timed(run: Run, start: float, **more: Any) -> Run:
    return replace(run, samples=tuple(replace(s, seconds=start + i / 7) for i, s in enumerate(run.samples)), **more)


def test_a_copy_under_another_name_is_no_repeat() -> None:
    one, other = (timed(run, 1.0) for run in drawn(2))
    with pytest.raises(EvalkitError, match="run copy is a copy of run-0: the same samples, each in the same time"):
        joined([one, other, replace(one, id="copy")])
    assert joined([one, other]).outcome  # the same times of other answers, and other times of the same answers
    assert joined([one, timed(one, 1.001, id="again")]).outcome


def test_every_other_check_must_hold_in_each_run() -> None:
    runs = drawn(8)
    broken = make_run(N, dead, id="run-dead")
    found = joined([*runs[:7], replace(broken, samples=tuple(
        replace(s, scores=t.scores) for s, t in zip(broken.samples, runs[7].samples, strict=True)))])  # fmt: skip
    draft = named(found, "draft")
    assert found.outcome is Outcome.FAIL and draft.outcome is Outcome.FAIL
    assert draft.message.startswith("run-dead: ") and draft.message.endswith("(7 of 8 repeats pass)")
    assert named(joined(runs), "draft").message.endswith("(in run-0; 8 of 8 repeats pass)")
    failed = joined([*runs[:7], swap(runs[7], 3, error="timed out", scores={}, steps=())])
    assert named(failed, "requests").outcome is Outcome.FAIL and named(failed, "accuracy").numbers["n"] == N - 1


def test_run_to_run_variation_of_the_baseline_widens_the_error_of_repeats_too() -> None:
    runs = drawn(8)
    wide = named(joined(runs, make_baseline(variation=varying(0.02))), "accuracy")
    assert wide.outcome is Outcome.INCONCLUSIVE and wide.numbers["run_excess_sd"] == 0.02
    assert np.ptp(wide.numbers["interval"]) > np.ptp(named(joined(runs), "accuracy").numbers["interval"])


def test_without_a_comparable_baseline_repeats_compare_nothing() -> None:
    runs = drawn(3)
    each = [judge(run, baseline=None, golden=make_golden()) for run in runs]
    found = join_repeats(runs, each, baseline=None, spec=GateSpec())
    assert named(found, "accuracy").outcome is Outcome.INCONCLUSIVE and found.outcome is not Outcome.PASS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: [a], "one run is no repeat of another"),
        (lambda a: [a, a], "given twice"),
        (lambda a: [a, replace(a, id="b", fingerprint={**a.fingerprint, "draft_sha": "x"})], "draft_sha differ"),
        (lambda a: [a, replace(a, id="b", cell={**a.cell, "k": 3})], "k differ"),
        (lambda a: [a, replace(a, id="b", cell={**a.cell, "temperature": 1.0},
                               fingerprint={**a.fingerprint, "temperature": 1.0})], "temperature differ"),
        (lambda a: [a, swap(replace(a, id="b"), 0, prompt_hash="p")], "questions or prompts differ"),
    ],
)  # fmt: skip
def test_runs_that_are_no_repeats_are_refused(change: Callable[[Run], list[Run]], words: str) -> None:
    runs = change(drawn(1)[0])
    with pytest.raises(EvalkitError, match=words):
        join_repeats(runs, [Verdict(outcome=Outcome.PASS, checks=(), run_id=r.id) for r in runs],
                     baseline=make_baseline(), spec=GateSpec())  # fmt: skip


def test_a_run_to_run_part_of_the_error_of_repeats_is_that_of_whole_runs() -> None:
    """With one answer a side and no more flips than Tango expects at the bound, both tests are one."""
    up, down, n = 4, 6, 1000
    d = np.array([1.0] * up + [-1.0] * down + [0.0] * (n - up - down))
    mine = stats.paired_repeats_test(d, -0.01, sd=0.004, measured_by=4)
    runs = stats.paired_runs_test(up, down, n, -0.01, sd=0.004, measured_by=4)
    assert mine.p_above == pytest.approx(runs.p_above, rel=1e-9)
    a = stats.paired_repeats_interval(d, 0.9, sd=0.004, measured_by=4)
    b = stats.paired_runs_interval(up, down, n, sd=0.004, measured_by=4, level=0.9)
    assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=1e-6)
    for bound in (a.low, a.high):
        test = stats.paired_repeats_test(d, bound, sd=0.004, measured_by=4)
        assert min(test.p_above, test.p_below) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.stat
def test_repeats_on_the_margin_pass_at_most_alpha() -> None:
    """Seed 5, 2000 gates of 5 repeats on the margin: a share over 0.05 + 4 standard errors (0.0195) is a false alarm
    under 1e-4."""
    rng, n, margin, passed = np.random.default_rng(5), 300, 0.03, 0
    before = np.ones(n)
    chance = np.where(np.arange(n) < 30, 1 - 10 * margin, 1.0)
    for _ in range(2000):
        mean = (rng.random((5, n)) < chance).mean(axis=0)
        passed += stats.paired_repeats_test(mean - before, -margin).p_above <= 0.05
    assert passed / 2000 <= 0.05 + 0.0195


def test_the_command_line_judges_repeats_as_one(tmp_path, capsys) -> None:
    place = make_place(tmp_path, 12)
    ids = []
    for seed in (0, 1):
        cell = Cell.make(k=7, model=str(place / "target"), draft=str(place / "draft"), data=place / "test.jsonl",
                         seed=seed)  # fmt: skip
        scripted = Scripted(lambda r: f" so\n#### {int(r.id) + 1}", k=7)
        ids.append(run_cell(cell, runs_dir=tmp_path / "runs", backend=lambda c, made=scripted: made).id)
    where = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["gate", *ids, "--repeats", *where]) == 3
    shown = capsys.readouterr().out
    assert f"2 repeats judged as one: {ids[0]}, {ids[1]}" in shown and "Holm" not in shown
    file = tmp_path / "v.json"
    assert main(["gate", *ids, "--repeats", "--json", str(file), *where]) == 3 and ids[0] in file.read_text()
    assert main(["gate", ids[0], "--repeats", *where]) == 2
    assert "one run is no repeat of another" in capsys.readouterr().err

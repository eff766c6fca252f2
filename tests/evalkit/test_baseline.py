"""Baselines and published scores: recorded only from sound runs, and refused where a file does not add up."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from evalkit.baseline import load_baseline, load_reference_scores, record_baseline
from evalkit.errors import EvalkitError
from evalkit.records import Run
from tests.evalkit.goldens import make_run, marked, with_cell


def test_baseline_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    run = make_run(0)
    line = record_baseline(run, path)
    assert "old none" in line and run.id in line
    found = load_baseline(path)
    assert found.n == 60
    assert found.correct == sum(s.scores["strict-match"] for s in run.samples)
    assert found.rows[run.samples[3].doc_hash[:16]].prompt_hash == run.samples[3].prompt_hash[:16]
    assert (found.target, found.task, found.fingerprint["target_sha"]) == ("gradeschool-m3", "gradeschool", "t1")
    assert "old 0." in record_baseline(make_run(0, seed=3), path, write=False)
    assert load_baseline(path).run_id == run.id


def test_the_baseline_of_1319_questions_is_small(tmp_path: Path) -> None:
    record_baseline(make_run(0, n=1319), tmp_path / "b.json")
    assert (tmp_path / "b.json").stat().st_size < 80_000


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (make_run(3), "a baseline is K=0 in float32"),
        (with_cell(make_run(0), quant="fp8"), "a baseline is K=0 in float32"),
        (make_run(0, complete=False), "incomplete"),
        (make_run(0, task_size=100), "60 of 100"),
        (marked(make_run(0), task_sha=""), "does not say its task_sha"),
    ],
)
def test_unfit_runs_make_no_baseline(tmp_path: Path, run: Run, words: str) -> None:
    with pytest.raises(EvalkitError, match=words):
        record_baseline(run, tmp_path / "b.json")
    assert not list(tmp_path.iterdir())


def test_nan_and_duplicates_make_no_baseline(tmp_path: Path) -> None:
    run = make_run(0)
    nan = dataclasses.replace(run.samples[0], scores={"strict-match": float("nan"), "flexible-extract": 1.0})
    with pytest.raises(EvalkitError, match="strict-match nan"):
        record_baseline(dataclasses.replace(run, samples=(nan, *run.samples[1:])), tmp_path / "b.json")
    with pytest.raises(EvalkitError, match="60 samples of 59 documents"):
        record_baseline(dataclasses.replace(run, samples=(run.samples[1], *run.samples[1:])), tmp_path / "b.json")


def flipped(run: Run, ids: range, name: str) -> Run:
    """A repeat of a run under another id, with these answers turned."""
    samples = [
        dataclasses.replace(s, scores={**s.scores, "strict-match": 1 - s.scores["strict-match"]})
        if s.doc_id in ids
        else s
        for s in run.samples
    ]
    return dataclasses.replace(run, id=name, samples=tuple(samples))


def test_c35_repeats_give_the_baseline_its_run_to_run_variation(tmp_path: Path) -> None:
    path, run = tmp_path / "b.json", make_run(0, n=200)
    equal = [flipped(run, range(0), f"r{i}") for i in range(3)]
    line = record_baseline(run, path, repeats=equal)
    found = load_baseline(path)
    assert line.endswith("run-to-run sd 0 pt of 4 runs") and found.variation is not None
    assert (found.variation.runs, found.variation.sd) == ((run.id, "r0", "r1", "r2"), 0.0)
    varied = [flipped(run, range(0, 20 * i), f"r{i}") for i in (1, 2)]  # twenty more lost at each
    line = record_baseline(run, path, repeats=varied)
    found = load_baseline(path)
    assert found.run_id == run.id and found.correct == sum(s.scores["strict-match"] for s in run.samples)
    v = found.variation
    assert v is not None and v.sd == pytest.approx(np.std(v.scores, ddof=1)) and 0 < v.excess_sd < v.sd
    assert "pt of 3 runs, " in line and line.endswith("pt beyond single answers")
    record_baseline(run, path)  # and one run alone has none
    assert load_baseline(path).variation is None and "repeats" not in path.read_text()


def test_what_is_no_repeat_is_refused(tmp_path: Path) -> None:
    run, path = make_run(0), tmp_path / "b.json"
    other = dataclasses.replace(run, id="other")
    samples = [dataclasses.replace(s, seconds=1 + i / 7) for i, s in enumerate(run.samples)]
    run = dataclasses.replace(run, samples=tuple(samples))
    for repeat, words in (
        (run, "the same run is given twice"),
        (dataclasses.replace(run, id="copy"), f"run copy is a copy of {run.id}: the same samples"),
        (marked(other, target_sha="t2"), "is no repeat of .*target_sha differ"),
        (marked(other, temperature=0.7), "temperature differ"),
        (with_cell(other, k=3), "a baseline is K=0"),
        (dataclasses.replace(other, samples=run.samples[1:], expected=59, task_size=59), "prompts differ"),
    ):
        with pytest.raises(EvalkitError, match=words):
            record_baseline(run, path, repeats=[repeat])
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [{"sd": 0.5}, {"excess_sd": 0.9}, {"scores": [0.5]}, {"sd": float("nan")}, {"expected_sd": -1}, {"runs": ["a"]}],
)
def test_tampered_repeats_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path, run = tmp_path / "b.json", make_run(0)
    record_baseline(run, path, repeats=[flipped(run, range(5), "r1")])
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"repeats": data["repeats"] | change}))
    with pytest.raises(EvalkitError, match=r"is no baseline|is no finite number"):
        load_baseline(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 9}, "schema 9"),
        ({"correct": 60}, "its rows give"),
        ({"rows": [["a", "b", 2, 1]]}, "expected 0 or 1"),
        ({"rows": [["a", "b", 1]]}, "is no baseline"),
        ({"rows": []}, "has no questions"),
        ({"fingerprint": None, "n": None}, "its rows give"),
    ],
)
def test_tampered_baselines_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "b.json"
    record_baseline(make_run(0), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EvalkitError, match=words):
        load_baseline(path)


def test_truncated_and_absent_baselines(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    with pytest.raises(EvalkitError, match="does not exist"):
        load_baseline(path)
    record_baseline(make_run(0), path)
    path.write_text(path.read_text()[:200])
    with pytest.raises(EvalkitError, match="cannot be read"):
        load_baseline(path)


@pytest.mark.parametrize("change", [
    {"run": None}, {"run": ""}, {"target": 5}, {"task": None}, {"fingerprint": None}, {"fingerprint": []},
    {"fingerprint": {}}, {"fingerprint": {"target_sha": "t1"}},
], ids=str)  # fmt: skip
def test_a_baseline_that_does_not_say_what_it_is_of_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "b.json"
    record_baseline(make_run(0), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EvalkitError, match=r"expected text|a fingerprint without"):
        load_baseline(path)


def test_reference_scores() -> None:
    scores = {s.name: s for s in load_reference_scores()}
    assert [n for n, s in scores.items() if s.gates] == ["sglang"]
    sglang = scores["sglang"]
    assert (sglang.score, sglang.correct, sglang.n, sglang.stderr) == (0.9598, 1266, 1319, 0.0054)
    assert {s.correct for s in scores.values()} == {1266, 1277, 1272, 1274, 1281}
    assert all(s.source and s.protocol for s in scores.values())
    with pytest.raises(EvalkitError, match=r"is 0\.9591, not 0\.9598"):
        dataclasses.replace(sglang, correct=1265)

"""Golden files are read strictly, recorded only from sound runs, and never half-written."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import yaml

from evalkit.baseline import record_baseline
from evalkit.errors import EvalkitError
from evalkit.golden import baseline_path, defaults_for, evidence_path, lookup, read_curve, record_curve
from evalkit.records import Run
from tests.evalkit.goldens import GOLDEN, MARKS, make_run, marked, with_cell

# --- reading


def test_the_imported_curve_has_the_published_values() -> None:
    curve = read_curve(GOLDEN / "minimaxm31flash_dspark.yaml")
    assert {k: lookup(curve, k).accepted_length for k in (3, 5, 7)} == {3: 2.88, 5: 3.46, 7: 4.04}
    value = lookup(curve, 7)
    assert (value.se, value.histogram, value.mode) == (None, None, "thinking_unknown")
    assert any("NOT KNOWN" in line for line in curve.header)


INFERENCEX = """# Acceptance Length (AL) reference values measured with SPEED-Bench.
# dataset: coding | temperature: 1.0
minimax-m3:
  thinking_on:
    1: 1.78
    2: 2.38
  thinking_off:
    1: 1.84
    2: 2
"""


def test_inferencex_shape_with_two_modes(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(INFERENCEX)
    curve = read_curve(path)
    assert lookup(curve, 2, "thinking_on").accepted_length == 2.38
    assert curve.header == (
        "Acceptance Length (AL) reference values measured with SPEED-Bench.", "dataset: coding | temperature: 1.0"
    )  # fmt: skip
    with pytest.raises(EvalkitError, match=r"has modes \['thinking_on', 'thinking_off'\], asked for None"):
        lookup(curve, 2)


def test_missing_k_names_those_that_exist_and_the_command() -> None:
    curve = read_curve(GOLDEN / "minimaxm31flash_dspark.yaml")
    with pytest.raises(EvalkitError, match=r"no value at K=6 .*has K=3, K=5, K=7.*evalkit golden record RUN_AT_K6"):
        lookup(curve, 6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("m:\n  on:\n    3: .nan", "nan, expected a finite number"),
        ("m:\n  on:\n    3: 4.5", "4.5, expected a number from 1 to 4"),
        ("m:\n  on:\n    3: 0.99", "0.99, expected"),
        ("m:\n  on:\n    3: '2.9'", "'2.9', expected"),
        ("m:\n  on:\n    3: true", "True, expected"),
        ("m:\n  on:\n    3:", "None, expected"),
        ("m:\n  on:\n    three: 2.9", "K='three'"),
        ("m:\n  on:\n    0: 1.0", "K=0"),
        ("m:\n  on:\n    3: 2.9\n    3: 2.8", "has '3' twice"),
        ("m:\n  on: {}", "not a table of modes"),
        ("m:\n  3: 2.9", "not a table of modes"),
        ("m:\n  on:\n    3: 2.9\nn:\n  on:\n    3: 2.9", "expected exactly one"),
        ("", "expected exactly one"),
        ("m: [", "cannot be read"),
        ("m:\n  on:\n    3: 2.9\nevidence:\n  m:\n    on:\n      3: {se: .1}", "evidence has schema None"),
        (
            "m:\n  on:\n    3: 2\nevidence:\n  schema: 1\n  m:\n    on:\n      3: {se: .nan, samples: 9}",
            "se is nan, expected a finite number",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(body)
    with pytest.raises(EvalkitError, match=words.replace("[", r"\[")):
        read_curve(path)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(EvalkitError, match="does not exist"):
        read_curve(tmp_path / "none.yaml")


# --- recording


def test_record_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "gradeschool-m3_dspark.yaml"
    runs = [make_run(3), make_run(5, seed=1)]
    table = record_curve(runs, path, write=False)
    assert not path.exists()
    assert record_curve(runs, path) == table
    curve = read_curve(path)
    value = lookup(curve, 3)
    assert value.accepted_length == pytest.approx(1 + 3 * 0.7, abs=0.1)
    assert value.steps == 720 and value.clusters == 60 and value.histogram is not None
    assert sum(value.histogram) == 720
    assert value.se is not None and value.interval is not None
    assert value.interval[0] < value.accepted_length < value.interval[1]
    asked = {"endpoint": "engine", "shots": 0, "template": "none", "bos": "tokenizer"}
    assert value.fingerprint == MARKS | {"quant": "float32"} | asked
    assert sorted(p.name for p in tmp_path.iterdir()) == [evidence_path(path).name, path.name]  # nothing else is left

    by_inferencex = yaml.safe_load(path.read_text())  # as its readers do: model, mode, K, a plain number
    assert next(iter(by_inferencex)) == "gradeschool-m3"
    assert isinstance(by_inferencex["gradeschool-m3"]["thinking_off"][3], float)

    again = record_curve([make_run(3, seed=7)], path)
    assert f"{value.accepted_length:.4f}" in again and "(kept)" in again
    assert lookup(read_curve(path), 5).run_id == "run-k5-1"
    assert lookup(read_curve(path), 3).run_id == "run-k3-7"


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([], "no run"),
        ([make_run(3, complete=False)], "incomplete"),
        ([make_run(3, expected=61)], "incomplete"),
        ([make_run(3, task_size=1319)], "60 of 1319 samples"),
        ([make_run(0)], "K=0"),
        ([make_run(3, share=0.0)], "never have worked"),
        ([make_run(3, share=0.01)], "never have worked"),
        ([make_run(3, share=1.0)], "looks forced"),
        ([make_run(3), make_run(3, seed=1)], "several of the runs have the same K"),
        ([make_run(3), marked(make_run(5), target_sha="t2")], "target_sha: t2 and t1"),
        ([make_run(3), marked(make_run(5), draft_sha="d2")], "draft_sha"),
        ([make_run(3), marked(make_run(5), task_sha="q2")], "task_sha"),
        ([make_run(3), marked(make_run(5), quant="fp8")], "quant: fp8 and float32"),
        ([marked(make_run(3), target_sha=None)], "does not say its target_sha"),
    ],
)
def test_unfit_runs_make_no_golden(tmp_path: Path, runs: list[Run], words: str) -> None:
    path = tmp_path / "g.yaml"
    with pytest.raises(EvalkitError, match=words):
        record_curve(runs, path)
    assert not path.exists()


def test_forced_and_failed_samples_make_no_golden(tmp_path: Path) -> None:
    run = make_run(3)
    for change, words in (({"forced": True}, "forced"), ({"error": "timeout"}, "1 failed request")):
        samples = (dataclasses.replace(run.samples[0], **change), *run.samples[1:])
        with pytest.raises(EvalkitError, match=words):
            record_curve([dataclasses.replace(run, samples=samples)], tmp_path / "g.yaml")


def test_a_value_of_another_configuration_cannot_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    record_curve([make_run(3), make_run(5)], path)
    before = path.read_text()
    with pytest.raises(EvalkitError, match="record all K of the curve together"):
        record_curve([marked(make_run(3, seed=2), target_sha="t2")], path)
    assert path.read_text() == before
    both = [marked(make_run(3, seed=2), target_sha="t2"), marked(make_run(5, seed=2), target_sha="t2")]
    record_curve(both, path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.yaml"
    record_curve([make_run(3)], path)
    before = {p: p.read_text() for p in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EvalkitError, match="No space left"):
        record_curve([make_run(3, seed=4)], path)
    assert {p: p.read_text() for p in tmp_path.iterdir()} == before


# --- defaults


def test_defaults(tmp_path: Path) -> None:
    run = make_run(7)
    empty = defaults_for(run, tmp_path)
    assert (empty.golden, empty.baseline, empty.references) == (None, None, ())
    assert len(empty.missing) == 2
    record_curve([run], tmp_path / "gradeschool-m3_dspark.yaml")
    record_baseline(make_run(0), tmp_path / "gradeschool-m3_gradeschool.baseline.json")
    found = defaults_for(run, tmp_path)
    assert found.golden is not None and found.baseline is not None and not found.missing
    assert defaults_for(with_cell(run, draft="dspark-weak"), tmp_path).golden is not None
    assert defaults_for(with_cell(run, draft="ngram"), tmp_path).golden is None
    other_task = defaults_for(with_cell(run, task="gsm8k"), tmp_path)
    assert other_task.baseline is None and "on task gsm8k" in other_task.missing[0]
    assert defaults_for(make_run(0), tmp_path).missing == ()


def test_a_baseline_is_found_by_target_and_task(tmp_path: Path) -> None:
    school, gsm8k = make_run(0), with_cell(make_run(0), task="gsm8k")
    paths = {t: baseline_path("gradeschool-m3", t, tmp_path) for t in ("gradeschool", "gsm8k")}
    for made in (school, gsm8k):
        record_baseline(made, paths[str(made.cell["task"])])
    assert {t: defaults_for(with_cell(school, task=t), tmp_path).baseline.task for t in paths} == {t: t for t in paths}  # type: ignore[union-attr]
    assert GOLDEN / baseline_path("gradeschool-m3", "gradeschool").name in GOLDEN.iterdir()
    paths["gsm8k"].rename(paths["gradeschool"])
    with pytest.raises(EvalkitError, match=r"holds the baseline of gradeschool-m3 on task gsm8k; fix: rename it to"):
        defaults_for(school, tmp_path)


def test_the_old_name_of_a_baseline_is_an_error_and_no_missing_file(tmp_path: Path) -> None:
    record_baseline(make_run(0), tmp_path / "gradeschool-m3.baseline.json")
    words = r"has the name of older baselines; fix: rename it to gradeschool-m3_gradeschool\.baseline\.json"
    with pytest.raises(EvalkitError, match=words):
        defaults_for(make_run(7), tmp_path)
    assert defaults_for(with_cell(make_run(7), task="gsm8k"), tmp_path).baseline is None


@pytest.mark.parametrize("change", [
    {"fingerprint": None}, {"fingerprint": {}}, {"fingerprint": 5}, {"run": 5}, {"counters": 5}, {"steps": -5},
    {"steps": "x"}, {"steps": None}, {"histogram": None}, {"histogram": ["a"] * 4}, {"interval": None},
    {"interval": [1]}, {"interval": ["a", "b"]}, {"interval": [9, 1]}, {"se": "x"}, {"samples": "x"},
], ids=str)  # fmt: skip
def test_evidence_that_lost_a_part_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    """Without its fingerprint a recorded value would be compared with any run, as an imported curve is."""
    path = tmp_path / "g.yaml"
    record_curve([make_run()], path)
    beside = evidence_path(path)
    data = json.loads(beside.read_text())
    data["gradeschool-m3"]["thinking_off"]["3"] |= change
    beside.write_text(json.dumps(data))
    with pytest.raises(EvalkitError) as found:
        read_curve(path)
    assert "g.yaml at K=3" in str(found.value) and "\n" not in str(found.value)

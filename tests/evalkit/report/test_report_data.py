"""Markdown, the plots' data and the report command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalkit.errors import EvalkitError
from evalkit.judging import read_verdicts, report_subjects, with_verdicts
from evalkit.outputs.document import write_json
from evalkit.records import Outcome, Run, StepRecord
from evalkit.report import figures, markdown
from evalkit.report.data import write_data
from evalkit.report.markdown import page_markdown
from evalkit.report.render import render_page
from evalkit.report.subject import Subject
from evalkit.report.text import inline
from tests.evalkit.report.makers import (
    HOSTILE,
    Reader,
    make_pair,
    make_run,
    make_subject,
    make_verdict,
)


@pytest.fixture(scope="module")
def pair() -> list[Subject]:
    return make_pair()


def test_every_plot_has_its_data_in_both_formats(pair: list[Subject], tmp_path: Path) -> None:
    files = write_data(pair, tmp_path / "data")
    names = {p.name for p in figures.plots(pair)}
    assert {f.stem for f in files} == names | {"runs"} and "survival" in names and "calibration" in names
    for file in files:
        frame = pd.read_csv(file)
        other = pd.read_parquet(file.with_suffix(".parquet"))
        assert list(frame.columns) == list(other.columns) and len(frame) == len(other) > 0
        if "label" in frame:
            assert set(frame["run"]) <= {"run-5", "run-7"}
    survival = pd.read_csv(tmp_path / "data" / "survival.csv")
    here = survival[survival["run"] == "run-7"]["share"]
    assert list(here) == pytest.approx([p.survival for p in pair[1].curve])
    with pytest.raises(EvalkitError, match="cannot write"):
        write_data(pair, files[0])


def test_markdown_of_one_run_and_of_two(pair: list[Subject]) -> None:
    one = markdown.page_markdown(pair[1:])
    assert one.startswith("**inconclusive**: Can't tell yet") and "| Does it answer as well? | inconclusive |" in one
    assert "run-7" in one and "git checkout" in one
    two = markdown.page_markdown(pair)
    assert "| run | K | quant mode |" in two and "exact McNemar" in two and "run-5" in two and "run-7" in two
    rows = [line for line in two.splitlines() if line.startswith("|")]
    assert rows and all(line.endswith("|") for line in rows)


def test_markdown_can_hold_no_markup_link_or_mention() -> None:
    told = inline("a|b <script> `x` [l](https://evil) @someone #12 www.x.y \u202e *b* _i_\nnew")
    assert "\n" not in told and "<" not in told and "](" not in told.replace("\\]", "") and "\u202e" not in told
    assert "@" not in told and "https://" not in told and "www." not in told and "\\|" in told
    run = make_run(30)
    hostile = replace(run, id=HOSTILE, cell={**run.cell, "target": HOSTILE}, provenance={"command": "```\n" + HOSTILE})
    text = markdown.page_markdown([make_subject(hostile, make_verdict(hostile), label="x")])
    outside = "".join(text.split("````sh")[0:1])
    assert "<script>" not in outside and "\u202e" not in text and "````sh" in text


def test_verdicts_are_read_back_as_they_were(tmp_path: Path) -> None:
    run = make_run(30)
    verdict = make_verdict(run)
    file = write_json([verdict], [run], tmp_path / "one")
    assert [w.verdict for w in read_verdicts(file)] == [verdict]
    found = with_verdicts([run, replace(run, id="other")], file)
    assert found[0] is not None and found[0].verdict == verdict and found[1] is None
    with pytest.raises(EvalkitError, match="is of run"):
        with_verdicts([replace(run, id="other")], file)
    for bad in ("{", "[1]", json.dumps({"outcome": "maybe", "checks": [], "run_id": "x"}), '{"a": NaN}'):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(EvalkitError, match="no verdict"):
            read_verdicts(tmp_path / "bad")
    with pytest.raises(EvalkitError, match="does not exist"):
        read_verdicts(tmp_path / "nothing")


def _answered_otherwise(run: Run) -> Run:
    return replace(run, samples=(replace(run.samples[0], text="42"), *run.samples[1:]))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_answered_otherwise, "samples"),
        (lambda run: replace(run, samples=run.samples[1:]), "samples 30 there, 29 here"),
        (lambda run: replace(run, provenance={**run.provenance, "started": "2026-12-01T00:00:00+00:00"}), "started"),
        (lambda run: replace(run, cell={**run.cell, "quant": "fp8"}), "quant"),
        (lambda run: replace(run, complete=False), "complete"),
    ],
)
def test_a_verdict_is_never_shown_over_samples_it_was_not_made_of(
    tmp_path: Path, change: Callable[[Run], Run], word: str
) -> None:
    run = make_run(30)
    file = write_json([make_verdict(run)], [run], tmp_path / "one")
    with pytest.raises(EvalkitError, match=word) as caught:
        with_verdicts([change(run)], file)
    assert "\n" not in caught.value.what and "evalkit gate" in caught.value.fix


def test_a_verdict_that_does_not_say_of_which_samples_it_is_is_refused(tmp_path: Path) -> None:
    run = make_run(30)
    file = write_json([make_verdict(run)], [run], tmp_path / "one")
    document = json.loads(file.read_text())
    del document["verdicts"][0]["run"]["samples_sha"]
    file.write_text(json.dumps(document))
    with pytest.raises(EvalkitError, match="does not say of which samples"):
        with_verdicts([run], file)


def test_a_page_says_that_its_verdict_was_read_and_not_judged(tmp_path: Path) -> None:
    run = make_run(30)
    file = write_json([make_verdict(run)], [run], tmp_path / "verdict.json")
    found = report_subjects([(run, j) for j in with_verdicts([run], file)])
    said = "verdict from verdict.json, not judged again"
    assert said in Reader(render_page(found)).text
    assert said.replace("_", "\\_") in page_markdown(found)
    assert said not in render_page(report_subjects([(run, None)]))


def test_the_worst_of_two_verdicts_on_one_run_is_shown(tmp_path: Path) -> None:
    run = make_run(30)
    two = [make_verdict(run, Outcome.FAIL), make_verdict(run, Outcome.PASS)]
    found = with_verdicts([run], write_json(two, [run], tmp_path / "one"))
    assert found[0] is not None and found[0].verdict.outcome is Outcome.FAIL


def test_by_draft_counts_what_was_judged() -> None:
    """Two samples counted by hand: a block of 3 all kept; one cut by a stop after 1 draft; one that keeps 0."""
    run = make_run(2, 3)
    steps = [(3, 3, ""), (3, 1, "stop"), (0, 0, "")]
    made = tuple(StepRecord(k=3, accepted=a, accepted_trimmed=t, cut=c) for a, t, c in steps)
    found = make_subject(replace(run, samples=tuple(replace(s, steps=made) for s in run.samples)))
    assert [(p.low, p.steps, p.value) for p in found.by_draft] == [(1, 6, 2 / 3), (2, 2, 1.0), (3, 2, 1.0)]


def test_intervals_of_the_runs_are_numbers_in_two_columns(pair: list[Subject], tmp_path: Path) -> None:
    write_data(pair, tmp_path)
    rows = pd.read_csv(tmp_path / "runs.csv").to_dict("records")
    assert len(rows) == 2 and not any("95 %" in column for column in rows[0])
    for row in rows:
        for name in ("strict-match", "difference to baseline", "accepted length"):
            assert row[f"{name} low"] < row[name] < row[f"{name} high"]
    correct, n = pair[0].scored
    assert rows[0]["strict-match"] == pytest.approx(correct / n)


@pytest.mark.parametrize(("change", "labels"), [
    ({"cell": ({"max_batch": 1}, {"max_batch": 64})}, ["K=7 nvfp4 batch 1", "K=7 nvfp4 batch 64"]),
    ({"cell": ({"limit": 0}, {"limit": 40})}, ["K=7 nvfp4 whole", "K=7 nvfp4 limit 40"]),
    ({"cell": ({"tp": 1}, {"tp": 4})}, ["K=7 nvfp4 TP 1", "K=7 nvfp4 TP 4"]),
    ({"cell": ({"server": {"concurrency": 1, "tp": 2}}, {"server": {"concurrency": 64, "tp": 2}})},
     ["K=7 nvfp4 concurrency 1", "K=7 nvfp4 concurrency 64"]),
    ({"fingerprint": ({"mode": "thinking_on"}, {"mode": "thinking_off"})},
     ["K=7 nvfp4 thinking on", "K=7 nvfp4 thinking off"]),
    ({"cell": ({"max_batch": 64}, {"server": {"concurrency": 64, "tp": 1}})}, ["K=7 nvfp4 #1", "K=7 nvfp4 #2"]),
])  # fmt: skip
def test_labels_say_how_runs_were_served_where_that_differs(
    change: dict[str, tuple[dict[str, Any], ...]], labels: list[str]
) -> None:
    """Accepted length by concurrency, TP or thinking is read off a sweep's page, whose rows have these labels."""
    run = make_run(4, cell={**make_run(1).cell, "quant": "nvfp4"})
    ((part, values),) = change.items()
    runs = [replace(run, id=f"r{i}", **{part: {**getattr(run, part), **more}}) for i, more in enumerate(values)]
    assert [s.label for s in report_subjects([(r, None) for r in runs])] == labels

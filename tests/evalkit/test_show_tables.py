"""`evalkit show` fits a terminal; the frames hold what the run holds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from evalkit import tables
from evalkit.config import ROOT
from evalkit.console import run_rows
from evalkit.records import Bucket, CanonicalScore, Check, Outcome, Verdict
from evalkit.shares import bucket_counts
from evalkit.show import run_text
from tests.evalkit.goldens import make_run


def test_show_fits_80_columns_and_has_every_part() -> None:
    run = make_run(7)
    samples = tuple(dataclasses.replace(s, text="t", category=f"kind {s.doc_id % 3}") for s in run.samples)
    made = dataclasses.replace(run, samples=samples)
    text = run_text(made, 80)
    for words in ("accepted length", "95 %", "few documents: 60", "by position", "useful K", "tokens a forward",
                  "by tokens of the answer", "kind 2", "ended by itself", "settings", "temperature"):  # fmt: skip
        assert words in text, words
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, run_text(made, 60).splitlines())) <= 60
    assert set(run_text(made).split()) <= set(text.split()), "a pipe gets the same words"


def test_the_terminal_table_names_every_bucket_that_is_no_answer() -> None:
    run = make_run(3)
    assert "canonical" not in dict(run_rows(run))  # stored without one
    good = CanonicalScore(value="1", correct=True, bucket=Bucket.ANSWERED)
    samples = [dataclasses.replace(s, text="#### 1", canonical=good) for s in run.samples]
    table = dict(run_rows(dataclasses.replace(run, samples=tuple(samples))))
    assert table["canonical"] == "1.0000, 95 % 0.9398 .. 1.0000  (60/60)"
    cut = dataclasses.replace(good, correct=False, bucket=Bucket.TRUNCATED)
    samples[:2] = [dataclasses.replace(s, canonical=cut) for s in samples[:2]]
    samples[2] = dataclasses.replace(samples[2], error="cut off", canonical=None)
    words = dict(run_rows(dataclasses.replace(run, samples=tuple(samples))))["canonical"]
    assert words == "0.9661 ± 0.0238  (57/59); truncated 2, failed 1"


def test_show_of_plain_decoding_says_nothing_of_acceptance() -> None:
    text = run_text(make_run(0))
    assert "acceptance" not in text and f"  {Bucket.EMPTY.value}   60" in text


def test_show_counts_answers_in_the_buckets_of_the_report() -> None:
    run = make_run(3)
    words = ["#### 1", "no number here", "", *["#### 1"] * 57]
    samples = [dataclasses.replace(s, text=w) for s, w in zip(run.samples, words, strict=True)]
    samples[3] = dataclasses.replace(samples[3], error="cut off", text="", finish_reason="")
    samples[4] = dataclasses.replace(samples[4], finish_reason="length", text="so far")
    made = dataclasses.replace(run, samples=tuple(samples))
    answers, ends = (part.splitlines()[1:] for part in run_text(made).split("\n\n")[-3:-1])
    assert {name: int(n) for name, n in (line.strip().rsplit(maxsplit=1) for line in answers)} == {
        bucket.value: n for bucket, n in bucket_counts(made.samples).items() if n
    }
    assert sum(int(line.split()[-1]) for line in answers) == 60 and any("failed" in line for line in answers)
    assert [line.split()[-1] for line in ends] == ["58", "1"], "the failed one did not end"


def test_frames() -> None:
    pytest.importorskip("pandas")
    two = [make_run(3), make_run(0)]
    runs: Any = tables.runs(two)
    samples: Any = tables.samples(two)
    steps: Any = tables.steps(two)
    assert list(runs["run"]) == [r.id for r in two] and len(samples) == 120 and len(steps) == 720
    assert runs["accepted_length"][0] == pytest.approx(1 + steps["accepted"].sum() / 720)
    assert samples["score:strict-match"].mean() == pytest.approx(runs["score:strict-match"].mean())
    positions: Any = tables.acceptance(two)
    assert list(positions["position"]) == [1, 2, 3]
    assert 1 + positions["survival"].sum() == pytest.approx(runs["accepted_length"][0])
    assert (positions["survival_low"] <= positions["survival"]).all()
    groups: Any = tables.groups(two)
    assert set(groups["kind"]) == {"category", "answer tokens"}
    check = Check(name="c", outcome=Outcome.PASS, expected="e", found="f", message="m")
    frame: Any = tables.checks([Verdict(outcome=Outcome.PASS, checks=(check,), run_id="r")])
    assert frame.loc[0, "check"] == "c"
    assert len(tables.samples([])) == 0 and "run" in tables.checks([]).columns


def test_tables_import_no_pandas() -> None:
    code = "import sys, evalkit.tables; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

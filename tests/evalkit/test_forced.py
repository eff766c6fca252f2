"""Forced acceptance from the command's words to the gate: counted, marked everywhere, scored nowhere."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from evalkit.backends.scripted import Scripted
from evalkit.baseline import refuse_unfit
from evalkit.config import Cell
from evalkit.console import run_rows, runs_table
from evalkit.errors import EvalkitError
from evalkit.gate import judge
from evalkit.golden import record_curve
from evalkit.judging import write_report
from evalkit.outputs.lm_eval_files import sample_rows, unfit
from evalkit.progress import Tally
from evalkit.records import Bucket, Outcome, Run
from evalkit.run import run_cell
from evalkit.scoring import score_samples
from evalkit.show import run_text
from tests.evalkit.test_gate import named

DOCS = 16


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """The embedded model at K=7, its acceptance drawn at 4.04."""
    root = tmp_path_factory.mktemp("runs")
    cell = Cell.make(k=7, forced_length=4.04, limit=DOCS, max_tokens=60, threads=1, device="cpu")
    return run_cell(cell, runs_dir=root), root


def test_a_forced_run_has_counts_and_times_and_no_text_and_no_score(forced: tuple[Run, Path]) -> None:
    run, _ = forced
    assert run.complete and run.forced and len(run.samples) == DOCS and run.output_tokens > DOCS
    assert (run.cell["verify"], run.fingerprint["verify"], run.fingerprint["forced_length"]) == ("forced",) * 2 + (
        4.04,
    )
    for s in run.samples:
        assert s.forced and s.tokens and all(step.forced for step in s.steps)
        assert not (s.text or s.scores or s.extracted or s.pieces or s.gaps or s.canonical)
    whole = [step.accepted for s in run.samples for step in s.steps if step.k == 7]
    assert set(whole) <= {3, 4} and len(whole) > 100


def test_no_scorer_takes_a_forced_text(forced: tuple[Run, Path]) -> None:
    run, _ = forced
    with_text = [dataclasses.replace(s, text="#### 4", gold="4") for s in run.samples]
    assert {c.bucket for c in score_samples(with_text)} == {Bucket.FORCED}
    assert {c.correct for c in score_samples(with_text)} == {None}


def test_the_gate_refuses_a_forced_run_by_name(forced: tuple[Run, Path]) -> None:
    run, _ = forced
    verdict = judge(run, baseline=None, golden=None)
    real = named(verdict, "real acceptance")
    assert verdict.outcome is Outcome.FAIL and real.outcome is Outcome.FAIL
    assert "forced_length=4.04" in real.message and "the texts mean nothing" in real.message
    assert named(verdict, "scores").outcome is Outcome.FAIL
    # and where the setting is lost but the samples are marked
    bare = dataclasses.replace(run, cell={k: v for k, v in run.cell.items() if k not in ("forced_length", "verify")})
    assert named(judge(bare, baseline=None, golden=None), "real acceptance").outcome is Outcome.FAIL


def test_goldens_and_baselines_refuse_a_forced_run(forced: tuple[Run, Path], tmp_path: Path) -> None:
    whole = dataclasses.replace(forced[0], task_size=DOCS)
    with pytest.raises(EvalkitError, match="forced acceptance"):
        record_curve([whole], tmp_path / "g.yaml")
    with pytest.raises(EvalkitError, match="forced acceptance: no baseline"):
        refuse_unfit(whole, "baseline")
    assert not list(tmp_path.iterdir())


def test_the_tables_of_run_and_list_say_forced_beside_the_length(forced: tuple[Run, Path]) -> None:
    run, _ = forced
    real = dataclasses.replace(
        run,
        cell={k: v for k, v in run.cell.items() if k not in ("forced_length", "verify")},
        samples=tuple(
            dataclasses.replace(s, forced=False, steps=tuple(dataclasses.replace(t, forced=False) for t in s.steps))
            for s in run.samples
        ),
    )
    (row,) = (value for what, value in run_rows(run) if what == "accepted length")
    assert row.endswith("(of at most 8; forced: drawn, not verified)")
    (unmarked,) = (value for what, value in run_rows(real) if what == "accepted length")
    assert row.split("  ")[0] == unmarked.split("  ")[0] and "drawn" not in unmarked
    for shown, marked in ((run, True), (real, False)):
        tally = Tally(total=DOCS)
        for sample in shown.samples:
            tally.add(sample)
        assert ("(forced)" in tally.line(1.0)) is marked
        out = Console(width=200, record=True, file=io.StringIO())
        out.print(runs_table([shown]))
        text = out.export_text()
        assert bool(re.search(r" \d\.\d{3} forced ", text)) is marked, text


def test_show_and_report_say_forced_and_print_no_score(forced: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = forced
    shown = run_text(run)
    assert "FORCED: no evidence" in shown and "forced_length   4.04" in shown and "trimmed at stops" in shown
    page = write_report(run, None, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "forced acceptance: cannot certify" in page and "--forced-length 4.04" in page


def test_lm_eval_files_have_no_score_of_it(forced: tuple[Run, Path]) -> None:
    run, _ = forced
    (row,) = sample_rows(run.samples[0], run)
    assert row["error"] == "acceptance was forced" and not any("match" in key for key in row)
    assert "forced" in unfit(dataclasses.replace(run, task_size=DOCS))


def test_forced_asked_for_and_not_given_is_refused(tmp_path: Path) -> None:
    cell = Cell.make(k=7, forced_length=4.04, limit=3)
    with pytest.raises(EvalkitError, match="forced acceptance was asked for, and this engine verified"):
        run_cell(cell, runs_dir=tmp_path, backend=lambda c: Scripted(lambda r: "#### 1", k=7))
    with pytest.raises(EvalkitError, match="no score to decide by"):
        Cell.make(k=7, forced_length=4.04, stop_early=True)


def test_a_real_run_tells_its_tokens_and_gaps(tmp_path: Path) -> None:
    """Speculative and plain runs of the embedded model: the same tokens, a gap at each, both accepted lengths."""
    words = {"limit": 4, "max_tokens": 40, "threads": 1, "device": "cpu"}
    run, plain = (run_cell(Cell.make(k=k, **words), runs_dir=tmp_path) for k in (7, 0))
    for here, there in zip(run.samples, plain.samples, strict=True):
        assert here.pieces == there.pieces and len(here.pieces) == len(here.gaps) == here.tokens
        assert here.gaps == pytest.approx(there.gaps, rel=2e-3, abs=2e-3)
    assert "trimmed at stops" in run_text(run)

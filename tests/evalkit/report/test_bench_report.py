"""`make bench-report`: its runs are runs, its page is written, and its table says whether a limit is met."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalkit.runfile import load_run
from tests.evalkit.report.makers import make_run
from tests.evalkit.report.test_report_serve import store
from tools import bench_report
from tools.bench_report import Case, Limits, Measured, Opened


def test_copies_are_a_run_of_other_documents(tmp_path: Path) -> None:
    name = store(tmp_path, make_run(12), "2026-11-01T00:00:00+00:00")
    run = load_run(bench_report.copies(tmp_path / name, 30, tmp_path / "many"))
    assert len(run.samples) == run.expected == 30 and len({s.doc_hash for s in run.samples}) == 30
    assert run.samples[25].text == run.samples[1].text and run.samples[25].steps == run.samples[1].steps


def test_a_page_is_written_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_report, "browser", lambda: None)
    name = store(tmp_path, make_run(12), "2026-11-01T00:00:00+00:00")
    case = Case(name="small", folders=(tmp_path / name,), shows="", limits=Limits(seconds=60, size=10, opens=1))
    found = bench_report.measure(case, tmp_path / "page.html", 1)
    assert found.size == (tmp_path / "page.html").stat().st_size and found.cpu[0] > 0 and found.opened == Opened()
    told = bench_report.table([(case, found)], 1)
    assert "under 60 s: met" in told and "at most 10: not met" in told and "not measured" in told


def test_the_table_goes_between_its_marks_again_and_again() -> None:
    opened = Opened(load=(0.5,), cpu=(0.25, 3.0, 2.0), sample=(0.7,))
    found = Measured(cpu=(1.0, 9.0, 2.0), wall=(3.0,), size=5, memory=2**20, opened=opened)
    case = Case(name="c", folders=(), shows="", limits=Limits(seconds=5, size=9, opens=1))
    told = bench_report.table([(case, found)], 3)
    assert "2.00 s (1.00 .. 9.00), under 5 s: met" in told and "2.00 s (0.25 .. 3.00), under 1 s: not met" in told
    once = bench_report.with_table(f"a\n{bench_report.BEGIN}\nold\n{bench_report.END}\nz", told)
    assert "old" not in once and once.startswith("a\n") and once.endswith("\nz")
    assert bench_report.with_table(once, told) == once
    with pytest.raises(SystemExit, match="no place"):
        bench_report.with_table("nothing", told)
    assert bench_report.with_table(bench_report.DOCUMENT.read_text(encoding="utf-8"), told)

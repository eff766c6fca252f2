"""`evalkit report`: what it writes, where, and which options it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evalkit.cli import main
from tests.evalkit.test_golden import make_run
from tests.evalkit.test_spec import store


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        store(Path("runs"), replace(make_run(3), id=name))
    return tmp_path


def test_markdown_goes_to_the_file_that_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert main(["report", "a", "--markdown", "-o", "new/m.md"]) == 0
    assert Path("new/m.md").read_text() == printed and "| check |" in printed
    assert "new/m.md" in capsys.readouterr().out and not Path("runs/a/report.html").exists()
    assert main(["report", "a", "--markdown", "-o", "runs"]) == 2
    assert "runs is a folder, not a file" in capsys.readouterr().err


def test_a_port_without_serve_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "--port", "5"]) == 2
    assert "--port 5 is of --serve" in capsys.readouterr().err and not Path("runs/a/report.html").exists()


def test_a_page_lies_where_the_help_says(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a"]) == 0 and Path("runs/a/report.html").is_file()
    assert main(["report", "a", "b"]) == 0 and Path("runs/report.html").is_file()
    capsys.readouterr()
    assert main(["report", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "report.html in the run, of several in --runs-dir; markdown is printed" in said and "[default: 8188]" in said

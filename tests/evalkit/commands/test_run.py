"""evalkit run, with a scripted engine."""

import pytest

from evalkit import run as run_module
from evalkit.cli import main
from evalkit.records import Outcome
from tests.evalkit.places import RUN, the_run


@pytest.mark.parametrize("outcome", list(Outcome))
def test_run_exits_with_the_verdict(place, verdict, capsys, outcome):
    verdict(outcome)
    assert main([*RUN, "--no-report"]) == {"pass": 0, "fail": 1, "inconclusive": 3}[outcome.value]
    out, err = capsys.readouterr()
    assert f"verdict: {outcome.value.upper()}" in out and "accuracy: all of it" in out and "a note" in out
    assert "strict-match       1.0000" in out and "accepted length" in out and f"run: runs/{the_run(place)}" in out
    assert "\nrun gradeschool-target-draft-k7-float32-" in err and "6/6" in err


def test_run_without_a_gate_exits_0(place, capsys):
    assert main([*RUN, "--no-gate", "--no-report", "--k", "0"]) == 0
    out = capsys.readouterr().out
    assert "verdict" not in out and "accepted length" not in out and "plain" in out


def test_run_writes_its_report(place, verdict, capsys):
    verdict(Outcome.PASS)
    assert main(RUN) == 0
    path = place / "runs" / the_run(place) / "report.html"
    assert f"report: runs/{the_run(place)}/report.html" in capsys.readouterr().out
    assert "<html" in path.read_text()
    assert main(["report", the_run(place), "-o", "other.html"]) == 0
    assert (place / "other.html").is_file()


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_an_interrupt_says_what_is_kept(place, capsys, monkeypatch, number, code):
    def stop(*args, **words):
        raise run_module.Interrupted(kept=4, total=6, number=number)

    monkeypatch.setattr(run_module, "run_cell", stop)
    assert main(RUN) == code
    assert capsys.readouterr().err == "interrupted: 4 of 6 samples kept; the same command continues\n"

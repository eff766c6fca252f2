"""evalkit baseline record."""

import json

import pytest
import typer

from evalkit.cli import main
from tests.evalkit.places import CLI_QUESTIONS, RUN, the_run


def test_a_baseline_is_recorded_and_taken(place, capsys):
    main([*RUN, "--no-gate", "--no-report", "--k", "0"])
    base = the_run(place)
    assert main(["baseline", "record", base, "-o", "b.json"]) == 2  # nobody to ask
    assert "add --yes" in capsys.readouterr().err and not (place / "b.json").exists()
    assert main(["baseline", "record", base, "-o", "b.json", "--yes"]) == 0
    assert "recorded: b.json" in capsys.readouterr().out and (place / "b.json").is_file()
    main([*RUN, "--no-gate", "--no-report"])
    capsys.readouterr()
    drafted = next(p.name for p in (place / "runs").iterdir() if p.name != base)
    for given in ("b.json", f"runs/{base}"):
        main(["gate", drafted, "--baseline", given, "--json", "-"])
        checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]}
        assert checks["accuracy"]["numbers"]["paired"] == CLI_QUESTIONS


def test_a_baseline_of_several_runs_says_how_they_vary(place, capsys):
    for seed in ("0", "1"):
        main([*RUN, "--no-gate", "--no-report", "--k", "0", "--seed", seed])
    runs = sorted(p.name for p in (place / "runs").iterdir())
    capsys.readouterr()
    assert main(["baseline", "record", *runs, "-o", "b.json", "--yes"]) == 0
    assert "run-to-run sd 0 pt of 2 runs" in capsys.readouterr().out
    assert json.loads((place / "b.json").read_text())["repeats"]["runs"] == runs


@pytest.mark.parametrize("stop", [typer.Abort, KeyboardInterrupt])
def test_a_question_that_is_not_answered_is_no_verdict(place, capsys, monkeypatch, stop):
    main([*RUN, "--no-gate", "--no-report", "--k", "0"])

    def ask(*args, **words):
        raise stop

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", ask)
    assert main(["baseline", "record", the_run(place), "-o", "b.json"]) == 130  # 1 would read as a fail
    assert not (place / "b.json").exists()

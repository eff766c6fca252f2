"""Every command: help, exit codes, errors in two lines. The engine is scripted."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import typer

from evalkit import run as run_module
from evalkit.backends.scripted import Scripted
from evalkit.cli import main
from evalkit.config import ROOT
from evalkit.records import Check, Outcome, Verdict
from tests.evalkit.places import make_place

COMMANDS = (["run"], ["gate"], ["report"], ["list"], ["show"], ["golden", "record"], ["baseline", "record"])
N = 6


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, with a tiny target, draft and task, and a scripted engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def backend(cell):
        return Scripted(lambda r: f" that is , I think\n#### {int(r.id) + 1}", k=cell.k)

    monkeypatch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
    return make_place(tmp_path, N, answer="#### {n}")


@pytest.fixture
def verdict(monkeypatch):
    """Lets a test say what the gate finds."""

    def set_to(outcome):
        check = Check(name="accuracy", outcome=outcome, expected="e", found="f", message="all of it", numbers={"n": 1})
        made = Verdict(outcome=outcome, checks=(check,), run_id="r", notes=("a note",))
        monkeypatch.setattr("evalkit.judging.judge", lambda run, **words: replace(made, run_id=run.id))

    return set_to


RUN = ["run", "--model", "target", "--draft", "draft", "--data", "test.jsonl"]


def the_run(place):
    return next((place / "runs").iterdir()).name


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help(command, capsys):
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: evalkit")


@pytest.mark.parametrize("command", [*COMMANDS, ["serve"]], ids=" ".join)
def test_no_option_has_two_defaults(command, capsys):
    assert main([*command, "--help"]) == 0
    options = re.split(r"\n  (?=-)", capsys.readouterr().out)[1:]
    assert len(options) > 1 and max(o.count("[default:") for o in options) == 1


def test_the_command_line_imports_nothing_heavy():
    heavy = "torch", "lm_eval", "datasets", "transformers", "pandas", "scipy", "numpy", "statsmodels"
    code = (
        "import sys; from evalkit.cli import main; main(['--help']); "
        f"found = [m for m in {heavy} if m in sys.modules]; print(found, file=sys.stderr); sys.exit(len(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


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


def test_gate_judges_a_stored_run(place, verdict, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    for outcome, code in ((Outcome.PASS, 0), (Outcome.FAIL, 1), (Outcome.INCONCLUSIVE, 3)):
        verdict(outcome)
        assert main(["gate", the_run(place)]) == code
    capsys.readouterr()
    assert main(["gate", f"runs/{the_run(place)}", "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "inconclusive" and found["verdicts"][0]["checks"][0]["numbers"] == {"n": 1}


def test_a_real_verdict_on_six_samples_is_no_pass(place, capsys):
    assert main([*RUN, "--no-report"]) in (1, 3)
    assert "verdict: PASS" not in capsys.readouterr().out


def test_list_and_show(place, capsys):
    assert main(["list"]) == 0
    assert "no runs in runs" in capsys.readouterr().out
    main([*RUN, "--no-gate", "--no-report"])
    capsys.readouterr()
    assert main(["list"]) == 0 and f"{the_run(place)}" in (out := capsys.readouterr().out) and "6/6" in out
    assert main(["show", the_run(place)]) == 0 and "strict-match" in capsys.readouterr().out
    assert main(["show", the_run(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"]["k"] == 7


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
        assert checks["accuracy"]["numbers"]["paired"] == N


def test_a_baseline_of_several_runs_says_how_they_vary(place, capsys):
    for seed in ("0", "1"):
        main([*RUN, "--no-gate", "--no-report", "--k", "0", "--seed", seed])
    runs = sorted(p.name for p in (place / "runs").iterdir())
    capsys.readouterr()
    assert main(["baseline", "record", *runs, "-o", "b.json", "--yes"]) == 0
    assert "run-to-run sd 0 pt of 2 runs" in capsys.readouterr().out
    assert json.loads((place / "b.json").read_text())["repeats"]["runs"] == runs


def test_gate_of_several_runs_is_one_table_and_the_worst_code(place, verdict, capsys):
    for seed in ("0", "1"):
        main([*RUN, "--no-gate", "--no-report", "--seed", seed])
    runs = sorted(p.name for p in (place / "runs").iterdir())

    def judged(run, **words):
        worst = Outcome.FAIL if run.id == runs[0] else Outcome.PASS
        check = Check(name="accuracy", outcome=worst, expected="e", found="f", message="all", numbers={"p": 0.01})
        return Verdict(outcome=worst, checks=(check,), run_id=run.id)

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalkit.judging.judge", judged)
        assert main(["gate", *runs]) == 1
        out = capsys.readouterr().out
        assert all(word in out for word in ("accuracy p", "length p", "Holm p", "0.01", "0.02", "fail", *runs))
        assert main(["gate", *runs, "--json", "-"]) == 1
        found = json.loads(capsys.readouterr().out)["verdicts"]
        assert [v["outcome"] for v in found] == ["fail", "pass"] and found[1]["run_id"] == runs[1]
        assert found[1]["checks"][-1]["numbers"]["p_adjusted"] == 0.02
        assert main(["gate", runs[1], runs[1]]) == 2
        capsys.readouterr()
        assert main(["gate", *runs, "--in-order"]) == 1
        out = capsys.readouterr().out
        assert "in order" in out and "Holm p" not in out and f"{runs[0]} before it did not pass" in out
        assert main(["gate", runs[1], "--in-order"]) == 2 and main(["gate", *runs, "--in-order", "--repeats"]) == 2


def test_golden_needs_something_to_record(place, capsys):
    assert main(["golden", "record"]) == 2
    assert "neither a stored run nor --k" in capsys.readouterr().err
    main([*RUN, "--no-gate", "--no-report", "--limit", "3"])
    assert main(["golden", "record", the_run(place), "-o", "g.yaml", "--yes"]) == 2  # a subset is no golden
    assert "3 of 6 samples: no golden" in capsys.readouterr().err


def test_golden_records_a_run(place, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    assert main(["golden", "record", the_run(place), "-o", "g.yaml", "--yes"]) == 0
    assert "recorded: g.yaml" in capsys.readouterr().out
    assert main(["gate", the_run(place), "--golden", "g.yaml", "--json", "-"]) in (1, 3)
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]}
    assert "no golden" not in checks["accepted length"]["message"]


@pytest.mark.parametrize(
    ("words", "error", "fix"),
    [
        ([*RUN, "--k", "9"], "K is 9", "from 0"),
        ([*RUN, "--quant", "nvpf4"], "unknown quant mode 'nvpf4'", "did you mean nvfp4?"),
        ([*RUN, "--task", "gradschool"], "unknown task 'gradschool'", "did you mean gradeschool?"),
        ([*RUN, "--draft", "dspakr"], "no draft 'dspakr'", "did you mean dspark?"),
        ([*RUN, "--data", "bad.jsonl"], "bad.jsonl, line 2 is not JSON", "mend or remove"),
        ([*RUN, "--data", "nowhere.jsonl"], "nowhere.jsonl does not exist", "give the data's path"),
        ([*RUN, "--runs-dir", "test.jsonl"], "cannot make test.jsonl/", "--runs-dir"),
        ([*RUN, "--stop-early", "--limit", "3"], "--stop-early with --limit 3", "leave --limit away"),
        ([*RUN, "--stop-early"], "--stop-early has no baseline", "record a K=0 run first"),
        ([*RUN, "--alpha", "0.01"], "--alpha 0.01 without --stop-early", "add --stop-early"),
        ([*RUN, "--stop-early", "--alpha", "0.1"], "--alpha is 0.1", "at most 0.05"),
        ([*RUN, "--stop-early", "--alpha", "nan"], "--alpha is nan", "at most 0.05"),
        ([*RUN, "--limit", "-1"], "limit is -1", "at least 0"),
        (["gate", "nowhere"], "no run 'nowhere'", "evalkit list"),
        (["show", "nowhere"], "no run 'nowhere'", "evalkit list"),
    ],
)
def test_errors_are_two_lines_and_exit_2(place, capsys, words, error, fix):
    (place / "bad.jsonl").write_text('{"question": "x", "answer": "1"}\n{oops\n')
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("fix: ")
    assert error in lines[0] and fix in lines[1]
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("words", "error", "fix"),
    [
        (["run", "--nope"], "no such option: --nope", "evalkit run --help"),
        (["run", "--limt", "3"], "--limit", "evalkit run --help"),
        (["run", "--k", "abc"], "'--k'", "evalkit run --help"),
        (["run", "--temperature=hot"], "'hot'", "evalkit run --help"),
        (["run", "--quant"], "'--quant' requires an argument", "--help"),
        (["run", "7"], "unexpected extra argument", "evalkit run --help"),
        (["gate"], "missing argument", "evalkit gate --help"),
        (["golden", "chek"], "chek", "evalkit golden --help"),
        (["nope"], "no such command 'nope'", "evalkit --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_two_lines_and_exit_2(place, capsys, words, error, fix):
    assert main(words) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 2 and lines[0].startswith("error: evalkit") and lines[1].startswith("fix: ")
    assert error in lines[0] and fix in lines[1]


def test_a_value_of_another_kind_is_named(place, capsys):
    for words in (["--k", "abc"], ["--k=abc"]):
        main(["run", *words])
        assert "(found 'abc')" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["golden"], ["baseline"]], ids=" ".join)
def test_a_command_alone_prints_its_help(capsys, words):
    assert main(words) == 2
    assert "Commands:" in "".join(capsys.readouterr())


@pytest.mark.parametrize("stop", [typer.Abort, KeyboardInterrupt])
def test_a_question_that_is_not_answered_is_no_verdict(place, capsys, monkeypatch, stop):
    main([*RUN, "--no-gate", "--no-report", "--k", "0"])

    def ask(*args, **words):
        raise stop

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", ask)
    assert main(["baseline", "record", the_run(place), "-o", "b.json"]) == 130  # 1 would read as a fail
    assert not (place / "b.json").exists()


def test_a_bug_is_no_verdict(place, capsys, monkeypatch):
    monkeypatch.setattr(run_module, "run_cell", lambda *args, **words: 1 / 0)
    assert main(RUN) == 2
    assert capsys.readouterr().err.startswith("error: ZeroDivisionError: division by zero (at ")


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_an_interrupt_says_what_is_kept(place, capsys, monkeypatch, number, code):
    def stop(*args, **words):
        raise run_module.Interrupted(kept=4, total=6, number=number)

    monkeypatch.setattr(run_module, "run_cell", stop)
    assert main(RUN) == code
    assert capsys.readouterr().err == "interrupted: 4 of 6 samples kept; the same command continues\n"

"""Every command: help, exit codes, errors in two lines. The engine is scripted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit import run as run_module
from evalkit.cli import main
from evalkit.config import ROOT
from tests.evalkit.places import RUN

COMMANDS = (["run"], ["gate"], ["report"], ["list"], ["show"], ["golden", "record"], ["baseline", "record"])


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
    main(["run", "--limit", "20", "--limit", "0.5"])
    assert "(found '0.5')" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["golden"], ["baseline"]], ids=" ".join)
def test_a_command_alone_prints_its_help(capsys, words):
    assert main(words) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_a_bug_is_no_verdict(place, capsys, monkeypatch):
    monkeypatch.setattr(run_module, "run_cell", lambda *args, **words: 1 / 0)
    assert main(RUN) == 2
    assert capsys.readouterr().err.startswith("error: ZeroDivisionError: division by zero (at ")


def test_the_list_of_commands_is_whole_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["golden", "--help"], ["baseline", "--help"], ["certificate", "--help"], ["ci", "--help"],
                  ["catalogue", "--help"]):  # fmt: skip
        assert main(words) == 0
        assert "..." not in capsys.readouterr().out.partition("Commands:")[2], words


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_output_has_a_fix():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "evalkit.cli", "golden", "show", "gradeschool-m3_ngram"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: the output: No space left on device", "fix: make room, or send what is printed somewhere else"
    ]  # fmt: skip


def test_a_folder_called_like_a_specification_is_told_as_a_folder(place, capsys):
    (place / "dir.yaml").mkdir()
    assert main(["gate", "dir.yaml"]) == 2
    assert "dir.yaml is a folder that holds no run" in " ".join(capsys.readouterr().err.split())


def test_help_says_every_ending_of_a_specification(place, capsys):
    main(["gate", "--help"])
    assert ".yaml or .yml is a specification" in " ".join(capsys.readouterr().out.split())
    (place / "spec.YML").write_text("schema: 1\n")
    assert main(["gate", "spec.YML"]) == 2 and "spec.YML has no 'name'" in capsys.readouterr().err

"""The workflows and the action: what they name exists, nothing of an event reaches a shell, and their scripts run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from evalkit.cli import app
from tools import readme

ROOT = Path(__file__).resolve().parent.parent
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OUTSIDE = re.compile(r"[\w-]+/[\w-]+@v\d+")  # owner/name by the tag of a version
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
# What somebody outside can write: a title, a text, a branch's name. (A label is set by who may set labels.)
UNTRUSTED = re.compile(
    r"github\.(head_ref|event\.(issue|comment|commits|pull_request\.(title|body|head\.(ref|label))))"
)


def load(path: Path) -> dict[Any, Any]:
    """The YAML; `on`, which YAML 1.1 reads as true, under its own name."""
    values = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in values.items()}


def jobs(path: Path) -> dict[str, dict]:
    values = load(path)
    return values["jobs"] if "jobs" in values else {"action": {"steps": values["runs"]["steps"]}}


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job.get("steps", [])]


def script(path: Path, name: str) -> str:
    return next(step["run"] for step in steps(path) if step.get("name") == name)


ALL = [*WORKFLOWS, ACTION]
ids = pytest.mark.parametrize("path", ALL, ids=[p.stem for p in ALL])


@ids
def test_what_is_used_exists_and_is_pinned_by_a_version(path: Path) -> None:
    used = [item["uses"] for item in [*jobs(path).values(), *steps(path)] if "uses" in item]
    for name in used:
        if name.startswith("./"):
            local = ROOT / name.removeprefix("./").removeprefix("evalkit/")  # evalkit's checkout in evaluate.yml
            assert local.is_file() or (local / "action.yml").is_file(), name
        else:
            assert OUTSIDE.fullmatch(name), name
    assert path.stem == "heavy" or used


@ids
def test_what_is_handed_over_is_asked_for(path: Path) -> None:
    for item in [*jobs(path).values(), *steps(path)]:
        uses = item.get("uses", "")
        if not uses.startswith("./"):
            continue
        local = ROOT / uses.removeprefix("./").removeprefix("evalkit/")
        asked = (
            load(local)["on"]["workflow_call"]["inputs"] if local.is_file() else load(local / "action.yml")["inputs"]
        )
        given = item.get("with", {})
        assert set(given) <= set(asked)
        assert {name for name, one in asked.items() if one.get("required")} <= set(given)


@ids
def test_every_name_in_an_expression_is_declared(path: Path) -> None:
    values, known = load(path), jobs(path)
    inputs = values.get("inputs") or (values.get("on", {}).get("workflow_call") or {}).get("inputs", {})
    for text in EXPRESSION.findall(path.read_text()):
        assert set(re.findall(r"\binputs\.([\w-]+)", text)) <= set(inputs), text
        for job, output in re.findall(r"\bneeds\.([\w-]+)\.outputs\.([\w-]+)", text):
            assert output in known[job]["outputs"], text
        for step in re.findall(r"\bsteps\.([\w-]+)\.outputs", text):
            assert step in [s.get("id") for s in steps(path)], text
    for job in known.values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(known)


@pytest.mark.parametrize("path", WORKFLOWS, ids=[p.stem for p in WORKFLOWS])
def test_permissions_are_read_only(path: Path) -> None:
    values = load(path)
    granted = [values["permissions"], *(job["permissions"] for job in jobs(path).values() if "permissions" in job)]
    assert all(set(one.values()) <= {"read"} for one in granted)
    assert "pull_request_target" not in values["on"], "it would run a stranger's code with this repository's rights"
    assert all(step["with"]["persist-credentials"] is False for step in steps(path)
               if step.get("uses", "").startswith("actions/checkout") and path.stem != "ci")  # fmt: skip


@ids
def test_no_expression_is_in_a_shell_line(path: Path) -> None:
    assert [step["run"] for step in steps(path) if "run" in step and "${{" in step["run"]] == []
    assert not UNTRUSTED.search(path.read_text())


@ids
def test_every_script_can_be_parsed_and_what_it_starts_exists(path: Path) -> None:
    commands = dict(readme.commands(typer.main.get_command(app), "evalkit"))
    texts = [step["run"] for step in steps(path) if "run" in step]
    texts += [str(v) for item in jobs(path).values() for v in item.get("with", {}).values()]
    if path.stem == "evaluate":
        texts.append(load(path)["on"]["workflow_call"]["inputs"]["pre-check"]["default"])
    targets = {name for name, _ in readme.make_targets()}
    for text in texts:
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for words in re.findall(r"(?:^|\s)make ((?:-C \w+ )?[a-z ]+)", text):
            assert set(words.removeprefix("-C evalkit").split()) <= targets, words
        for local in re.findall(r"(?:^|\s)(\.ci/\w+)", text):
            assert os.access(ROOT / local, os.X_OK)
        started_here = re.findall(r"(?:bin/evalkit|evalkit\.cli|\"\$EVALKIT\") (\w+) ?([a-z]*)", text)
        known = set()  # of a script with two commands, the options of both
        for group, name in started_here:
            command = commands.get(f"evalkit {group} {name}") or commands[f"evalkit {group}"]
            known |= {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
        for group, name in started_here:
            started = text[text.index(f"{group} {name}".strip()) :] if path.stem == "heavy" else text
            asked = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", started))
            assert asked <= known | {"--paginate", "--slurp", "--quiet", "--constraint"}, asked - known


def test_the_plan_is_evalkits() -> None:
    text = script(ROOT / ".github" / "workflows" / "evaluate.yml", "Plan")
    assert "python -m evalkit.cli ci plan" in text
    evaluate = jobs(ROOT / ".github" / "workflows" / "evaluate.yml")
    assert set(evaluate["evaluate"]["needs"]) == {"plan", "pre-check"} and evaluate["pre-check"]["needs"] == "plan"


def test_the_plan_needs_no_more_than_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("{}")
    heavy = ("yaml", "numpy", "scipy", "jsonschema", "torch", "jinja2")
    words = ["ci", "plan", str(tmp_path / "e.json"), "--event", "push"]
    code = f"import sys; from evalkit.cli import main; main({words}); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("[]\n") and done.returncode == 0, done


# --- the scripts, run


def run_script(text: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As GitHub starts `shell: bash`."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    known = {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(cwd / "out"), "RUNNER_TEMP": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=known | env, capture_output=True, text=True, check=False)


def stand_in(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


GATE = {
    "RUNS": "",
    "RUNS_DIR": "runs",
    "BASELINE": "",
    "GOLDEN": "",
    "MARGIN": "",
    "DAYS": "",
    "OUTPUT": "o",
    "EVALKIT": "./evalkit",
}


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "pass"), (1, "fail"), (3, "inconclusive"), (2, "error"), (137, "error")]
)
def test_the_action_ends_as_the_gate_does(tmp_path: Path, code: int, outcome: str) -> None:
    stand_in(tmp_path / "evalkit", f'printf "[%s]" "$@" > asked; exit {code}')
    hostile = "$(touch x); `touch x` --json"
    done = run_script(script(ACTION, "Gate"), tmp_path, **GATE | {"RUNS": f"a\n\n{hostile}\n", "MARGIN": "0.02"})
    assert done.returncode == code
    assert (tmp_path / "out").read_text() == f"outcome={outcome}\nexit-code={code}\n"
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("[gate][--json]") and asked.endswith(
        f"[--runs-dir][runs][--margin][0.02][--][a][{hostile}]"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("code", "days", "made"), [(0, "7", True), (0, "", False), (3, "7", False)])
def test_the_action_certifies_a_pass_where_it_is_asked_to_and_keeps_no_old_certificate(
    tmp_path: Path, code: int, days: str, made: bool
) -> None:
    """The stand-in writes what evalkit would: a verdict, then the certificate of run `new`."""
    body = f"""printf "[%s]" "$@" >> asked; echo >> asked
if [ "$1" = gate ]; then mkdir -p o; touch o/verdict.json; exit {code}; fi
sleep 0.05; echo new > runs/new/certificate.json"""
    stand_in(tmp_path / "evalkit", body)
    for name in ("new", "old"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "certificate.json").write_text("old")
    os.utime(tmp_path / "runs" / "old" / "certificate.json", (0, 0))
    env = GATE | {"RUNS": "new", "MARGIN": "0.02", "DAYS": days, "EVALKIT_CERTIFICATE_KEY": "k" * 16}
    done = run_script(script(ACTION, "Gate"), tmp_path, **env)
    assert done.returncode == code, done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    kept = tmp_path / "o" / "certificates"
    assert [p.name for p in kept.glob("*")] == (["new.json"] if made else []) and len(asked) == 1 + made
    if made:
        assert (kept / "new.json").read_text() == "new\n"
        assert asked[1] == ("[certificate][make][--days][7][--runs-dir][runs][--margin][0.02]"
                            "[--key-env][EVALKIT_CERTIFICATE_KEY][--][new]")  # fmt: skip
        assert "k" * 16 not in asked[1]


def test_the_action_takes_every_stored_run_and_none_is_an_error(tmp_path: Path) -> None:
    stand_in(tmp_path / "evalkit", 'printf "[%s]" "$@" > asked')
    done = run_script(script(ACTION, "Gate"), tmp_path, **GATE)
    assert done.returncode == 2 and "no run to judge in runs" in done.stderr and not (tmp_path / "asked").exists()
    for name in ("a b", "c", "empty"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "runs" / name / "run.json").write_text("{}")
    assert run_script(script(ACTION, "Gate"), tmp_path, **GATE).returncode == 0
    assert (tmp_path / "asked").read_text().endswith("[--][runs/a b][runs/c]")


def test_the_plan_step_runs_and_what_github_does_not_say_starts_nothing_heavy(tmp_path: Path) -> None:
    path = ROOT / ".github" / "workflows" / "evaluate.yml"
    (tmp_path / "bin").mkdir()
    # pip is not asked in a test; any other module is this Python's.
    stand_in(tmp_path / "bin" / "python", f'[ "$2" = pip ] || exec {sys.executable} "$@"')
    pull = {"state": "open", "draft": False, "labels": [], "base": {"ref": "main", "repo": {"full_name": "o/r"}},
            "head": {"sha": "c" * 40, "repo": {"full_name": "o/r"}}}  # fmt: skip
    (tmp_path / "event.json").write_text(json.dumps({"action": "synchronize", "pull_request": pull}))
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "GITHUB_EVENT_NAME": "pull_request",
           "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_REPOSITORY": "o/r", "NUMBER": "7",
           "PYTHONPATH": str(ROOT), "FAMILIES": "atom vllm"}  # fmt: skip
    answers = {
        "reviews": [[{"state": "APPROVED", "author_association": "OWNER", "commit_id": None}]],
        "files": [[{"filename": "x.py"}]],
    }
    for name, values in answers.items():
        (tmp_path / f"{name}.answer").write_text(json.dumps(values))
    for body, families in [
        ("exit 1", "[]"),
        ('[ "${@: -1}" = repos/o/r/pulls/7/files ] && exit 1; cat reviews.answer', "[]"),
        ('cat "$(basename "${@: -1}").answer"', '["atom", "vllm"]'),
    ]:
        stand_in(tmp_path / "bin" / "gh", body)
        (tmp_path / "out").unlink(missing_ok=True)
        for name in ("What GitHub knows of the pull request", "Plan"):
            done = run_script(script(path, name), tmp_path, **env)
            assert done.returncode == 0, done.stderr
        assert f"families={families}\n" in (tmp_path / "out").read_text(), body

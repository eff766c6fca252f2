"""The repository as a stranger finds it: tied to no machine, generated parts current, a set-up that cannot lie."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import lock, readme, setup

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ["setup", "eval", "gate", "report", "reference", "test", "check", "fix", "bench", "audit", "ci", "clean"]
MAKE = shutil.which("make")
needs_make = pytest.mark.skipif(MAKE is None, reason="no make")


def listed_files() -> list[Path]:
    """Files under version control and new ones not ignored; every file outside build folders where git has no say."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        skipped = re.compile(r"(^|/)(\.venv|\.git|build|runs|__pycache__|\.\w+_cache)(/|$)")
        paths = [p for p in ROOT.rglob("*") if not skipped.search(p.relative_to(ROOT).as_posix())]
    return [p for p in paths if p.is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def python_files(package: str) -> list[Path]:
    return [p for p in listed_files() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] == package]


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports anywhere, those for the type checker alone left out."""
    names: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(text_of(path)))
    return names


def test_every_piece_is_there() -> None:
    pieces = """
        pyproject.toml Makefile README.md CONTRIBUTING.md LICENSE .ci/run .pre-commit-config.yaml
        .github/workflows/ci.yml engine/__init__.py evalkit/cli.py golden/README.md
        tasks/gradeschool/task.yaml tasks/gsm8k/task.yaml
    """
    assert [name for name in pieces.split() if not (ROOT / name).is_file()] == []


def test_no_machine_and_no_index_is_named() -> None:
    words = ["/" + "work/", "/" + "root/", "/tmp" + "/venv", "pypi" + ".org", "pythonhosted" + ".org"]
    words += ["download.pytorch" + ".org", "registry.npmjs" + ".org", "pip install" + " evalkit", "/opt" + "/wheels"]
    found = [f"{p.relative_to(ROOT)}: {word}" for p in listed_files() for word in words if word in text_of(p)]
    assert not found


def test_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "set -euo pipefail" in text_of(ROOT / ".ci" / "run")


def test_readme_is_current() -> None:
    text = text_of(ROOT / "README.md")
    assert readme.rendered(text) == text, "fix: make fix"


def test_readme_has_every_command_and_a_stale_part_is_noticed() -> None:
    text = text_of(ROOT / "README.md")
    for word in ("evalkit run", "evalkit gate", "evalkit report", "evalkit golden record", "--quant"):
        assert word in readme.cli_table() and word in text
    stale = text.replace("| `make bench` |", "| `make fast` |")
    assert stale != text and readme.rendered(stale) == readme.rendered(text) != stale


def test_readme_names_every_variable_of_make_eval() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\neval:")[2].partition("\n\n")[0]
    taken = {"K", "QUANT", "ARGS", *re.findall(r"\(call option,[\w-]+,(\w+)\)", recipe)}
    (line,) = (x for x in (ROOT / "README.md").read_text().splitlines() if x.startswith("`make eval` takes "))
    assert len(taken) > 8 and {name for name in taken if not re.search(rf"`{name}\b", line)} == set()


def test_every_module_says_what_it_is() -> None:
    silent = [p for top in ("engine", "evalkit", "tasks", "tools") for p in python_files(top)]
    silent = [p for p in silent if p.name != "__init__.py" and not ast.get_docstring(ast.parse(text_of(p)))]
    assert [str(p.relative_to(ROOT)) for p in silent] == []


def test_imports_keep_the_shape() -> None:
    bent = []
    for path in python_files("engine"):
        bent += [(path.name, n) for n in imported(path) & {"evalkit", "lm_eval", "pandas", "scipy", "typer"}]
    for path in python_files("evalkit"):
        here = path.relative_to(ROOT / "evalkit").as_posix()
        if here != "lm_plugin.py" and not here.startswith("harness/"):
            bent += [(here, n) for n in imported(path) & {"lm_eval"}]
        if not here.startswith("backends/"):
            bent += [(here, n) for n in imported(path) & {"torch"}]
    assert bent == []


def run_make(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """make as a shell would start it: nothing is left of the make that may be running these tests."""
    ours = {"K", "QUANT", "LIMIT", "TASK", "DRAFT", "DATA", "BATCH", "THREADS", "ARGS", "RUN", "VENV", "PYTHON"}
    ours |= {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS"}
    env = {name: value for name, value in os.environ.items() if name not in ours} | variables
    return subprocess.run([str(MAKE), *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@needs_make
def test_make_alone_lists_every_target() -> None:
    done = run_make()
    missing = [name for name in TARGETS if not re.search(rf"^  {name} +\S", done.stdout, flags=re.MULTILINE)]
    assert missing == [] and done.stderr == "" and done.returncode == 0


@needs_make
def test_make_eval_hands_over_what_was_asked_and_says_the_exit_code(tmp_path: Path) -> None:
    """The Makefile with a stand-in for evalkit that prints its arguments and exits 3."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for path, body in [
        (tmp_path / "tools" / "setup.py", ""),
        (tmp_path / ".venv" / "bin" / "evalkit", '#!/bin/sh\nprintf "[%s]" "$@"; echo; exit 3\n'),
    ]:
        path.parent.mkdir(parents=True)
        path.write_text(body)
        path.chmod(0o755)
    words = ["K=5", "QUANT=bf16", "LIMIT=20", "DATA=a b.jsonl", "ARGS=--seed 3"]
    done = run_make("eval", *words, f"PYTHON={sys.executable}", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "[run][--k][5][--quant][bf16][--limit][20][--data][a b.jsonl][--seed][3]"
    assert lines[-1] == "evalkit exit code: 3 (inconclusive)"
    assert done.returncode == 2 and "Error 3" in done.stderr  # all that make can do


@needs_make
def test_make_refuses_an_unknown_venv_but_not_an_image_s_own_variable() -> None:
    words = ["--dry-run", "setup", f"PYTHON={sys.executable}"]
    done = run_make(*words, "VENV=mine")
    assert done.returncode == 2 and "none of auto, own, system" in done.stderr
    assert "--venv auto" in run_make(*words, VENV="/some/image/venv").stdout
    assert "--venv system" in run_make(*words, VENV="system").stdout


def make_checkout(folder: Path) -> Path:
    for name in ("pyproject.toml", "tools/setup.py", "requirements/base.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def make_venv(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "evalkit"):
        (folder / "bin" / name).write_text("")
    return folder


def test_key_changes_with_what_the_environment_depends_on(tmp_path: Path) -> None:
    root = make_checkout(tmp_path)
    first = setup.key_of(root, "own", {})
    assert setup.key_of(root, "own", {}) == first
    assert setup.key_of(root, "own", {"torch": "2.9.0"}) == first, "own does not look at the interpreter's torch"
    system = setup.key_of(root, "system", {"torch": "2.9.0"})
    assert len({first, system, setup.key_of(root, "system", {"torch": "2.9.1"})}) == 3
    (root / "requirements" / "base.txt").write_text("numpy==0")
    assert setup.key_of(root, "own", {}) != first


def test_a_half_made_environment_is_never_current(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / ".venv")
    assert not setup.is_current(venv, "own", "k")
    setup.write_stamp(venv, "building", "own", "k")
    assert not setup.is_current(venv, "own", "k")
    setup.write_stamp(venv, "ready", "own", "k")
    assert setup.is_current(venv, "own", "k")
    assert not setup.is_current(venv, "own", "other") and not setup.is_current(venv, "system", "k")
    (venv / setup.STAMP).write_text('{"state": "rea')
    assert not setup.is_current(venv, "own", "k")
    setup.write_stamp(venv, "ready", "own", "k")
    (venv / "bin" / "evalkit").unlink()
    assert not setup.is_current(venv, "own", "k")


def test_what_was_killed_is_made_anew_and_what_stopped_is_gone_on_with(tmp_path: Path) -> None:
    env = setup.Environment(tmp_path)
    make_venv(env.venv)
    (env.venv / "bin" / "pip").write_text(f"#!{env.python}\n")
    for state, sound in [("ready", True), ("stopped", True), ("building", False)]:
        setup.write_stamp(env.venv, state, "own", "k")
        assert setup.can_be_updated(env, "own") == sound
        assert setup.is_current(env.venv, "own", "k") == (state == "ready")
    setup.write_stamp(env.venv, "ready", "own", "k")
    assert not setup.can_be_updated(env, "system")
    (env.venv / "bin" / "pip").write_text("#!/somewhere/else/.venv/bin/python\n")
    assert not setup.can_be_updated(env, "own")


def test_a_command_that_fails_says_whether_packages_are_whole(tmp_path: Path) -> None:
    env = setup.Environment(tmp_path)
    (tmp_path / "build").mkdir()
    for said, clean in [("ERROR: offline", True), ("Installing collected packages: six\nERROR: killed", False)]:
        with pytest.raises(setup.SetupError) as caught:
            env.run(sys.executable, "-c", f"print({said!r}); raise SystemExit(1)", "pip")
        assert caught.value.clean == clean and "build/setup.log" in caught.value.what


def test_mode_is_explicit_or_kept_or_found() -> None:
    image = {"torch": "2.9.0+rocm", "triton": "3.5.0"}
    assert setup.choose_mode("auto", None, {}) == "own"
    assert setup.choose_mode("auto", None, image) == "system"
    assert setup.choose_mode("auto", "own", image) == "own", "an environment made before is kept"
    assert setup.choose_mode("auto", "system", {}) == "own", "unless what it stood on has gone"
    assert setup.choose_mode("own", "system", image) == "own"
    with pytest.raises(setup.SetupError, match="has no torch"):
        setup.choose_mode("system", None, {})


def test_an_environment_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    env = setup.Environment(tmp_path)
    make_venv(env.venv)
    with pytest.raises(setup.SetupError, match="not made by this project"):
        setup.make_venv(env, "own", "k")
    assert (env.venv / "bin" / "python").exists()


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (
            "WARNING: Retrying ... NewConnectionError('<...>: Failed')\nERROR: No matching distribution found for six",
            "offline",
        ),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no file of torch==2.13.0 fits"),
        ("ERROR: ResolutionImpossible: see", "do not fit together"),
        ("hm\nERROR: something new", "ERROR: something new"),
    ],
)
def test_a_failed_pip_run_is_told_in_one_line(log: str, what: str) -> None:
    said, fix = setup.explain(log)
    assert what in said and "\n" not in said and fix


def test_every_dependency_is_pinned_and_no_lock_names_an_index() -> None:
    folder = ROOT / "requirements"
    lines = [line for name in ("base", "dev", "torch", "tools") for line in lock.pins(folder / f"{name}.txt")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*( ?;.*)?", line) for line in lines)
    pinned = {lock.name_of(line) for line in lines}
    import tomllib

    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    asked = {lock.name_of(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]}
    assert asked <= pinned


class Recorder(setup.Environment):
    """An Environment in which nothing is run: what would be asked of pip is written down."""

    def __init__(self, root: Path, *, cuda: bool, uv: bool) -> None:
        super().__init__(root)
        self.cuda, self.uv, self.asked = cuda, uv, []

    def pip(self, *arguments: str | Path) -> str:
        self.asked.append(" ".join(map(str, arguments)))
        return ""

    def torch_needs_cuda(self, pin: str) -> bool:
        return self.cuda

    def torch_by_uv(self, pin: str, uv_pin: str) -> bool:
        return self.uv


@pytest.mark.parametrize(
    ("gpu", "cuda", "uv", "word", "by_pip"),
    [
        (None, False, False, "CPU build", True),
        (None, True, True, "CPU build, by uv", False),
        (None, True, False, "CUDA build", True),
        ("amd", True, True, "CPU build, by uv", False),
        ("nvidia", True, True, "for an NVIDIA GPU", True),
    ],
)
def test_cuda_is_only_taken_for_a_gpu_or_when_nothing_else_is_in_reach(
    gpu: str | None, cuda: bool, uv: bool, word: str, by_pip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "gpu_vendor", lambda: gpu)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    env = Recorder(tmp_path, cuda=cuda, uv=uv)
    assert env.install_torch("torch==2.13.0", "uv==0") == word
    assert len(env.asked) == by_pip


@pytest.mark.parametrize(("place", "option"), [("folder", "--find-links"), ("https://x.invalid", "--extra-index-url")])
def test_torch_index_wins(place: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_INDEX", place)
    env = Recorder(tmp_path, cuda=True, uv=True)
    assert env.install_torch("torch==2.13.0", "uv==0") == "from TORCH_INDEX"
    assert f"{option} {place} torch==2.13.0" in env.asked[0]


def test_no_cuda_library_beside_a_cpu_torch() -> None:
    import importlib.metadata

    import torch

    if torch.version.cuda or torch.version.hip or setup.gpu_vendor():
        pytest.skip("a GPU build of torch, or a GPU")
    names = [name for found in importlib.metadata.distributions() if (name := found.metadata["Name"])]
    assert not [name for name in names if name.lower().startswith(("nvidia-", "cuda-"))]

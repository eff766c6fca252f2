"""Keep the README's generated parts true: `--check` compares, `--record` first runs the README's command anew.

A generated part stands between `<!-- name -->` and `<!-- /name -->`. The output shown under the command is that of
a real run: `--record` keeps it in reports/readme-eval.txt, and nothing in it is typed by hand.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from evalkit.marked import between

ROOT = Path(__file__).resolve().parent.parent
RECORDED = Path("reports") / "readme-eval.txt"
COMMAND = "make eval K=7 QUANT=nvfp4"
# Folders without a docstring; a Python package's line is its docstring where it has one.
FOLDERS = {
    "golden": "accepted lengths and reference scores, each with where it came from; written by commands only",
    "reports": "pages and outputs of stored runs, made by commands",
    "requirements": "the pinned versions that `make setup` installs",
    "tests": "mirrors the source",
    "tools": "set-up, lock files, this page's generated parts",
    "evalkit": "turns runs of the engine into evidence: scores, accepted lengths, verdicts, pages",
    "engine/training": "the recipe of the embedded model, run by `make reference`",
    "engine/reference": "the embedded model: checkpoints, tokenizer and generated model card",
    "engine/draft": "drafts, one file each",
    "evalkit/backends": "where completions come from, one file each",
    "evalkit/report": "the page of a run",
    "tasks/gradeschool": "the embedded task: generated word problems in GSM8K's form",
    "tasks/gsm8k": "GSM8K itself, read from the public data set or from DATA=file",
}
SHOWN_TOP = ("engine", "evalkit", "tasks", "golden", "reports", "requirements", "tests", "tools")


def first_sentence(text: str) -> str:
    """The first sentence, cut at its colon or semicolon where it would not fit a line."""
    line = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]
    return (sentence if len(sentence) <= 100 else re.split(r"[:;]\s", sentence, maxsplit=1)[0]).rstrip(".")


def line_of(path: Path) -> str:
    """What a module or folder says of itself."""
    source = path / "__init__.py" if path.is_dir() else path
    said = ast.get_docstring(ast.parse(source.read_text())) if source.suffix == ".py" and source.exists() else None
    return first_sentence(said) if said else FOLDERS.get(path.relative_to(ROOT).as_posix(), "")


def tree() -> str:
    """The packages' files and the other folders, a line each."""
    rows: list[tuple[str, str]] = []
    for top in SHOWN_TOP:
        folder = ROOT / top
        if not folder.is_dir():
            continue
        rows.append((f"{top}/", line_of(folder)))
        if top in ("engine", "evalkit", "tasks"):
            entries = [p for p in sorted(folder.iterdir()) if not p.name.startswith(("_", "."))]
            for path in [p for p in entries if p.suffix == ".py"] + [p for p in entries if p.is_dir()]:
                rows.append((f"  {path.name}{'/' if path.is_dir() else ''}", line_of(path)))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(["```", *(f"{name:<{width}}{said}".rstrip() for name, said in rows), "```"])


def make_targets() -> list[tuple[str, str]]:
    """Name and description of every target that `make` lists."""
    return re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def make_table() -> str:
    rows = [f"| `make {name}` | {clean(said)} |" for name, said in make_targets() if name != "help"]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """Every command that can be typed, with what the parser knows of it."""
    children = getattr(command, "commands", None)
    if children is None:
        return [(name, command)]
    return [found for word, child in children.items() for found in commands(child, f"{name} {word}")]


def clean(text: str) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def arguments(command: Any) -> str:
    """The positional arguments, as the help shows them."""
    names = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    return "".join(f" {name}" for name in names)


def cli_table() -> str:
    """Every command of evalkit, and every option of `evalkit run`, as the parser has them."""
    import typer

    from evalkit.cli import app

    found = commands(typer.main.get_command(app), "evalkit")
    lines = ["| command | what it does |", "|---|---|"]
    for name, command in found:
        lines.append(f"| `{name}{arguments(command)}` | {clean(command.help)} |")
    lines += ["", "| `evalkit run` option | default | what it does |", "|---|---|---|"]
    run = dict(found)["evalkit run"]
    for option in (p for p in run.params if p.param_type_name == "option"):
        names = ", ".join(f"`{word}`" for word in [*option.opts, *option.secondary_opts])
        named = re.search(r"\s*\[default: (.*?)\]", option.help or "")
        default = named.group(1) if named else "" if option.default is None else f"{option.default}"
        said = (option.help or "").replace(named.group(0) if named else "", "")
        lines.append(f"| {names} | {clean(default)} | {clean(said)} |")
    return "\n".join(lines)


def eval_output() -> str:
    """The recorded output of the README's command."""
    path = ROOT / RECORDED
    said = path.read_text().rstrip() if path.exists() else "(not recorded yet: `make readme` runs the command)"
    return "\n".join(["```console", f"$ {COMMAND}", said, "```"])


PARTS = {"eval-output": eval_output, "tree": tree, "make-table": make_table, "cli-table": cli_table}


def rendered(text: str) -> str:
    """The README with every generated part made anew."""
    for name, make in PARTS.items():
        try:
            text = between(text, (f"<!-- {name} -->", f"<!-- /{name} -->"), make())
        except ValueError as e:
            raise SystemExit(f"README.md {e}") from None
    return text


def record() -> None:
    """Run the README's command and keep what it printed, without colours, progress or the set-up's lines."""
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(COMMAND.split(), cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    lines = [line.rsplit("\r", 1)[-1].rstrip().replace(f"{ROOT}/", "") for line in said.splitlines()]
    kept = "\n".join(line for line in lines if not line.startswith("setup:")).strip()
    if "evalkit exit code: 2" in kept or "evalkit exit code" not in kept:
        raise SystemExit(f"not recorded: the command did not end with a verdict\n{kept}")
    (ROOT / RECORDED).parent.mkdir(exist_ok=True)
    (ROOT / RECORDED).write_text(kept + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generated parts of README.md")
    parser.add_argument("--check", action="store_true", help="exit 1 where a part is stale, change nothing")
    parser.add_argument("--record", action="store_true", help=f"run `{COMMAND}` first and keep its output")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    if args.record:
        record()
    path = ROOT / "README.md"
    old = path.read_text()
    new = rendered(old)
    if old == new:
        return 0
    if args.check:
        print("README.md is stale; fix: make fix", file=sys.stderr)
        return 1
    path.write_text(new)
    print("README.md: brought up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())

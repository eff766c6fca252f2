"""How to make a run again: shell lines that are safe to paste, whatever the stored run says of itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from evalkit.config import DRAFTS, TARGETS
from evalkit.records import Run
from evalkit.report import text

FLAGS = {  # of `evalkit run`, with their defaults; a value that is the default is left out of the command
    "task": "", "model": "gradeschool-m3", "draft": "", "k": -1, "quant": "", "draft_width": "k", "data": None,
    "limit": 0, "shots": None, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_tokens": 0, "seed": 0,
    "batch": 64, "threads": 0, "tp": 1, "device": "auto", "online_quant_config": "",
    "verify": "standard", "forced_length": 0.0, "confidence_threshold": 0.0, "verify_rows": 0,
}  # fmt: skip
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_OURS = "/engine/reference/"  # models that every checkout has


def words(run: Run) -> list[str]:
    """The command that makes this run again, word by word: the one recorded, else one built from the cell."""
    recorded = run.provenance.get("command")
    if recorded:
        return _split(recorded)
    cell = dict(run.cell)
    named = cell.get("target") in TARGETS
    cell["model"] = cell.get("target") if named else cell.get("model", cell.get("target"))
    if cell.get("draft") not in DRAFTS and cell.get("draft_path"):
        cell["draft"] = cell["draft_path"]
    cell["batch"] = cell.get("max_batch", FLAGS["batch"])
    out = ["evalkit", "run"]
    for flag, default in FLAGS.items():
        value = cell.get(flag, default)
        if value is not None and value != default:
            out += [f"--{flag.replace('_', '-')}", str(value)]
    return [*out, *([] if cell.get("prefix_cache", True) else ["--no-prefix-cache"])]


def _split(recorded: object) -> list[str]:
    if isinstance(recorded, list | tuple):
        return [str(word) for word in recorded]
    try:
        return shlex.split(str(recorded))
    except ValueError:  # a quote that nothing closes
        return [str(recorded)]


def command(run: Run) -> str:
    """The same as one line of shell: each word quoted where a shell would act on it."""
    return _line(words(run))


def _line(parts: Sequence[str]) -> str:
    return shlex.join(_one_line(part) for part in parts)


def _one_line(value: object) -> str:
    """Nothing in it can end a line or hide: a line break would end a comment and begin a command."""
    return " ".join(text.visible(str(value)).split())


def reproduce(run: Run) -> str:
    """Shell lines that make this run again: the commit, the set-up, the command. Only a commit's hash is printed as
    one; every other stored text is quoted, or stands in a comment of one line."""
    git = run.provenance.get("git")
    commit = git.get("commit") if isinstance(git, Mapping) else None
    lines = []
    if not commit:
        lines.append("# the commit is not recorded")
    elif not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        lines.append("# commit not usable: what is recorded is no git hash (7 to 64 of 0-9 a-f)")
    else:
        lines.append(f"git checkout {commit}")
    if isinstance(git, Mapping) and git.get("dirty"):
        lines.append("# the tree had changes that are in no commit: what ran is not exactly this")
    image = run.provenance.get("image")
    if image:
        lines.append(f"# image: {_one_line(image)}")
    parts = [_inside(word) for word in words(run)]
    lines += [f"# {_one_line(p)} is a path of the machine that ran this" for p in dict.fromkeys(parts) if p[:1] == "/"]
    if parts[:1] == ["evalkit"]:
        parts[0] = ".venv/bin/evalkit"  # where make setup puts it
    return "\n".join([*lines, "make setup", _line(parts)])


def _inside(word: str) -> str:
    """A model of the checkout by its place in it."""
    return word[word.index(_OURS) + 1 :] if word.startswith("/") and _OURS in word else word

"""How to make a run again: shell lines that are safe to paste, whatever the stored run says of itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from engine.errors import EngineError
from evalkit.config import DEFAULT_BATCH, DRAFTS, TARGETS, band_batch, band_interval, band_mono
from evalkit.errors import EvalkitError
from evalkit.records import Run
from evalkit.report import text
from evalkit.servers.spec import HIDDEN, METHODS, ServerSpec

FLAGS = {  # of `evalkit run`, with their defaults; a value that is the default is left out of the command
    "task": "", "model": "gradeschool-m3", "draft": "", "k": -1, "quant": "", "draft_width": "k", "data": None,
    "limit": 0, "shots": None, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_tokens": 0, "seed": 0,
    "batch": DEFAULT_BATCH, "threads": 0, "tp": 1, "device": "auto", "online_quant_config": "",
    "verify": "standard", "forced_length": 0.0, "confidence_threshold": 0.0, "verify_rows": 0,
    "mono": "off", "graphs": "off", "kernels": "auto", "prefill_decode_interval": 0, "prefill_delayer": "",
}  # fmt: skip
SERVER = {  # of a stored ServerSpec: the option where it isn't the field's own name
    "program": "server-program", "args": "server-arg", "env": "server-env", "remote_code": "trust-remote-code",
}  # fmt: skip
NO_OPTION = ("grace", "host", "method")
STOP_EARLY = {"margin": 0.01, "alpha": 0.05}
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_OURS = "/engine/reference/"  # models that every checkout has


def words(run: Run) -> list[str]:
    """The command that makes this run again, word by word: the one recorded, else one built from the cell."""
    recorded = run.provenance.get("command")
    if recorded:
        return _split(recorded)
    cell = dict(run.cell)
    cell["task"] = run.provenance.get("task_path") or cell.get("task", "")  # of a task of one's own, which has no name
    named = cell.get("target") in TARGETS
    cell["model"] = cell.get("target") if named else cell.get("model", cell.get("target"))
    if cell.get("draft") not in DRAFTS and cell.get("draft_path"):
        cell["draft"] = cell["draft_path"]
    cell["batch"] = cell.get("max_batch", FLAGS["batch"])
    server = cell.get("server")
    if isinstance(server, Mapping) and not _method(str(cell.get("draft"))):
        cell["draft"] = server.get("draft_model") or cell.get("draft")
    out = ["evalkit", "run"]
    for flag, default in {**FLAGS, **_of_band(cell)}.items():
        value = cell.get(flag, default)
        if value is not None and value != default:
            out += [f"--{flag.replace('_', '-')}", str(value)]
    out += [] if cell.get("prefix_cache", True) else ["--no-prefix-cache"]
    if cell.get("stop_early"):
        told = {name: getattr(run.stopping, name, default) for name, default in STOP_EARLY.items()}
        out += ["--stop-early", *(w for n, v in told.items() if v != STOP_EARLY[n] for w in (f"--{n}", f"{v:g}"))]
    return [*out, *(_server_words(server) if isinstance(server, Mapping) else [])]


def _of_band(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What --batch, --mono and the delayer's interval are where nobody says: a preset of a band has its own."""
    quant, interval = str(cell.get("quant")), "prefill_decode_interval"
    try:
        own = {} if "server" in cell else {interval: band_interval(quant)}
        return {"batch": band_batch(quant), "mono": band_mono(quant), **own}
    except (EngineError, EvalkitError):  # a quant mode that is none: the run's own page shows it
        return {}


def _method(draft: str) -> bool:
    return draft.startswith(METHODS)


def _server_words(server: Mapping[str, Any]) -> list[str]:
    """The options of a server, from its spec as it is stored. What is an argument of the server itself may begin with
    a dash, so each stands in one word with its option."""
    out = ["--engine", str(server.get("engine"))]
    for field in fields(ServerSpec):
        value = server.get(field.name, field.default)
        value = list(value) if isinstance(value, tuple) else value
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        if field.name in ("engine", *NO_OPTION) or value == default:
            continue
        option = f"--{SERVER.get(field.name, field.name.replace('_', '-'))}"
        if isinstance(value, bool):
            out.append(option if value else f"--no-{option[2:]}")
        elif field.name == "graph_sizes" and isinstance(value, list):
            out += [option, ",".join(map(str, value))]
        elif isinstance(value, list):
            out += [f"{option}={one}" for one in value]
        else:
            out += [option, str(value)]
    return out


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
    if any(HIDDEN in part for part in parts):
        lines.append(f"# {HIDDEN} stands for a value that is secret and not stored: put it in")
    if parts[:1] == ["evalkit"]:
        parts[0] = ".venv/bin/evalkit"  # where make setup puts it
    return "\n".join([*lines, "make setup", _line(parts)])


def _inside(word: str) -> str:
    """A model of the checkout by its place in it."""
    return word[word.index(_OURS) + 1 :] if word.startswith("/") and _OURS in word else word

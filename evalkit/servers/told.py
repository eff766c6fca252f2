"""What a run records of the server that answered it: image, flags, variables, and what its own pages say.

Flags go into the run's fingerprint, so answers of two settings are never put into one run, and into a certificate's
configuration. Addresses, ports and folders of the machine are left out: they change no answer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.servers.profile import Profile
from evalkit.servers.spec import HIDDEN, ServerSpec, hide_value, redact_args, secret_name

IMAGE = "EVALKIT_IMAGE"  # names the image that serves, wherever the server runs
IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # set inside such a container: of a server started in it
MACHINE = ("--host", "--port", "--server-port", "--model", "--model-path", "-m", "--served-model-name", "--alias")
OWN = "evalkit."  # before the words that `evalkit serve` adds to its model
LONGEST, MOST = 200, 300  # characters of a value, and values of one page


def image(spec: ServerSpec, environment: Mapping[str, str] | None = None) -> str:
    """The image that serves, by the environment; "" where nothing says it."""
    known = os.environ if environment is None else environment
    given = dict(pair.split("=", 1) for pair in spec.env)
    names = (IMAGE,) if spec.base_url else (IMAGE, *IMAGES)
    return next((v for n in names for v in (given.get(n), known.get(n)) if v), "")


def flags(command: Sequence[str]) -> dict[str, str]:
    """Options of a command by name, secrets hidden; an option without a value is "true"."""
    words = redact_args(command)
    out: dict[str, str] = {}
    for i, word in enumerate(words):
        if not _is_option(word):
            continue
        name, equals, value = word.partition("=")
        if not equals:
            rest = []
            for other in words[i + 1 :]:
                if _is_option(other):
                    break
                rest.append(other)
            value = " ".join(rest) or "true"
        if name not in MACHINE:
            out[name] = _contents(value)
    return out


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-")[:1].isdigit() and word.strip("-") != ""


def _contents(value: str) -> str:
    """A file that was written for the launch has another name each time: its contents count."""
    path = Path(value)
    if "evalkit-" in value and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    return value


def variables(
    spec: ServerSpec,
    profile: Profile,
    environment: Mapping[str, str] | None = None,
    asked: Mapping[str, str] | None = None,
) -> dict[str, str]:  # fmt: skip
    """Variables that the engine reads: those given by --server-env, those that the quant mode sets, and those of our
    own with its prefixes."""
    known = os.environ if environment is None else environment
    inherited = {n: v for n, v in known.items() if profile.variables and n.startswith(profile.variables)}
    given = dict(pair.split("=", 1) for pair in spec.env)
    return {
        n: hide_value(f"{n}={v}").partition("=")[2] for n, v in sorted({**inherited, **(asked or {}), **given}.items())
    }


def plain(page: Any) -> dict[str, Any]:
    """A page's single values by their path, short ones, secrets hidden."""
    out: dict[str, Any] = {}
    _flatten(page, "", out)
    return out


def _flatten(value: Any, path: str, out: dict[str, Any]) -> None:
    if len(out) >= MOST:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(inner, f"{path}.{name}".lstrip("."), out)
    elif isinstance(value, list):
        if all(isinstance(x, str | int | float | bool) for x in value):
            out[path] = json.dumps(value)[:LONGEST]
    elif isinstance(value, str | int | float | bool):
        name = path.rpartition(".")[2]
        short = value[:LONGEST] if isinstance(value, str) else value
        out[path] = HIDDEN if value and secret_name(name) else short


def settings(profile: Profile, pages: Mapping[str, Any]) -> dict[str, str]:
    """Of what a running server tells, the settings that can change an answer or its acceptance."""
    out = {}
    for path, value in plain(dict(pages)).items():
        name = path.rpartition(".")[2]
        if name in profile.settings:
            out[name] = str(value)
    return dict(sorted(out.items()))


def evalkit_words(pages: Mapping[str, Any]) -> dict[str, str]:
    """What `evalkit serve` tells of its setting in /v1/models, whichever engine it is taken for; {} of another
    server. `pages` hold it as it came, or flat as a run stores it."""
    models = pages.get("/v1/models")
    found = plain(models) if isinstance(models, Mapping) else {}
    return {name.removeprefix(OWN): str(value) for name, value in found.items() if name.startswith(OWN)}


def digest(found: Mapping[str, str]) -> str:
    """A short name of flags and variables; "none known" where nothing is told."""
    if not found:
        return "none known"
    return hashlib.sha256(json.dumps(dict(found), sort_keys=True).encode()).hexdigest()[:16]

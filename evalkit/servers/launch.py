"""From a Cell to a running server: the command, its environment, and what was refused before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.errors import EvalkitError
from evalkit.servers.process import Process, free_port, start
from evalkit.servers.profile import Profile, asked_of, refuse_forced
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell

OFFLINE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def command(cell: Cell, spec: ServerSpec, profile: Profile) -> list[str]:
    """The whole command line. What --server-arg gives comes last, so that it wins."""
    assert profile.launch is not None
    model = str(cell.engine.model)
    out = profile.launch(cell, spec, model=model, name=served_name(cell), method=spec.method)
    if out[0] == "python":
        out[0] = sys.executable
    return [*out, *asked_of(cell, profile).options, *spec.args]


def _need(module: str, profile: Profile) -> None:
    """The package of a `python -m MODULE` command must be in this Python."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise EvalkitError(f"{profile.name} is not installed in {sys.executable}",
                           f"install {profile.name} there, give its command with --server-program, or start it and "
                           "give --base-url")  # fmt: skip


def served_name(cell: Cell) -> str:
    """The model's name in requests."""
    return (cell.server.served_name if cell.server else "") or cell.target


def environment(spec: ServerSpec, profile: Profile, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is added to the environment. A variable that forces acceptance is refused, wherever it comes from."""
    refuse_forced(profile, spec, os.environ if base is None else base)
    given = dict(pair.split("=", 1) for pair in spec.env)
    return {**OFFLINE, **given}


def launch(cell: Cell, spec: ServerSpec, profile: Profile, log: Path) -> tuple[Process, ServerSpec]:
    """Starts the server of a cell; gives the process and the spec with its address. It is not ready yet."""
    spec = replace(spec, port=spec.port or free_port(spec.host))
    env = {**asked_of(cell, profile).variables, **environment(spec, profile)}
    words = command(cell, spec, profile)
    if words[:2] == [sys.executable, "-m"] and not spec.program:
        _need(words[2], profile)
    process = start(words, name=profile.name, log=log, env=env)
    return process, replace(spec, base_url=f"http://{spec.host}:{spec.port}/v1")

"""Profile: what evalkit knows of an engine that serves over HTTP. Data and small functions, one file an engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from evalkit.errors import EvalkitError
from evalkit.servers.prometheus import PageMap
from evalkit.servers.spec import ENGINES, ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell


class Launcher(Protocol):
    """The command that starts an engine for a cell, without the settings that --server-arg gives."""

    def __call__(self, cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How an engine is asked for a quant mode and what belongs to it: options, variables, and the words of the mode
    that it isn't known how to ask for, each with the option that would say it."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine. `page` maps its Prometheus page, `json_page` names another page with counters.

    `quant` gives the options of each quant mode; a mode that is not there can only be set by --server-arg with one of
    `quant_options`, and a note says that its spelling is not known here. `asked` stands in its place where an engine is
    asked family by family. `forcing` are environment variables and
    options that draw acceptance instead of verifying it: an accuracy run with one of them is refused. `variables` are
    prefixes of those that the engine reads, `settings` names on its own pages that can change an answer: both are
    recorded. `setting` says those in this project's words (see `servers.setting`), where they have a meaning in them.
    `untold` is said where neither a reply nor a page tells acceptance.
    """

    name: str
    endpoint: str = "completions"
    endpoints: tuple[str, ...] = ("completions", "chat")
    launch: Launcher | None = None
    page: PageMap | None = None
    json_page: str = ""
    methods: tuple[str, ...] = ()
    max_k: int = 16
    quant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quant_options: tuple[str, ...] = ()
    asked: Callable[[Cell], Asked] | None = None
    forcing: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    setting: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None
    untold: str = ""
    top_k: bool = True  # takes top_k in the body
    per_request: str = ""  # where a reply holds its own acceptance; "" nowhere
    always_drafts: bool = True  # every step is a verify step, but for n-gram drafts
    missing: tuple[str, ...] = ()  # what this engine does not tell
    notes: tuple[str, ...] = ()  # what is taken from its documents and was not run here


def profile_of(engine: str) -> Profile:
    """The profile of an engine by name."""
    if engine not in ENGINES:
        raise EvalkitError(f"unknown engine {engine!r}", f"use {', '.join(ENGINES)}")
    return importlib.import_module(f"evalkit.servers.{engine}").PROFILE


def refuse(cell: Cell, spec: ServerSpec, profile: Profile, method: str) -> list[str]:
    """Refuses settings that the engine can't do, before anything is started; returns notes for the reader."""
    notes = list(profile.notes if not spec.base_url else ())
    if spec.endpoint and spec.endpoint not in profile.endpoints:
        raise EvalkitError(f"{profile.name} has no endpoint {spec.endpoint!r}", f"use {', '.join(profile.endpoints)}")
    if cell.top_k and not profile.top_k:
        raise EvalkitError(f"{profile.name} takes no top_k", "leave --top-k away")
    if spec.thinking != "server" and (spec.endpoint or profile.endpoint) != "chat":
        raise EvalkitError(f"--thinking {spec.thinking} needs a chat template", "add --endpoint chat")
    refuse_forced(profile, spec)
    if spec.base_url:
        mine = {"--server-arg": spec.args, "--server-env": spec.env, "--draft-model": spec.draft_model}
        for what, given in mine.items():
            if given:
                raise EvalkitError(f"{what} with --base-url: that server runs already", f"leave {what} away")
        return notes
    if profile.launch is None:
        raise EvalkitError(f"{profile.name} is not started by evalkit", "give --base-url")
    if cell.k and method not in profile.methods:
        raise EvalkitError(
            f"{profile.name} has no draft method {method!r} that evalkit knows",
            f"use {', '.join(profile.methods) or 'K=0'}, or start the server and give --base-url",
        )
    if cell.engine.online_quant_config and profile.asked is None:
        raise EvalkitError(f"--online-quant-config is of the built-in engine and of ATOM, not of {profile.name}",
                           "leave it away, or give a checkpoint with such weights")  # fmt: skip
    if cell.k > profile.max_k:
        raise EvalkitError(f"K is {cell.k}, {profile.name} takes up to {profile.max_k}", "lower --k")
    return notes + _quant_notes(cell, spec, profile)


def asked_of(cell: Cell, profile: Profile) -> Asked:
    """How `profile`'s engine is asked for the quant mode of a cell."""
    if profile.asked is not None:
        return profile.asked(cell)
    if cell.quant in profile.quant:
        return Asked(options=profile.quant[cell.quant])
    option = profile.quant_options[0] if profile.quant_options else "--OPTION"
    return Asked(unknown={f"a {cell.quant} KV cache": option})


def _quant_notes(cell: Cell, spec: ServerSpec, profile: Profile) -> list[str]:
    given = [a.split("=")[0] for a in spec.args if a.split("=")[0] in profile.quant_options]
    unknown = asked_of(cell, profile).unknown
    if not unknown:
        return [f"--server-arg {a} stands beside --quant {cell.quant}: the last one counts" for a in given]
    said = {option.replace("_", "-") for option in given}
    for what, option in unknown.items():
        if option.replace("_", "-") not in said and not (profile.asked is None and given):
            raise EvalkitError(f"how {profile.name} is asked for {what} is not known here",
                               f"say it: --server-arg={option}=VALUE")  # fmt: skip
    return [f"quant mode {cell.quant} was set by {', '.join(given)} from --server-arg; evalkit cannot tell if it holds"]


def refuse_forced(profile: Profile, spec: ServerSpec, environment: Mapping[str, str] | None = None) -> None:
    """Refuses a server whose environment or options force acceptance: text made under it means nothing."""
    names = {e.split("=")[0] for e in spec.env} | set(environment or ())
    words = " ".join(spec.args)
    for word in profile.forcing:
        option = word in words if word.startswith("-") or "_" not in word or word.islower() else False
        if word in names or option:
            raise EvalkitError(
                f"{word} forces acceptance: the text of such a server means nothing",
                f"take {word} away; forced acceptance is for speed runs",
            )


def forced_by_server(profile: Profile, told: Any) -> str:
    """The forcing word that a server's own settings (/server_info, decoded JSON) hold, or ""."""
    flat = _flatten(told)
    for word in profile.forcing:
        key = word.strip("-").replace("-", "_").lower()
        if any(name.lower().endswith(key) and value not in (None, "", False, 0, "None") for name, value in flat):
            return word
    return ""


def _flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in _flatten(v, f"{path}.{k}")]
    if isinstance(value, list):
        return [pair for v in value for pair in _flatten(v, path)]
    return [(path, value)]


Get = Callable[[str], Any]

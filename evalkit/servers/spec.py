"""ServerSpec: how an engine outside this process is reached, or started, for a cell. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from engine.config import nearest
from evalkit.errors import EvalkitError
from evalkit.servers.extra_body import read_extra

ENGINES = ("atom", "sglang", "vllm", "trtllm", "llamacpp", "openai")
ENDPOINTS = ("completions", "chat", "generate")
THINKING = ("server", "on", "off")
METHODS = ("dspark", "eagle3", "mtp", "ngram", "draft_model", "none")
HIDDEN = "***"
START_TIMEOUT = 1800.0
_SECRET = re.compile(r"(api[-_]?key|token|secret|password|authorization)", re.IGNORECASE)
_PAGE = re.compile(r"(/v1)?/(chat/completions|completions|v1/models)/?$")  # of an API, not its address
_NUMBER = re.compile(r"(max|num|batched|draft|total|prompt)[-_\w]*tokens|tokenizer|token_id", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One way to reach an engine over HTTP. `base_url` is one that runs; "" starts `engine` for the cell.

    Times are in seconds. `request_timeout` runs until a reply (streaming: until its first chunk, and again from there
    to its end), `stall_timeout` between two chunks. `endpoint` "" is the engine's usual one; `thinking` "server" sends
    no switch. `args` and `env` (NAME=VALUE) go to the server as they are. A key is named, never held.
    """

    engine: str = "openai"
    base_url: str = ""
    endpoint: str = ""
    thinking: str = "server"
    served_name: str = ""
    revision: str = ""
    extra_body: str = ""  # JSON object, added to every request
    concurrency: int = 64
    stream: bool = False
    request_timeout: float = 600.0
    stall_timeout: float = 120.0
    retries: int = 5
    grace: float = 30.0  # that a server which is gone may take to come back
    api_key_env: str = "EVALKIT_API_KEY"
    api_key_file: str = ""
    draft_model: str = ""
    method: str = ""  # how it drafts, one of METHODS; `Cell.make` finds it from the draft
    tp: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    max_model_len: int = 0
    memory_share: float = 0.9
    graph_sizes: tuple[int, ...] = ()
    program: str = ""  # in place of the engine's own command
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    start_timeout: float | None = None  # until it must be ready; None: see `patience`
    remote_code: bool = False
    smoke: bool = True  # end the run where its first answers are far worse than expected

    def __post_init__(self) -> None:
        for name, known in (("engine", ENGINES), ("endpoint", ("", *ENDPOINTS)), ("thinking", THINKING)):
            value = getattr(self, name)
            if value not in known:
                hint = nearest(value, known)
                raise EvalkitError(f"unknown {name} {value!r}", f"{hint}use {', '.join(k for k in known if k)}")
        for name, low in (("concurrency", 1), ("retries", 0), ("tp", 1), ("port", 0), ("max_model_len", 0)):
            if getattr(self, name) < low:
                raise EvalkitError(f"--{name.replace('_', '-')} is {getattr(self, name)}", f"give at least {low}")
        for name in ("request_timeout", "stall_timeout", "start_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e7:
                raise EvalkitError(f"--{name.replace('_', '-')} is {getattr(self, name)}", "give seconds above 0")
        if not 0 < self.memory_share <= 1:
            raise EvalkitError(f"--memory-share is {self.memory_share}", "give a fraction of 1")
        if self.engine == "openai" and not self.base_url:
            raise EvalkitError("--engine openai has no server to start", "give --base-url, or an engine by name")
        _check_url(self.base_url)
        if bad := [e for e in self.env if not re.match(r"[A-Za-z_]\w*=", e)]:
            raise EvalkitError(f"--server-env {bad[0]!r} is no NAME=VALUE", "give NAME=VALUE")
        self.extra()

    @property
    def root(self) -> str:
        """The server's address without /v1, for the pages that are not OpenAI's."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def patience(self, *, starting: bool) -> float:
        """Seconds until the server must be ready: half an hour for one that is started, `grace` for one that is
        there, unless `start_timeout` says it."""
        if self.start_timeout is not None:
            return self.start_timeout
        return START_TIMEOUT if starting else self.grace

    def extra(self) -> dict[str, Any]:
        """`extra_body` as an object."""
        return read_extra(self.extra_body)

    def draft_of(self, word: str) -> tuple[str, str]:
        """(name for people, method) of a draft given by method, or by a name that begins with one."""
        for method in (*(m for m in METHODS if m == word), *METHODS):
            if word.startswith(method):
                return word, method
        raise EvalkitError(f"no draft {word!r}", f"{nearest(word, METHODS)}use {', '.join(METHODS)} or a folder")

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values, with nothing that may be secret."""
        out = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
        return out | {"args": redact_args(self.args), "env": [hide_value(e) for e in self.env]}


def _check_url(url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", url)
        _ = parts.port
    except ValueError:
        good, parts = False, urlsplit("")
    if not good:
        raise EvalkitError(f"--base-url {url!r} is no address", "give http://HOST:PORT/v1")
    if page := _PAGE.search(parts.path):
        raise EvalkitError(f"--base-url {url} is one page of a server", f"give {url[: -len(page[0])]}/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise EvalkitError("--base-url holds a user name, a password or a query", "give a key with --api-key-env NAME")


def hide_value(pair: str) -> str:
    """NAME=VALUE with the value hidden where the name says that it is secret."""
    name, _, _ = pair.partition("=")
    return f"{name}={HIDDEN}" if secret_name(name) and "=" in pair else pair


def redact_args(args: Sequence[str]) -> list[str]:
    """Arguments of a command with the values of secret options hidden."""
    out: list[str] = []
    hide = False
    for arg in args:
        if hide and not arg.startswith("-"):
            out.append(HIDDEN)
        elif arg.startswith("-"):
            out.append(hide_value(arg))
        else:
            out.append(arg)
        hide = arg.startswith("-") and "=" not in arg and secret_name(arg)
    return out


def secret_name(name: str) -> bool:
    """Whether an option, a variable or a setting is called as secrets are. Numbers of tokens are none."""
    return bool(_SECRET.search(name)) and not _NUMBER.search(name)

"""How `evalkit serve` is reached and what it refuses. Standard library only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evalkit.errors import EvalkitError

MB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Address, key and limits of one server. `name` is what requests call the model.

    `max_queue` bounds the prompts that wait or run at one time; `max_body` is in bytes. `chat_template` is a
    Jinja file, `plain` (the contents of the messages, joined by blank lines), or None: what the model folder has.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str = field(default="", repr=False)
    max_queue: int = 1024
    max_body: int = 4 * MB
    drain_seconds: int = 30
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise EvalkitError(f"--served-model-name is {self.name!r}", "give a name that a request can call it by")
        if not 0 <= self.port < 65536:
            raise EvalkitError(f"--port is {self.port}", "give a number from 0 (any free one) to 65535")
        for option, value in (("--max-queue", self.max_queue), ("--max-body-mb", self.max_body)):
            if value < 1:
                raise EvalkitError(f"{option} is {value}", "give a number of at least 1")
        if self.drain_seconds < 0:
            raise EvalkitError(f"--drain-seconds is {self.drain_seconds}", "give 0 or more")

    @property
    def warning(self) -> str:
        """What to say before other machines can reach the server; '' where none can."""
        if is_loopback(self.host):
            return ""
        keyless = "" if self.api_key else " and without a key: set --api-key-env"
        return f"{self.host} may be reached from other machines, over plain HTTP{keyless}"


def is_loopback(host: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def key_from(variable: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key held by an environment variable. Raises EvalkitError, which never shows it."""
    if not variable:
        return ""
    key = environment.get(variable, "").strip()
    if not key:
        raise EvalkitError(f"--api-key-env names {variable}, which is not set", f"export {variable}=... first")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise EvalkitError(f"the key in {variable} has a character that no HTTP header can carry",
                           "use letters, digits and ASCII punctuation")  # fmt: skip
    return key


def check_template(word: str | None) -> str | None:
    """`--chat-template` as it was given, where it is `plain` or a file."""
    if word in (None, "plain") or Path(word).is_file():
        return word
    raise EvalkitError(f"no chat template {word!r}: neither plain nor a file", "use plain or a Jinja file")

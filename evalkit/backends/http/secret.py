"""The API key: read once, sent in one header, and taken out of every text that leaves the client."""

from __future__ import annotations

import os
from pathlib import Path

from evalkit.errors import EvalkitError
from evalkit.servers.spec import HIDDEN, ServerSpec


class Secret:
    """A key that does not print. "" is no key."""

    __slots__ = ("_source", "_value")

    def __init__(self, value: str = "", source: str = "") -> None:
        self._value, self._source = value.strip(), source

    @property
    def words(self) -> str:
        """What was sent, for people: where the key is from, or that there is none."""
        if self._value:
            return f"the key of {self._source}" if self._source else "the key"
        return f"a request without a key, and {self._source} is not set" if self._source else "a request without a key"

    def __repr__(self) -> str:
        return HIDDEN if self._value else "no key"

    __str__ = __repr__

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def hide(self, text: str) -> str:
        """The text without the key, which servers like to echo."""
        return text.replace(self._value, HIDDEN) if len(self._value) >= 4 else text


def read_key(spec: ServerSpec) -> Secret:
    """The key of a spec: from its file, else from its variable, else none."""
    if not spec.api_key_file:
        return Secret(os.environ.get(spec.api_key_env, ""), f"${spec.api_key_env}")
    try:
        value = Path(spec.api_key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise EvalkitError(f"the key file {spec.api_key_file} can't be read ({type(e).__name__})",
                           "give a file with the key alone") from None  # fmt: skip
    if not value or len(value.split()) != 1:
        raise EvalkitError(f"the key file {spec.api_key_file} holds no key", "give a file with the key alone")
    return Secret(value, spec.api_key_file)

"""What can go wrong with one attempt, and whether another one may be made."""

from __future__ import annotations

import json
import re
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import urljoin, urlsplit

from evalkit.errors import EvalkitError

RETRIABLE = (408, 425, 429, 500, 502, 503, 504)
DENIED = (401, 403)
_TAG = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
LONGEST_WAIT = 120.0  # of a Retry-After; a server that asks for more is not waited for


class Trouble(Exception):
    """One attempt that gave no answer. `kind` is counted and shown; nothing of the attempt is used.

    `again` says that the same request may be sent again: it is either known not to have been answered, or its answer
    was thrown away whole. `gone` says that nobody listened at all.
    """

    def __init__(self, kind: str, detail: str = "", *, again: bool = True, after: float = 0.0, gone: bool = False):
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.again, self.after, self.gone = kind, again, after, gone


class ServerGone(EvalkitError):
    """The server does not come back. What is finished is stored; the same command goes on."""


def redirect(root: str, path: str, place: str) -> Trouble:
    """A redirect of `root` + `path`. It is not followed: a POST may become a GET, and a key would go to another place.

    Kind "redirect" names the address to give in place of the one that was; "redirect elsewhere" leads to another page
    (a login), or from a page to itself.
    """
    there = urlsplit(urljoin(root + path, place))._replace(query="", fragment="").geturl() if place else "nowhere"
    found = there.rstrip("/").removesuffix(path)
    if found == there.rstrip("/"):
        return Trouble("redirect elsewhere", f"{path} redirects to {there}", again=False)
    if found == root:
        return Trouble("redirect elsewhere", f"{path} redirects to itself, {there}", again=False)
    return Trouble("redirect", f"it redirects to {found}{'/v1' if path.startswith('/v1/') else ''}", again=False)


def denied(status: int, sent: str, said: str = "") -> EvalkitError:
    """The error of HTTP 401 and 403. `sent` are Secret's words on the key; `said` is the server's reply."""
    return EvalkitError(f"the server refuses {sent or 'the key'} (HTTP {status}{f': {said}' if said else ''})",
                        "set the variable that --api-key-env names, or give --api-key-file")  # fmt: skip


def of_status(status: int, body: str, retry_after: str | None, sent: str = "") -> Trouble:
    """The Trouble of an HTTP status that is no success. Raises EvalkitError for one that no request can pass."""
    short = short_of(body)
    if status in DENIED:
        raise denied(status, sent, short)
    wait = seconds_of(retry_after)
    return Trouble(f"HTTP {status}", short, again=status in RETRIABLE and wait <= LONGEST_WAIT, after=wait)


def short_of(body: str, length: int = 200) -> str:
    """What a reply says, in one line: an HTML page by its words alone, an error in OpenAI's form by its message."""
    words = _TAG.sub(" ", body) if body.lstrip()[:1] == "<" else _message(body) or body
    return " ".join(words.split())[:length]


def _message(body: str) -> str:
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""


def seconds_of(retry_after: str | None) -> float:
    """Seconds of a Retry-After header: a number or a date; 0 where there is none or it is none."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time())
    except (TypeError, ValueError):
        return 0.0

"""What can go wrong with one attempt, and whether another one may be made."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time

from evalkit.errors import EvalkitError

RETRIABLE = (408, 425, 429, 500, 502, 503, 504)
DENIED = (401, 403)
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


def redirect(place: str) -> Trouble:
    """A redirect is not followed: a POST would become a GET of another page."""
    return Trouble("redirect", f"it redirects to {place or 'nowhere'}", again=False)


def of_status(status: int, body: str, retry_after: str | None) -> Trouble:
    """The Trouble of an HTTP status that is no success. Raises EvalkitError for one that no request can pass."""
    short = " ".join(body.split())[:200]
    if status in DENIED:
        raise EvalkitError(f"the server refuses the key (HTTP {status}: {short})",
                           "set the variable that --api-key-env names, or give --api-key-file")  # fmt: skip
    wait = seconds_of(retry_after)
    return Trouble(f"HTTP {status}", short, again=status in RETRIABLE and wait <= LONGEST_WAIT, after=wait)


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

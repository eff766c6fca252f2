"""The one error class a user of evalkit sees; the command line prints it in one line and exits 2."""

from __future__ import annotations


class EvalkitError(Exception):
    """Something the user can mend: what was found (and what was expected), and what to do about it."""

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = " ".join(what.split())
        self.fix = " ".join(fix.split())
        super().__init__(self.what if not self.fix else f"{self.what}; fix: {self.fix}")

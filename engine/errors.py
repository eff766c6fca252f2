"""The one error class a user of the engine sees."""

from __future__ import annotations

import difflib


class EngineError(Exception):
    """Something the user can mend: what was found, and what to do about it.

    `str()` of it is one line, ready to print; `fix` may be empty.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = " ".join(what.split())
        self.fix = " ".join(fix.split())
        super().__init__(self.what if not self.fix else f"{self.what}; fix: {self.fix}")


def nearest(word: str, known: tuple[str, ...]) -> str:
    """'did you mean X? ' for a mistyped name, or ''."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? " if close else ""

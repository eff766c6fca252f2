"""A generated part of a document: the text between two marks, replaced in place. Standard library only."""

from __future__ import annotations


def between(document: str, marks: tuple[str, str], text: str) -> str:
    """The document with `text` on the lines between its two marks. Raises ValueError where a mark isn't there once."""
    begin, end = marks
    if any(document.count(mark) != 1 for mark in marks):
        raise ValueError(f"needs exactly one {begin} ... {end}")
    return f"{document.split(begin)[0]}{begin}\n{text}\n{end}{document.split(end)[1]}"

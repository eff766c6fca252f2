"""A word problem with its worked solution: what the generator draws and the figures count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem with its worked solution."""

    question: str
    answer: str
    value: int
    template: str
    steps: int

    @property
    def answer_text(self) -> str:
        """The text after '#### '."""
        return self.answer.rpartition("#### ")[2]

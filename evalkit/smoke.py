"""A server that is healthy and answers wrong: seen after 8, 16 or 32 answers, not after the whole task.

A missing variable or flag can send a model down a wrong path: it loads, it is fast, and two fifths of its answers are
wrong. Each look asks how likely so few right answers are where the server is as good as the baseline (or the published
score) less the accuracy margin; below one in a thousand the run ends. So 3 runs of 1000 that are just good enough end
by chance, fewer of those that are as good as expected. Of answers that are right 6 times in 10 where 0.95 is expected,
9 runs of 10 end by the 32nd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from evalkit.baseline import ReferenceScore
from evalkit.errors import EvalkitError
from evalkit.records import Sample
from evalkit.views import STRICT

LOOKS = (8, 16, 32)
ALPHA = 0.001  # of one look


class WrongAnswers(EvalkitError):
    """The first answers are far too wrong: what is stored of them is in doubt."""


@dataclass(slots=True)
class Smoke:
    """The share of right answers that is expected at least, and what was seen of this session's answers."""

    expected: float  # a fraction of 1
    source: str
    seen: int = 0
    right: int = 0

    def take(self, sample: Sample) -> None:
        """Counts an answer; a failed request is none. Raises EvalkitError where too few are right."""
        if sample.error or self.seen >= LOOKS[-1]:
            return
        self.seen += 1
        self.right += sample.scores.get(STRICT, 0.0) == 1.0
        if self.seen not in LOOKS:
            return
        p = float(special.bdtr(self.right, self.seen, self.expected))
        if p < ALPHA:
            raise WrongAnswers(
                f"smoke test: {self.right} of the first {self.seen} answers are right, {self.source} lets expect "
                f"{self.expected:.0%} (p {p:.1g}): the server is up and answers wrong",
                "look at its variables, flags, weights and template, and run with --fresh; --no-smoke goes on as it is",
            )


def smoke_of(
    *, target: str, task: str, baseline: float | None, references: Sequence[ReferenceScore], margin: float
) -> Smoke | None:
    """What is expected of a target on a task: by its baseline's score, else the lowest published one; None: nothing."""
    if baseline is not None:
        return _smoke(baseline - margin, "the baseline")
    known = [r for r in references if r.task == task and r.metric == STRICT and _same(r.target, target)]
    if not known:
        return None
    lowest = min(known, key=lambda r: r.score)
    return _smoke(lowest.score - margin, f"the published {lowest.name}")


def _smoke(expected: float, source: str) -> Smoke | None:
    return Smoke(expected=expected, source=source) if expected > 0 else None


def _same(one: str, other: str) -> bool:
    a, b = ("".join(c for c in name.casefold() if c.isalnum()) for name in (one, other))
    return a == b

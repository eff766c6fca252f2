"""Speculative against plain output of the same prompts: where they first part, and whether rounding explains it. Pure.

Greedy speculative decoding gives the plain greedy text. A verify step runs K + 1 rows where plain decoding runs one, so
in reduced precision a near-tie may fall the other way: a divergence is explained where the target's top-two logit gap
is small, and a bug otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evalkit.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where two outputs of a prompt part. `at` counts tokens where both samples hold them, else
    characters; `gap` is the plain run's top-two logit gap there, None where the engine recorded none."""

    doc_id: int
    at: int
    unit: str  # token | character
    here: str
    plain: str
    gap: float | None

    def __str__(self) -> str:
        gap = "gap not recorded" if self.gap is None else f"top-two gap {self.gap:.3g}"
        return f"document {self.doc_id} at {self.unit} {self.at} ({self.here!r} / {self.plain!r}, {gap})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """`divergences` by document; `compared` samples; `tokens` emitted by the plain run in them."""

    compared: int
    tokens: int
    divergences: tuple[Divergence, ...]

    def unexplained(self, tie_gap: float) -> list[Divergence]:
        """Divergences at a recorded gap that rounding does not explain."""
        return [d for d in self.divergences if d.gap is not None and not d.gap <= tie_gap]

    def unknown(self) -> list[Divergence]:
        """Divergences whose gap nobody recorded."""
        return [d for d in self.divergences if d.gap is None]


def compare(pairs: Iterable[tuple[Sample, Sample]]) -> Losslessness:
    """(speculative, plain) samples of the same prompts."""
    compared = tokens = 0
    found = []
    for here, plain in pairs:
        compared, tokens = compared + 1, tokens + plain.tokens
        if (parted := _part(here, plain)) is not None:
            found.append(parted)
    return Losslessness(compared=compared, tokens=tokens, divergences=tuple(found))


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Index of the first element that differs; the shorter length where one is the head of the other."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def _part(here: Sample, plain: Sample) -> Divergence | None:
    ours, theirs = _pieces(here), _pieces(plain)
    whole = bool(ours and theirs)
    one, other = (ours, theirs) if whole else (here.text, plain.text)
    at = first_difference(one, other)
    if at is None:
        return None
    gap = plain.gaps[at] if whole and at < len(plain.gaps) else None
    words = [side[at] if whole and at < len(side) else "".join(side[at : at + 12]) for side in (one, other)]
    unit = "token" if whole else "character"
    return Divergence(doc_id=here.doc_id, at=at, unit=unit, here=words[0], plain=words[1], gap=gap)


def _pieces(sample: Sample) -> tuple[str, ...]:
    """The text of each token, where the run stores it."""
    return tuple(getattr(sample, "pieces", ()))


DRAWS = 2000  # swaps of the permutation test: a p of 0.001 is then known to 0.0007
SEED = 20240607


def law_p(pairs: Sequence[tuple[Sample, Sample]]) -> float | None:
    """p of "sampled texts follow one law", for runs at a temperature above 0. None without text.

    Under that hypothesis the two texts of a prompt may be swapped, so the statistic, the chi-square distance of the
    counts of tokens (characters where a run stores none), is compared with that of seeded random swaps. It holds
    whatever the prompts are and however tokens within a text depend on each other.
    """
    whole = all(_pieces(s) for pair in pairs for s in pair)
    sides = [[Counter(_pieces(s) if whole else s.text) for s in side] for side in zip(*pairs, strict=True)]
    words = sorted(set().union(*(c for side in sides for c in side)))
    if not words:
        return None
    index = {word: i for i, word in enumerate(words)}
    table = np.zeros((2, len(pairs), len(words)))
    for side, counters in zip(table, sides, strict=True):
        for row, counts in zip(side, counters, strict=True):
            for word, n in counts.items():
                row[index[word]] = n
    apart, total = table[0] - table[1], table.sum(axis=(0, 1))
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), (DRAWS, len(pairs)))
    signs[0] = 1.0  # what was found
    distance = ((signs @ apart) ** 2 / total).sum(axis=1)
    return float((distance >= distance[0] * (1 - 1e-12)).mean())

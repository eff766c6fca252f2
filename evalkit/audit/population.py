"""Made-up prompts with known acceptance: what the clustered rules are simulated on.

A prompt has its own chance c that a position is accepted given that all before it were, c from a beta distribution, so
that the true survival E[c^k] is known exactly; and 1 + Poisson steps whose mean varies by a gamma distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLOCK = 400_000  # prompts drawn at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    name: str
    a: float  # of the beta distribution of c
    b: float
    variation: float  # coefficient of variation of a prompt's mean number of steps
    longer_when_hard: bool = False  # that mean also goes with 1 - c
    steps: float = 30.0
    k: int = 7

    def _moment(self, power: int) -> float:
        """E[c^power]."""
        return math.prod((self.a + i) / (self.a + self.b + i) for i in range(power))

    @property
    def survival(self) -> tuple[float, ...]:
        """True shares of steps with at least 1, ..., K accepted."""
        hard = self.b / (self.a + self.b)
        out = []
        for j in range(1, self.k + 1):
            weighted = (self._moment(j) - self._moment(j + 1)) / hard if self.longer_when_hard else self._moment(j)
            out.append((self._moment(j) + self.steps * weighted) / (1 + self.steps))
        return tuple(out)

    @property
    def mean(self) -> float:
        """True accepted drafts a step."""
        return sum(self.survival)

    def draw(self, rng: np.random.Generator, m: int, runs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each run the hits [m, K] (steps with at least 1, ..., K accepted) and the steps [m]."""
        block = max(1, BLOCK // m)
        for start in range(0, runs, block):
            shape = (min(block, runs - start), m)
            c = rng.beta(self.a, self.b, shape)
            rate = self.steps * rng.gamma(1 / self.variation**2, self.variation**2, shape)
            if self.longer_when_hard:
                rate *= (1 - c) * (self.a + self.b) / self.b
            steps = 1 + rng.poisson(rate)
            hits = np.empty((*shape, self.k))
            left = steps
            for j in range(self.k):
                left = rng.binomial(left, c)
                hits[..., j] = left
            yield from zip(hits, steps, strict=True)


POPULATIONS = (
    Population(name="ordinary spread", a=6, b=2, variation=0.6),
    Population(name="uneven lengths, wide spread", a=3, b=1, variation=1.0),
    Population(name="hard prompts run longer", a=6, b=2, variation=0.6, longer_when_hard=True),
)

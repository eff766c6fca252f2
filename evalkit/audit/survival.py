"""The simulations of survival curves: their bands, and what is lost of one against a golden's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from evalkit import stats
from evalkit.audit.population import POPULATIONS, Population
from evalkit.audit.row import ALPHA, Row, coverage, size
from evalkit.audit.rules import Simulation


class SurvivalAudit(Simulation):
    def band(self) -> Iterator[Row]:
        runs = self.sizes.clusters // 2
        for i, (pop, m) in enumerate((p, m) for p in POPULATIONS for m in (80, 500)):
            rng, covered = self.rng(300 + i), 0
            for hits, sizes in pop.draw(rng, m, runs):
                band = self.rules.simultaneous_band(hits, sizes, rng, draws=2000)
                covered += all(s.low <= t <= s.high for s, t in zip(band.intervals, pop.survival, strict=True))
            low = 0.93 if m == 80 else 0.94
            yield coverage("survival, simultaneous band", f"{m} prompts, {pop.name}", covered / runs, runs, low, 0.96)

    def conditional_band(self) -> Iterator[Row]:
        """Shares of the steps whose drafts before were all accepted, with a band over all positions."""
        runs, m = self.sizes.clusters // 2, 500
        for i, pop in enumerate(POPULATIONS):
            rng, covered = self.rng(350 + i), 0
            truth = np.array(pop.survival) / np.array([1.0, *pop.survival[:-1]])
            for hits, sizes in pop.draw(rng, m, runs):
                band = self.rules.simultaneous_band(hits, np.column_stack([sizes, hits[:, :-1]]), rng, draws=2000)
                covered += all(s.low <= t <= s.high for s, t in zip(band.intervals, truth, strict=True))
            yield coverage(
                "conditional, simultaneous band", f"{m} prompts, {pop.name}", covered / runs, runs, 0.94, 0.96
            )

    def lost(self) -> Iterator[Row]:
        """Survival against a golden's, less by the margin: at all positions alike, or all of it at the first."""
        margin, runs = 0.2, self.sizes.resampled
        for i, (pop, m) in enumerate((p, m) for p in POPULATIONS for m in (80, 500)):
            even, first = np.full(pop.k, margin / pop.k), np.eye(pop.k)[0] * margin
            for j, (where, less) in enumerate((("spread evenly", even), ("at the first position", first))):
                if m == 500 and i > 1:
                    continue
                rng = self.rng(600 + 10 * i + j)
                setting = f"{m} and {m} prompts, {pop.name}, {margin:g} tokens lost {where}"
                found = [self._lost(pop, rng, m, less, margin) for _ in range(runs)]
                for name, chance in (("within", "p_under"), ("over", "p_over")):
                    rate = np.mean([getattr(f, chance) <= ALPHA for f in found])
                    yield size(f"distribution, loss {name} the margin", setting, rate, runs)
            rng, equal = self.rng(680 + i), 0
            for _ in range(runs):
                equal += self._lost(pop, rng, m, np.zeros(pop.k), margin).p_equal <= ALPHA
            yield size("distribution, no difference", f"{m} and {m} prompts, {pop.name}", equal / runs, runs)
        pop, m, rng = POPULATIONS[0], 80, self.rng(690)
        found = [self._lost(pop, rng, m, np.full(pop.k, margin / pop.k), margin, known=False) for _ in range(runs)]
        rate = np.mean([f.p_under <= ALPHA for f in found])
        setting = f"{m} and {m} prompts, {pop.name}, golden with its design effect only"
        yield size("distribution, loss within the margin", setting, rate, runs)

    def _lost(
        self, pop: Population, rng: np.random.Generator, m: int, less: np.ndarray, margin: float, known: bool = True
    ) -> stats.LostTest:
        """As the gate has it: a run of m prompts against a golden of as many of its own, which accepts `less` more."""
        (hits, sizes), (golden, steps) = pop.draw(rng, m, 2)
        here, there = _histogram(hits, sizes), _histogram(golden, steps)
        spread = stats.survival_covariance(there)
        if not known:
            spread = stats.histogram_covariance(there.sum(axis=0), math.sqrt(spread.sum()))
        gap = hits.sum(axis=0) / sizes.sum() - golden.sum(axis=0) / steps.sum() - less
        return self.rules.lost_test(gap, stats.survival_covariance(here) + spread, margin, m - 1, ALPHA)


def _histogram(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return -np.diff(np.column_stack([sizes, hits, np.zeros(len(sizes))]), axis=1)

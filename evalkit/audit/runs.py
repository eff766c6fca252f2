"""The simulations of run-to-run variation: an effect that a whole run shares, beside the flips of single answers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from evalkit.audit.row import ALPHA, Row, coverage, size
from evalkit.audit.rules import Simulation

MARGIN = 0.01
CHANCES = ((0.97, 1187), (0.5, 66), (0.03, 66))  # of a right answer, and how many questions have it: 1319 in all


class RunsAudit(Simulation):
    def run_variation(self) -> Iterator[Row]:
        yield from self._given_effects()
        yield from self._as_the_gate()
        yield from self._of_scores()

    def _given_effects(self) -> Iterator[Row]:
        """A true difference of minus the margin, moved by both runs' effects, whose standard deviation other runs
        measured: of the size of the flips of answers, and large beside it."""
        runs, n, share = self.sizes.clusters, 1319, 0.06
        for i, (sd, measured_by) in enumerate((s, r) for s in (0.004, 0.016) for r in (2, 5)):
            rng = self.rng(700 + i)
            moved = (-MARGIN + math.sqrt(2) * rng.normal(0, sd, runs)).clip(-share, share)
            found = math.sqrt(2) * rng.normal(0, sd, (runs, measured_by)).std(axis=1, ddof=1)
            passed = covered = 0
            for d, s in zip(moved, found, strict=True):
                up, down, _ = rng.multinomial(n, [(share + d) / 2, (share - d) / 2, 1 - share])
                error = {"sd": float(s), "measured_by": measured_by}
                passed += self.rules.paired_runs_test(int(up), int(down), n, -MARGIN, **error).p_above <= ALPHA
                span = self.rules.paired_runs_interval(int(up), int(down), n, **error)
                covered += span.low <= -MARGIN <= span.high
            setting = f"n = {n}, runs vary by {100 * sd:g} pt, measured by {measured_by} runs"
            yield size("paired non-inferiority, run-to-run", setting, passed / runs, runs)
            yield coverage("Tango interval, run-to-run", setting, covered / runs, runs, 0.94, 1.0)

    def _as_the_gate(self) -> Iterator[Row]:
        """Question by question, the variation being what its answers' flips leave unexplained (as the gate has it)."""
        runs, chance = self.sizes.clusters, np.concatenate([np.full(n, p) for p, n in CHANCES])
        n = chance.size
        for i, (sd, measured_by) in enumerate(((0.0, 5), (0.004, 2), (0.004, 5))):
            rng, passed = self.rng(720 + i), 0
            for _ in range(runs):
                truth = chance + rng.normal(0, sd, (measured_by + 1, 1))
                truth[-1] -= MARGIN
                right = rng.random((measured_by + 1, n)) < truth
                base, made = right[0], right[-1]
                found = self.rules.run_variation_by_unit(right[:-1]).excess_sd
                up, down = int((made & ~base).sum()), int((base & ~made).sum())
                error = {"sd": math.sqrt(2) * found, "measured_by": measured_by}
                passed += self.rules.paired_runs_test(up, down, n, -MARGIN, **error).p_above <= ALPHA
            setting = f"n = {n}, runs vary by {100 * sd:g} pt, excess of {measured_by} runs by question"
            yield size("paired non-inferiority, run-to-run", setting, passed / runs, runs)

    def _of_scores(self) -> Iterator[Row]:
        """From scores alone: the standard deviation of runs, and where the next one falls."""
        rng, runs, sd, measured_by = self.rng(740), self.sizes.counts, 0.005, 5
        scores = rng.normal(0.95, sd, (runs, measured_by + 1))
        found = [self.rules.run_variation(row[:-1]) for row in scores]
        setting = f"{measured_by} runs"
        held = np.mean([f.sd_interval.low <= sd <= f.sd_interval.high for f in found])
        yield coverage("run-to-run standard deviation", setting, held, runs, 0.94, 0.96)
        spans = [self.rules.next_run_interval(f) for f in found]
        held = np.mean([s.low <= row[-1] <= s.high for s, row in zip(spans, scores, strict=True)])
        yield coverage("score of the next run", setting, held, runs, 0.94, 0.96)

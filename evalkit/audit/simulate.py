"""The simulations: which rule is put to which population, and what it promised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.audit.population import POPULATIONS
from evalkit.audit.row import ALPHA, Row, coverage, size
from evalkit.audit.runs import RunsAudit
from evalkit.audit.survival import SurvivalAudit

N = 1319


class Audit(SurvivalAudit, RunsAudit):
    def rows(self) -> Iterator[Row]:
        yield from self.one_proportion()
        yield from self.paired()
        yield from self.unpaired()
        yield from self.repeats()
        yield from self.run_variation()
        yield from self.length_size()
        yield from self.length_coverage()
        yield from self.band()
        yield from self.conditional_band()
        yield from self.lost()
        yield from self.sequential()
        yield from self.family()

    def one_proportion(self) -> Iterator[Row]:
        interval, rng, runs = cache(lambda c: self.rules.wilson(c, N)), self.rng(1), self.sizes.counts
        for p in (0.90, 0.925, 0.95, 0.975, 0.99):
            spans = [interval(int(c)) for c in rng.binomial(N, p, runs)]
            rate = np.mean([s.low <= p <= s.high for s in spans])
            yield coverage("Wilson", f"n = {N}, p = {p:g}", rate, runs, 0.94, 0.96)
        exact, rng = cache(lambda c, n: self.rules.exact_interval(c, n)), self.rng(11)
        for n, p in ((N, 0.96), (N, 0.9999), (50, 0.98)):  # by its making never below 95 %, and up to 100
            spans = [exact(int(c), n) for c in rng.binomial(n, p, runs)]
            rate = np.mean([s.low <= p <= s.high for s in spans])
            yield coverage("exact (Clopper-Pearson)", f"n = {n}, p = {p:g}", rate, runs, 0.95, 1.0)

    def paired(self) -> Iterator[Row]:
        rng, runs, margin = self.rng(2), self.sizes.counts, 0.01
        interval = cache(lambda u, d: self.rules.tango_interval(u, d, N))
        test = cache(lambda u, d: self.rules.tango_test(u, d, N, -margin))
        cases = [(share, 0.0) for share in (0.005, 0.01, 0.02, 0.03, 0.05)]
        cases += [(0.006, -0.005), (0.0075, -0.0073)]  # nearly all one way: where a Wald interval falls short
        cases += [(share, -margin) for share in (0.0105, 0.015, 0.03, 0.05)]
        for share, d in cases:
            setting = f"n = {N}, {100 * share:g} % discordant, difference {d:g}"
            tables = _pairs(rng, share, d, runs)
            spans = [interval(*t) for t in tables]
            covered = np.mean([s.low <= d <= s.high for s in spans])
            yield coverage("Tango interval", setting, covered, runs, 0.94, 0.96)
            if d == -margin:
                passed = np.mean([test(*t).p_above <= ALPHA for t in tables])
                yield size("paired non-inferiority (Tango)", setting, passed, runs)

        rng = self.rng(12)
        for share in (0.01, 0.05):
            tables = _pairs(rng, share, 0.0, runs)
            for name, rule in (("exact", self.rules.mcnemar_exact), ("mid-p", self.rules.mcnemar_midp)):
                p = cache(lambda u, d, rule=rule: rule(u, d))
                found = np.mean([p(*t) <= ALPHA for t in tables])
                yield size(f"any difference (McNemar, {name})", f"n = {N}, {100 * share:g} % discordant", found, runs)

    def unpaired(self) -> Iterator[Row]:
        rng, runs = self.rng(3), self.sizes.counts
        for p, margin in ((0.96, 0.01), (0.96, 0.02), (0.90, 0.02)):
            test = cache(lambda a, b, margin=margin: self.rules.two_proportion_test(a, N, b, N, -margin))
            x, y = rng.binomial(N, p - margin, runs), rng.binomial(N, p, runs)
            passed = np.mean([test(int(a), int(b)).p_above <= ALPHA for a, b in zip(x, y, strict=True)])
            yield size(
                "unpaired non-inferiority (score)", f"n = {N} and {N}, p = {p:g}, margin {margin:g}", passed, runs
            )
        interval, rng = cache(lambda a, b, m: self.rules.two_proportion_interval(a, N, b, m)), self.rng(13)
        for p, q, m in ((0.96, 0.96, N), (0.95, 0.97, N), (0.90, 0.92, 400)):
            tables = zip(rng.binomial(N, p, runs), rng.binomial(m, q, runs), strict=True)
            spans = [interval(int(a), int(b), m) for a, b in tables]
            held = np.mean([s.low <= p - q <= s.high for s in spans])
            yield coverage("unpaired score interval", f"n = {N} and {m}, p = {p:g} and {q:g}", held, runs, 0.94, 0.96)

    def repeats(self) -> Iterator[Row]:
        """Questions with their own chance of a right answer, four answers each a side; a fifth of the questions
        loses 0.1 in chance, so 0.02 in all."""
        rng, runs, m, r = self.rng(4), self.sizes.clusters, 300, 4
        unit = np.repeat(np.arange(m), r)
        chance = rng.beta(9, 1, (runs, m)) * 0.9 + 0.1
        y = rng.random((runs, m, r)) < chance[..., None]
        spans = [self.rules.repeated_mean(x.ravel(), unit).interval for x in y]
        mean = 0.9 * 0.9 + 0.1
        covered = np.mean([s.low <= mean <= s.high for s in spans])
        setting = f"{m} questions, {r} answers each"
        yield coverage("mean with repeats", setting, covered, runs, 0.94, 0.96)
        lost = np.where(np.arange(m) < m // 5, 0.1, 0.0)
        before = y.mean(axis=2)
        after = (rng.random((runs, m, r)) < (chance - lost)[..., None]).mean(axis=2)
        passed = np.mean([self.rules.paired_repeats_test(d, -0.02).p_above <= ALPHA for d in after - before])
        yield size("paired non-inferiority with repeats", f"{setting} a side, margin 0.02", passed, runs)
        held = _share([self.rules.paired_repeats_interval(d) for d in after - before], -0.02)
        yield coverage("paired difference with repeats", f"{setting} a side", held, runs, 0.94, 0.97)

    def length_size(self) -> Iterator[Row]:
        """Length over golden at exactly 1 - margin, the golden from as many prompts of its own, or known."""
        runs, margin = self.sizes.clusters, 0.05
        for i, (pop, m) in enumerate((p, m) for p in POPULATIONS for m in (80, 500)):
            rng = self.rng(100 + i)
            golden = stats.Estimate(value=(1 + pop.mean) / (1 - margin), se=0.0)
            known = both = held = 0
            for hits, sizes in pop.draw(rng, m, runs):
                x = self._estimate(hits.sum(axis=1), sizes)
                known += self.rules.ratio_test(x, golden, 1 - margin).p_above <= ALPHA
                other, v = next(pop.draw(rng, m, 1))
                y = self._estimate(other.sum(axis=1), v)
                scaled = replace(y, value=y.value / (1 - margin), se=y.se / (1 - margin))
                if m == 80:  # the test turned round: where few prompts bend it most
                    span = self.rules.ratio_interval(x, scaled)
                    held += span.low <= 1 - margin <= span.high
                both += self.rules.ratio_test(x, scaled, 1 - margin).p_above <= ALPHA
            yield size("length against a known golden", f"{m} prompts, {pop.name}", known / runs, runs)
            yield size("length against a measured golden", f"{m} and {m} prompts, {pop.name}", both / runs, runs)
            if m == 80:
                setting = f"{m} and {m} prompts, {pop.name}"
                yield coverage("ratio of lengths", setting, held / runs, runs, 0.93, 0.96)

    def _estimate(self, totals: np.ndarray, sizes: np.ndarray) -> stats.Estimate:
        return self.rules.clustered_ratio(totals, sizes).estimate(offset=1.0)

    def length_coverage(self) -> Iterator[Row]:
        rules, draws = self.rules, self.sizes.draws
        for i, (pop, m) in enumerate((p, m) for p in POPULATIONS for m in (80, 500)):
            rng, low = self.rng(200 + i), 0.93 if m == 80 else 0.94
            setting = f"{m} prompts, {pop.name}"
            runs = self.sizes.clusters
            found = [rules.clustered_ratio(h.sum(axis=1), v) for h, v in pop.draw(rng, m, runs)]
            plain, corrected = [f.interval for f in found], [f.estimate().interval() for f in found]
            yield coverage("length, t interval", setting, _share(plain, pop.mean), runs, low, 0.96)
            yield coverage("length, t less skewness", setting, _share(corrected, pop.mean), runs, low, 0.96)
            runs = self.sizes.resampled if m == 80 else self.sizes.resampled // 2
            data = list(pop.draw(rng, m, runs))
            for name, rule in (("BCa", rules.bca_ratio), ("bootstrap-t", rules.bootstrap_t_ratio)):
                spans = [rule(h.sum(axis=1), v, rng, draws=draws) for h, v in data]
                yield coverage(f"length, {name} interval", setting, _share(spans, pop.mean), runs, low, 0.96)

    def sequential(self) -> Iterator[Row]:
        margin, runs = 0.01, self.sizes.sequential
        for i, (share, d) in enumerate(((0.0105, -margin), (0.03, -margin), (0.10, -margin), (0.01, 0.0), (0.05, 0.0))):
            for j, planned in enumerate((True, False)):
                rng = self.rng(400 + 10 * i + j)
                rule = self.rules.sequential(margin, ALPHA, pairs=N, final_share=0.8 if planned else 0.0)
                ends = replay(rule, rng, share, d, runs)
                kind = "with a final test" if planned else "always valid"
                setting = f"{N} pairs, {100 * share:g} % discordant, difference {d:g}"
                if d:
                    for name, stop in (("success", stats.Stop.SUCCESS), ("failure", stats.Stop.FAILURE)):
                        rate = np.mean([e is stop for e, _ in ends])
                        yield size(f"sequential {name}, {kind}", setting, rate, runs)
                else:
                    rate = np.mean([e is stats.Stop.FUTILE for e, _ in ends])
                    yield size(f"sequential futility, {kind}", setting, rate, runs)

    def family(self) -> Iterator[Row]:
        """Nine cells against one baseline, so correlated by half, none of them worse: any false alarm?"""
        rng, runs, cells = self.rng(6), self.sizes.counts, 9
        z = (rng.standard_normal((runs, cells)) + rng.standard_normal((runs, 1))) / math.sqrt(2)
        p_values = special.ndtr(-z)
        wrong = np.mean([min(self.rules.holm(p)) <= ALPHA for p in p_values])
        yield size("Holm, any of nine", "cells correlated by 0.5", wrong, runs)
        wrong = np.mean([any(self.rules.fixed_sequence(p, ALPHA)) for p in p_values])
        yield size("fixed sequence, any of nine", "cells correlated by 0.5", wrong, runs)

    def sequential_examples(self) -> Iterator[tuple[str, dict[str, float], float]]:
        """How runs end and how many pairs they take, for what a reader wants to know before `--stop-early`."""
        for i, (share, d) in enumerate(((0.01, 0.0), (0.03, 0.0), (0.03, -0.02), (0.08, -0.05), (0.96, -0.94))):
            rule = self.rules.sequential(0.01, ALPHA, pairs=N)
            ends = replay(rule, self.rng(500 + i), share, d, max(100, self.sizes.sequential // 8))
            rates = {
                s.value: float(np.mean([e is s for e, _ in ends])) for s in stats.Stop if s is not stats.Stop.GO_ON
            }
            yield f"{100 * share:g} % discordant, difference {d:g}", rates, float(np.mean([n for _, n in ends]))


def replay(rule: stats.SequentialPaired, rng: np.random.Generator, share: float, d: float, runs: int) -> list:
    ends = []
    for start in range(0, runs, 50):
        rows = min(50, runs - start)
        x = rng.random((rows, N))
        steps = np.where(x < (share + d) / 2, 1, np.where(x < share, -1, 0))
        ends += list(zip(*rule.replay(steps), strict=True))
    return ends


def _pairs(rng: np.random.Generator, share: float, d: float, runs: int) -> list[tuple[int, int]]:
    table = rng.multinomial(N, [(share + d) / 2, (share - d) / 2, 1 - share], runs)
    return [(int(u), int(v)) for u, v, _ in table]


def _share(spans: list, value: float) -> float:
    return float(np.mean([s is not None and s.low <= value <= s.high for s in spans]))

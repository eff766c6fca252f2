"""Which rules are audited. They are handed in, so that a test can break one on purpose and see the audit fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from evalkit import stats
from evalkit.audit.row import Sizes

SEED = 20261130


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is audited; the defaults are what evalkit uses."""

    wilson: Callable = stats.wilson
    tango_interval: Callable = stats.tango_interval
    tango_test: Callable = stats.tango_test
    exact_interval: Callable = stats.exact_interval
    mcnemar_exact: Callable = stats.mcnemar_exact
    mcnemar_midp: Callable = stats.mcnemar_midp
    two_proportion_test: Callable = stats.two_proportion_test
    two_proportion_interval: Callable = stats.two_proportion_interval
    clustered_ratio: Callable = stats.clustered_ratio
    ratio_test: Callable = stats.ratio_test
    ratio_interval: Callable = stats.ratio_interval
    bca_ratio: Callable = stats.bca_ratio
    bootstrap_t_ratio: Callable = stats.bootstrap_t_ratio
    simultaneous_band: Callable = stats.simultaneous_band
    lost_test: Callable = stats.lost_test
    repeated_mean: Callable = stats.repeated_mean
    paired_repeats_test: Callable = stats.paired_repeats_test
    paired_repeats_interval: Callable = stats.paired_repeats_interval
    run_variation: Callable = stats.run_variation
    run_variation_by_unit: Callable = stats.run_variation_by_unit
    next_run_interval: Callable = stats.next_run_interval
    paired_runs_test: Callable = stats.paired_runs_test
    paired_runs_interval: Callable = stats.paired_runs_interval
    holm: Callable = stats.holm
    fixed_sequence: Callable = stats.fixed_sequence
    sequential: Callable = stats.SequentialPaired


@dataclass(kw_only=True)
class Simulation:
    """What every simulation needs: the rules, how much, and a generator for each part."""

    rules: Rules = field(default_factory=Rules)
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = SEED

    def rng(self, part: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, part])

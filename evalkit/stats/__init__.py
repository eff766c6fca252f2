"""Intervals and tests over counts and arrays: no files, no domain words.

Every function refuses what it cannot answer (NaN, empty, negative, mismatched input) with a ValueError
that says what was found; none of them returns NaN. All proportions and differences are fractions of 1.
Each module names its sources.
"""

from __future__ import annotations

from evalkit.stats.band import Band, simultaneous_band
from evalkit.stats.bootstrap import bca_ratio, bootstrap_se, bootstrap_t_ratio
from evalkit.stats.common import BoundTest, Interval, Numbers
from evalkit.stats.histogram import calibration_error, wasserstein_1
from evalkit.stats.history import ThresholdAudit, audit_threshold
from evalkit.stats.multiple import fixed_sequence, holm
from evalkit.stats.paired import discordant_at, mcnemar_exact, mcnemar_midp, tango_interval, tango_test
from evalkit.stats.power import (
    mde_estimate,
    mde_paired,
    mde_unpaired,
    needed_clusters,
    needed_n,
    needed_noninferior,
    needed_pairs,
    power_noninferior,
    power_paired,
    power_threshold,
    power_unpaired,
)
from evalkit.stats.proportion import exact_interval, meets, needed_count, proportion_se, recover_count, wilson
from evalkit.stats.ratio import Estimate, RatioEstimate, Skew, clustered_ratio, ratio_interval, ratio_test
from evalkit.stats.repeats import (
    RepeatedMean,
    RunVariation,
    next_run_interval,
    paired_repeats_interval,
    paired_repeats_test,
    paired_runs_interval,
    paired_runs_test,
    repeated_mean,
    run_variation,
    run_variation_by_unit,
    with_run_variation,
)
from evalkit.stats.sequential import SequentialPaired, SequentialState, Stop, log_capital
from evalkit.stats.survival import (
    LostTest,
    equal_test,
    histogram_covariance,
    lost_test,
    survival_counts,
    survival_covariance,
)
from evalkit.stats.unpaired import two_proportion_interval, two_proportion_test

__all__ = [
    "Band",
    "BoundTest",
    "Estimate",
    "Interval",
    "LostTest",
    "Numbers",
    "RatioEstimate",
    "RepeatedMean",
    "RunVariation",
    "SequentialPaired",
    "SequentialState",
    "Skew",
    "Stop",
    "ThresholdAudit",
    "audit_threshold",
    "bca_ratio",
    "bootstrap_se",
    "bootstrap_t_ratio",
    "calibration_error",
    "clustered_ratio",
    "discordant_at",
    "equal_test",
    "exact_interval",
    "fixed_sequence",
    "histogram_covariance",
    "holm",
    "log_capital",
    "lost_test",
    "mcnemar_exact",
    "mcnemar_midp",
    "mde_estimate",
    "mde_paired",
    "mde_unpaired",
    "meets",
    "needed_clusters",
    "needed_count",
    "needed_n",
    "needed_noninferior",
    "needed_pairs",
    "next_run_interval",
    "paired_repeats_interval",
    "paired_repeats_test",
    "paired_runs_interval",
    "paired_runs_test",
    "power_noninferior",
    "power_paired",
    "power_threshold",
    "power_unpaired",
    "proportion_se",
    "ratio_interval",
    "ratio_test",
    "recover_count",
    "repeated_mean",
    "run_variation",
    "run_variation_by_unit",
    "simultaneous_band",
    "survival_counts",
    "survival_covariance",
    "tango_interval",
    "tango_test",
    "two_proportion_interval",
    "two_proportion_test",
    "wasserstein_1",
    "wilson",
    "with_run_variation",
]

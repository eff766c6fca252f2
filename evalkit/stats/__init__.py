"""Intervals and tests over counts and arrays: no files, no domain words.

Every function refuses what it cannot answer (NaN, empty, negative, mismatched input) with a ValueError
that says what was found; none of them returns NaN. All proportions and differences are fractions of 1.
Each module names its sources.
"""

from __future__ import annotations

from evalkit.stats.common import BoundTest, Interval, Numbers
from evalkit.stats.histogram import calibration_error, wasserstein_1
from evalkit.stats.paired import discordant_at, mcnemar_exact, mcnemar_midp, tango_interval, tango_test
from evalkit.stats.power import mde_paired, mde_unpaired, needed_n, needed_pairs
from evalkit.stats.proportion import proportion_se, recover_count, wilson
from evalkit.stats.ratio import Estimate, RatioEstimate, clustered_ratio, ratio_interval, ratio_test
from evalkit.stats.unpaired import two_proportion_interval, two_proportion_test

__all__ = [
    "BoundTest",
    "Estimate",
    "Interval",
    "Numbers",
    "RatioEstimate",
    "calibration_error",
    "clustered_ratio",
    "discordant_at",
    "mcnemar_exact",
    "mcnemar_midp",
    "mde_paired",
    "mde_unpaired",
    "needed_n",
    "needed_pairs",
    "proportion_se",
    "ratio_interval",
    "ratio_test",
    "recover_count",
    "tango_interval",
    "tango_test",
    "two_proportion_interval",
    "two_proportion_test",
    "wasserstein_1",
    "wilson",
]

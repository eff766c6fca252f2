"""Steps become acceptance figures: one definition of each, with its uncertainty, and signs that a run was forced."""

from evalkit.acceptance.counted import of_run
from evalkit.acceptance.curves import (
    Position,
    counted_positions,
    positions,
    positions_of,
    survival_covariance,
    useful_k,
)
from evalkit.acceptance.distribution import DistributionTest, distribution_of_counts, distribution_test, implied_groups
from evalkit.acceptance.forced import constant_conditional, forced_signs, looks_forced, told_forced, too_even
from evalkit.acceptance.groups import Group, by_answer_length, by_category
from evalkit.acceptance.model import AcceptanceStats, Calibration
from evalkit.acceptance.reconcile import Reconciled, reconcile
from evalkit.acceptance.summary import summarize

__all__ = [
    "AcceptanceStats", "Calibration", "DistributionTest", "Group", "Position", "Reconciled", "by_answer_length",
    "by_category", "constant_conditional", "counted_positions", "distribution_of_counts", "distribution_test",
    "forced_signs", "implied_groups", "looks_forced", "of_run", "positions", "positions_of", "reconcile", "summarize",
    "survival_covariance", "told_forced", "too_even", "useful_k",
]  # fmt: skip

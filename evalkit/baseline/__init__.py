"""What a run's score is compared with: a recorded K=0 run, question by question, and published scores."""

from evalkit.baseline.file import load_baseline
from evalkit.baseline.marks import BASELINE_MARKS, baseline_command, by_name, mark
from evalkit.baseline.model import HASH_CHARS, Baseline, Row, Variation, score_bit
from evalkit.baseline.published import GOLDEN_DIR, ReferenceScore, load_reference_scores
from evalkit.baseline.record import REAL, record_baseline, refuse_unfit
from evalkit.views import FLEXIBLE, STRICT

__all__ = [
    "BASELINE_MARKS",
    "FLEXIBLE",
    "GOLDEN_DIR",
    "HASH_CHARS",
    "REAL",
    "STRICT",
    "Baseline",
    "ReferenceScore",
    "Row",
    "Variation",
    "baseline_command",
    "by_name",
    "load_baseline",
    "load_reference_scores",
    "mark",
    "record_baseline",
    "refuse_unfit",
    "score_bit",
]  # fmt: skip

"""Golden curves, accepted length by K: read strictly, looked up at exactly their K, recorded from sound runs only."""

from evalkit.baseline import GOLDEN_DIR
from evalkit.golden.curve import (
    CURVE_MARKS,
    NOTED_MARKS,
    Curve,
    GoldenValue,
    differing_marks,
    lookup,
    other_method,
    pick,
    record_command,
    said_otherwise,
    same_model,
)
from evalkit.golden.defaults import (
    JUDGED_BY,
    Standards,
    baseline_for,
    baseline_path,
    curve_place,
    defaults_for,
    golden_path,
    judged_as,
    published,
)
from evalkit.golden.describe import (
    check_file,
    check_scores_text,
    check_text,
    diff_text,
    find_file,
    pair_curves,
    show_text,
)
from evalkit.golden.header import Header, Sampling, read_header
from evalkit.golden.read import folder_curves, is_reference_scores, read_curve, read_curves
from evalkit.golden.record import NEVER_WORKED, curve_of, record_curve
from evalkit.golden.sidecar import EVIDENCE, evidence_path

__all__ = [
    "CURVE_MARKS",
    "EVIDENCE",
    "GOLDEN_DIR",
    "JUDGED_BY",
    "NEVER_WORKED",
    "NOTED_MARKS",
    "Curve",
    "GoldenValue",
    "Header",
    "Sampling",
    "Standards",
    "baseline_for",
    "baseline_path",
    "check_file",
    "check_scores_text",
    "check_text",
    "curve_of",
    "curve_place",
    "defaults_for",
    "diff_text",
    "differing_marks",
    "evidence_path",
    "find_file",
    "folder_curves",
    "golden_path",
    "is_reference_scores",
    "judged_as",
    "lookup",
    "other_method",
    "pair_curves",
    "pick",
    "published",
    "read_curve",
    "read_curves",
    "read_header",
    "record_command",
    "record_curve",
    "said_otherwise",
    "same_model",
    "show_text",
]  # fmt: skip

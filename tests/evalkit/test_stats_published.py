"""The published scores of ../shared/reference/m31flash_tables.yaml give the same scores, errors and comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit import stats
from evalkit.acceptance import implied_groups

TABLES = Path(__file__).resolve().parents[3] / "shared" / "reference" / "m31flash_tables.yaml"
COMPARISONS = [  # (engine, quant, k) of both; difference, interval, p at margin 0.01, p at margin 0.02
    (("atom", "fp8", 7), ("sglang", "ci", None), "+0.0083", "-0.0060 .. +0.0230", "0.0064", None),
    (("atom", "nvfp4", 7), ("sglang", "ci", None), "+0.0045", "-0.0102 .. +0.0195", "0.0266", None),
    (("atom", "fp8", 3), ("sglang", "ci", None), "+0.0061", "-0.0085 .. +0.0209", "0.0157", None),
    (("atom", "fp8", 5), ("sglang", "ci", None), "+0.0114", "-0.0026 .. +0.0258", "0.0016", None),
    (("atom", "nvfp4", 7), ("atom", "fp8", 7), "-0.0038", "-0.0179 .. +0.0102", "0.190", "0.0127"),
]


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    if not TABLES.is_file():
        pytest.skip("../shared is not beside this checkout")
    return yaml.safe_load(TABLES.read_text())


def test_five_scores_and_their_errors(tables: dict[str, Any]) -> None:
    rows = tables["gsm8k_strict_match"]
    assert len(rows) == 5
    for row in rows:
        assert stats.recover_count(row["score"], row["n"]) == row["correct"]
        assert f"{row['correct'] / row['n']:.4f}" == f"{row['score']:.4f}"
        se = stats.proportion_se(row["correct"], row["n"])
        assert se is not None
        if row["stderr"] is not None:
            assert f"{se:.4f}" == f"{row['stderr']:.4f}"


@pytest.mark.parametrize(("one", "other", "difference", "interval", "p1", "p2"), COMPARISONS)
def test_comparison_table(
    tables: dict[str, Any], one: tuple, other: tuple, difference: str, interval: str, p1: str, p2: str | None
) -> None:
    counts = {(r["engine"], r["quant"], r["k"]): (r["correct"], r["n"]) for r in tables["gsm8k_strict_match"]}
    (a, n), (b, m) = counts[one], counts[other]
    assert f"{a / n - b / m:+.4f}" == difference
    found = stats.two_proportion_interval(a, n, b, m, exact=False)  # printed with statsmodels
    assert f"{found.low:+.4f} .. {found.high:+.4f}" == interval
    for margin, printed in ((0.01, p1), (0.02, p2)):
        if printed is not None:
            p = stats.two_proportion_test(a, n, b, m, -margin, exact=False).p_above
            assert f"{p:.{len(printed) - 2}f}" == printed


def test_implied_survival_of_the_published_curve(tables: dict[str, Any]) -> None:
    curve = tables["golden_accepted_length"]
    assert [round(s, 2) for s in implied_groups(curve)[1]] == [1.88, 0.58, 0.58]


def test_smallest_differences() -> None:
    assert f"{stats.mde_unpaired(1266 / 1319, 1319, 1319):.3f}" in ("0.018", "0.019")
    assert f"{stats.mde_unpaired(1272 / 1319, 1319, 1319):.3f}" == "0.018"
    assert f"{stats.mde_paired(1319, 0.03):.3f}" == "0.012"

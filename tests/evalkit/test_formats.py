"""One rule a kind of number; the page alone shows U+2212 and groups long counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalkit import formats

ROOT = Path(__file__).parents[2]
HOME = {"evalkit/formats.py", "evalkit/percent.py"}


def test_signed_numbers() -> None:
    assert [formats.signed(x, 1) for x in (0.04, -0.04, 0.0, -0.0, 0.06, -0.06)] == ["0.0"] * 4 + ["+0.1", "-0.1"]
    assert formats.points(-0.0041) == "-0.4 pt" and formats.points_interval(-0.0041, 0) == "-0.4 .. 0.0 pt"
    assert formats.interval(-0.1, 0.1, 2, plus=True) == "-0.10 .. +0.10" and formats.interval(1, 2, 1) == "1.0 .. 2.0"


def test_shares_percent_and_counts() -> None:
    assert (
        formats.percent(0.998) == "99.8 %" and formats.percent(1, 8) == "12.5 %" and "nothing" in formats.percent(0, 0)
    )
    assert formats.percent_interval(0.99, 1.005) == "99.0 .. 100.5 %"
    assert [formats.count(n) for n in (0, 1319, 9999, 10_000, -12_345)] == ["0", "1319", "9999", "10,000", "-12,345"]
    assert formats.counting(1, "draft") == "1 draft" and formats.counting(53_507, "token") == "53,507 tokens"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-0.4 pt", "\u22120.4 pt"),
        ("90 % -0.4 .. +0.2 pt; margin -1 pt", "90 % \u22120.4 .. +0.2 pt; margin \u22121 pt"),
        ("(-0.0035 .. 0.1)", "(\u22120.0035 .. 0.1)"), ("p 4.5e-05", "p 4.5e\u221205"), ("-.5", "\u2212.5"),
        ("8275 steps give the 53507 tokens", "8275 steps give the 53,507 tokens"), ("53507.", "53,507."),
    ],
)  # fmt: skip
def test_the_page_sets_minus_and_long_counts(words: str, shown: str) -> None:
    assert formats.typeset(words) == shown == formats.typeset(shown)


@pytest.mark.parametrize(
    "name",
    ["gradeschool-m3-dspark-k7-nvfp4-55e02bfe-3", "2026-11-30", "K=3-7", "run-20261130", "tokens=53507", "1e-05abc",
     "--margin", "0.12345", "commit:9319940", "a - 1", "12345/67890", "seed_20240607", "gpt-4", "v1.2-3"],
)  # fmt: skip
def test_names_dates_and_settings_stay_as_they_are(name: str) -> None:
    assert formats.typeset(name) == name


def test_no_signed_number_is_made_anywhere_else() -> None:
    """A format with its own plus is a second rule: of sign, of zero, of decimals."""
    made = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in (ROOT / "evalkit").rglob("*.py")}
    odd = {name for name, text in made.items() if re.search(r"\{[^{}]*:\+[^{}]*\}", text)} - HOME
    assert odd <= {"evalkit/spec/audit.py"}, odd  # a true effect of a simulation, as many digits as it has
    assert not [name for name, text in made.items() if "\\u2212" in text and name not in HOME | {"evalkit/numbers.py"}]

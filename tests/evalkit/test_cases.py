"""docs/cases.md has every public case once, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from evalkit.config import ROOT

PAGE = (ROOT / "docs" / "cases.md").read_text("utf-8")
ROWS = re.findall(r"^\| (C\d\d) \| (.+?) \| (.+?) \| (.+) \|$", PAGE, flags=re.MULTILINE)
NAMED = re.compile(r"`((?:\w+/)*)(test_\w+)\.py::(test_\w+?)(\*|\[[^\]]*\])?`")


@cache
def names_in(folder: str, file: str) -> frozenset[str]:
    path = ROOT / "tests" / (folder or "evalkit/") / f"{file}.py"
    return frozenset(n.name for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.FunctionDef))


def test_every_case_is_there_once() -> None:
    assert [row[0] for row in ROWS] == [f"C{n:02d}" for n in range(1, 93)]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_case_has_a_test_or_an_issue(row: tuple[str, str, str, str]) -> None:
    assert NAMED.search(row[3]) or re.match(r"not yet\b.*\bissue \d", row[3])
    assert re.search(r"\.py(?!::)", row[3]) is None, "a file without a test in it"


def test_every_test_that_the_cases_name_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 90
    missing = [
        f"{folder}{file}::{test}"
        for folder, file, test, rest in named
        if not any(t.startswith(test) if rest == "*" else t == test for t in names_in(folder, file))
    ]
    assert missing == []


def test_a_case_that_has_a_test_is_not_listed_as_without() -> None:
    """A test called test_c41_... holds C41: its row names a test of that number."""
    by_case = {row[0]: row[3] for row in ROWS}
    for path in (ROOT / "tests" / "evalkit").rglob("test_*.py"):
        for test in names_in(f"{path.parent.relative_to(ROOT / 'tests').as_posix()}/", path.stem):
            for number in re.findall(r"(?:^test_|_)c(\d\d)(?=_)", test):
                assert re.search(rf"::test_\w*?c{number}_|\[c{number}\]", by_case[f"C{number}"]), test

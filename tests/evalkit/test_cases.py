"""docs/cases.md names tests that exist."""

from __future__ import annotations

import ast
import re

from evalkit.config import ROOT


def test_every_test_that_the_cases_name_exists() -> None:
    named = re.findall(r"`(test_\w+)\.py::(test_\w+?)(?:\[[^\]]*\])?`", (ROOT / "docs" / "cases.md").read_text("utf-8"))
    assert len(named) > 30
    known = {
        file: {n.name for n in ast.parse((ROOT / "tests" / "evalkit" / f"{file}.py").read_text("utf-8")).body
               if isinstance(n, ast.FunctionDef)}
        for file in {file for file, _ in named}
    }  # fmt: skip
    assert [f"{file}::{test}" for file, test in named if test not in known[file]] == []

"""A document of verdicts that was edited is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.errors import EvalkitError
from evalkit.judging import read_verdicts
from evalkit.outputs import write_json
from evalkit.records import Outcome
from evalkit.report import cards
from tests.evalkit.report.makers import make_run, make_subject, make_verdict


def _set(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda d: d.update(values)


def _verdict(d: dict[str, Any]) -> None:
    d["verdicts"][0]["outcome"] = "pass"


def _all_but_the_checks(d: dict[str, Any]) -> None:
    d |= {"outcome": "pass", "exit_code": 0}
    d["verdicts"][0]["outcome"] = "pass"


def _no_checks(d: dict[str, Any]) -> None:
    d |= {"outcome": "pass", "exit_code": 0}
    d["verdicts"][0] |= {"outcome": "pass", "checks": []}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_verdict, "is pass, its checks make it inconclusive"),
        (_all_but_the_checks, "is pass, its checks make it inconclusive"),
        (_no_checks, "is pass, its checks make it fail"),
        (_set(outcome="pass"), "its outcome is pass, its verdicts make it inconclusive"),
        (_set(outcome="fail", exit_code=1), "its outcome is fail, its verdicts make it inconclusive"),
        (_set(exit_code=0), "its exit code is 0, that of inconclusive is 3"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], words: str
) -> None:
    run = make_run(30)
    file = write_json([make_verdict(run)], [run], tmp_path / "verdict.json")
    assert [w.verdict.outcome for w in read_verdicts(file)] == [Outcome.INCONCLUSIVE]
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))
    with pytest.raises(EvalkitError) as caught:
        read_verdicts(file)
    assert words in caught.value.what and "\n" not in caught.value.what and "evalkit gate" in caught.value.fix


def test_the_headline_counts_the_checks_that_pass() -> None:
    run = make_run(30)
    verdict = make_verdict(run, Outcome.FAIL)
    said = cards.headline([make_subject(run, replace(verdict, outcome=Outcome.PASS))])
    assert "2 of its 4 checks" in said and "all" not in said and "performance" not in said

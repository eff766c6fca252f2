"""The gate's check `stored reading`: nothing for a sound run, a fail by name for each field that was edited."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from evalkit.gate import GateSpec, judge
from evalkit.gate.reading import NAME, reading_check
from evalkit.records import Bucket, Outcome, Run, Sample
from evalkit.scoring import score_sample
from evalkit.views import FLEXIBLE, STRICT, flexible_view, strict_view
from tests.evalkit.test_gate import make_run

RIGHT, WRONG = "She has 3 + 4 = 7 apples .\n#### 7", "She has 3 + 5 = 8 apples .\n#### 8"


def read(i: int, text: str = "", **more: Any) -> dict[str, Any]:
    """The fields of a sample whose readings are its text's."""
    text = text or (WRONG if i % 20 == 0 else RIGHT)
    views = {STRICT: strict_view(text, "#### 7"), FLEXIBLE: flexible_view(text, "#### 7")}
    made = {"text": text, "gold": "#### 7", "scores": {n: float(v.correct) for n, v in views.items()},
            "extracted": {n: v.extracted for n, v in views.items()}} | more  # fmt: skip
    blank = Sample(doc_id=i, doc_hash="", prompt_hash="", question="", finish_reason="stop", tokens=9, **made)
    return made | {"canonical": score_sample(blank)}


def sound(**more: Any) -> Run:
    return make_run(120, change=read, **more)


def edited(run: Run, at: int = 0, **change: Any) -> Run:
    samples = list(run.samples)
    samples[at] = dataclasses.replace(samples[at], **change)
    return dataclasses.replace(run, samples=tuple(samples))


def found(run: Run) -> Any:
    checks = reading_check(run, run.samples)
    return checks[0] if checks else None


def test_a_sound_run_has_nothing_to_tell() -> None:
    assert found(sound()) is None and found(make_run()) is None  # the second stores no text


@pytest.mark.parametrize(("change", "words"), [
    ({"scores": {STRICT: 1.0, FLEXIBLE: 0.0}}, "strict-match is 1, its text gives 0"),
    ({"scores": {STRICT: 0.0, FLEXIBLE: 1.0}}, "flexible-extract is 1, its text gives 0"),
    ({"extracted": {STRICT: "7"}}, "strict-match read '7', its text gives '8'"),
    ({"extracted": {FLEXIBLE: "7"}}, "flexible-extract read '7', its text gives '8'"),
    ({"text": RIGHT}, "strict-match is 0, its text gives 1"),
    ({"gold": "#### 8"}, "strict-match is 0, its text gives 1"),
    ({"tokens": 0}, "it has a text and no token"),
    ({"pieces": ("#### 8",), "tokens": 3}, "tokens is 3, the text of 1 is stored"),
    ({"pieces": ("#### ", "7"), "tokens": 2}, "its text is not that of its tokens"),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_an_edited_field_is_a_fail_by_name(change: dict[str, Any], words: str) -> None:
    check = found(edited(sound(), **change))
    assert check.name == NAME and check.outcome is Outcome.FAIL
    assert words in check.message and "first document 0" in check.message and "1 of 120" in check.message


@pytest.mark.parametrize(("change", "outcome", "words"), [
    ({"correct": True}, Outcome.FAIL, "its answer 8 is called right, the gold answer is 7"),
    ({"raw_span": "77"}, Outcome.FAIL, "read from '77', which is not in its text"),
    ({"value": "7", "correct": True}, Outcome.INCONCLUSIVE, "canonical value is 7, read now it is 8"),
    ({"bucket": Bucket.TRUNCATED, "correct": None}, Outcome.INCONCLUSIVE, "canonical bucket is truncated"),
], ids=["correct", "span", "value", "bucket"])  # fmt: skip
def test_an_edited_canonical_score(change: dict[str, Any], outcome: Outcome, words: str) -> None:
    run = sound()
    told = run.samples[0].canonical
    assert told is not None
    check = found(edited(run, canonical=dataclasses.replace(told, **change)))
    assert check.outcome is outcome and words in check.message


def test_the_gate_fails_by_it_alone() -> None:
    run = edited(sound(), scores={STRICT: 1.0, FLEXIBLE: 1.0})
    before = judge(sound(), baseline=None, golden=None, spec=GateSpec())
    verdict = judge(run, baseline=None, golden=None, spec=GateSpec())
    assert verdict.outcome is Outcome.FAIL and before.outcome is Outcome.INCONCLUSIVE
    assert [c.name for c in verdict.checks if c.outcome is Outcome.FAIL] == [NAME]


def test_what_cannot_be_known_is_no_fault() -> None:
    run = sound()
    own = dataclasses.replace(run, cell={**run.cell, "task": "own"})  # a task with filters of its own
    assert found(edited(own, scores={STRICT: 1.0}, extracted={STRICT: "eight"})) is None
    assert found(edited(run, pieces=(*"#### ", "\ufffd", "\ufffd"), tokens=7)) is None  # halves of a character
    served = dataclasses.replace(run, cell={**run.cell, "server": {"engine": "vllm"}})
    assert found(edited(served, tokens=0)) is None  # it may count otherwise
    thought = read(0, " ", reasoning="7 , then")
    thought["canonical"] = score_sample(dataclasses.replace(run.samples[0], text="<think>7 , then"))
    assert found(edited(served, **thought)) is None
    half = read(0, "#### 4/2", gold="#### 2")
    views = {STRICT: strict_view("#### 4/2", "#### 2"), FLEXIBLE: flexible_view("#### 4/2", "#### 2")}
    half |= {"scores": {n: float(v.correct) for n, v in views.items()}}
    assert found(edited(run, **half)) is None


def test_reading_a_whole_task_again_takes_no_time() -> None:
    run = make_run(1319, change=read)
    spent = []
    for _ in range(3):
        start = time.process_time()
        assert found(run) is None
        spent.append(time.process_time() - start)
    assert min(spent) < 0.3

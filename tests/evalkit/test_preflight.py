"""What is found before the first request, and what a run and its gate make of the answers; by case number."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalkit import harness
from evalkit.answers import AnswerLimits, format_check
from evalkit.backends import Failure
from evalkit.backends.scripted import Scripted
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge
from evalkit.harness import LoadedTask, Prompt
from evalkit.preflight import cap_note, check_task, check_template, check_tokens, lengths_note
from evalkit.records import Bucket, Check, Outcome, Run, Sample, Verdict
from evalkit.report import tables
from evalkit.run import run_cell
from evalkit.runfile import load_run
from evalkit.scoring import score_sample
from evalkit.session import SILENT
from evalkit.taskdata import stops_of
from evalkit.views import FLEXIBLE, STRICT, flexible_view, strict_view
from tests.evalkit.places import make_checkpoints

N = 40


def prompt(i: int, **more: Any) -> Prompt:
    known = {"doc_hash": f"d{i}", "prompt_hash": f"p{i}", "text": f"Question: {i}?\nAnswer:", "question": f"{i}?"}
    return Prompt(**{**known, "doc_id": i, "gold": f"3 + 4 = 7\n#### {i}", **more})


def task(prompts: list[Prompt] | None = None, **more: Any) -> LoadedTask:
    asked = tuple(prompts if prompts is not None else [prompt(i) for i in range(200)])
    known: dict[str, Any] = {
        "name": "gsm8k", "size": len(asked), "prompts": asked, "shots": 0, "stop": ("Question:",), "max_tokens": 256,
        "task_sha": "", "prompts_sha": "", "files": {}, "filters": (STRICT, FLEXIBLE), "_task": None,
    }  # fmt: skip
    return LoadedTask(**(known | more))


def by_characters(texts: Any) -> list[list[int]]:
    return [[ord(c) for c in text] for text in texts]


def test_a_sound_task_has_no_notes() -> None:
    assert check_task(task()) == [] and check_tokens(task(), by_characters) == []


def test_c07_a_stop_that_cuts_gold_answers_is_an_error() -> None:
    with pytest.raises(EvalkitError, match=r"the stop '=' of gsm8k occurs in 200 of 200 gold answers \(100.0 %\)"):
        check_task(task(stop=("Question=", "Question", "=")))
    rare = [prompt(i, gold="see = \n#### 1" if i < 2 else "#### 1") for i in range(200)]
    assert check_task(task(rare, stop=("=",))) == [], "1 % is not more than 1 %"
    with pytest.raises(EvalkitError, match="3 of 200"):
        check_task(task([*rare[:199], rare[0]], stop=("=",)))


def test_c10_a_stop_given_as_a_plain_string_is_one_stop() -> None:
    stop, notes = stops_of("Q:", "mine")
    assert stop == ("Q:",) and notes == ("stop 'Q:' of mine is a plain string, taken as a list of one",)
    assert stops_of(["a", "b"], "mine") == (("a", "b"), ()) and stops_of(None, "mine") == ((), ())
    for bad in (3, ["a", 3], ["a", ""], ""):
        with pytest.raises(EvalkitError, match="the stops of mine"):
            stops_of(bad, "mine")


def test_c02_gold_answers_that_do_not_parse_are_an_error_that_names_them() -> None:
    asked = [prompt(i, gold="a whole paragraph of 3 words" if i in (5, 9) else "#### 1") for i in range(20)]
    with pytest.raises(EvalkitError, match=r"2 of 20 gold answers of gsm8k are no number: documents 5 \('a whole"):
        check_task(task(asked))
    (note,) = check_task(task(asked, filters=("none",)))
    assert "the canonical score leaves them out" in note


def test_c31_a_document_among_its_own_examples_is_an_error() -> None:
    asked = [prompt(i, item=f"h{i}", shots=(f"h{i + 1}", "other")) for i in range(5)]
    assert check_task(task(asked)) == []
    asked[3] = dataclasses.replace(asked[3], shots=("other", "h3"))
    with pytest.raises(EvalkitError, match=r"1 documents are among .*first: document 3"):
        check_task(task(asked))


def test_a_task_for_chat_models_says_that_no_template_is_applied() -> None:
    (note,) = check_template(task(chat=True), applied=False)
    assert "written for a chat model" in note and "plain text" in note
    assert check_template(task(chat=True), applied=True) == check_template(task(), applied=False) == []


def test_copies_are_found_before_the_first_request() -> None:
    asked = [prompt(i) for i in range(200)]
    asked[7] = dataclasses.replace(asked[3], doc_id=7)
    with pytest.raises(EvalkitError, match=r"1 of 200 documents of gsm8k are copies: document 7 is 3 again"):
        check_task(task(asked))
    asked[7] = dataclasses.replace(asked[7], doc_hash="another id")  # the same question in another row
    (note,) = check_task(task(asked))
    assert note.startswith("1 of 200 questions of gsm8k are asked twice") and "document 7 is 3 again" in note
    shots = {"text": "other examples", "item": "i3"}
    asked[3], asked[7] = dataclasses.replace(asked[3], item="i3"), dataclasses.replace(asked[7], **shots)
    assert len(check_task(task(asked, shots=5))) == 1 and check_task(task(asked)) == []


def test_a_prompt_beyond_the_context_names_its_document() -> None:
    asked = [prompt(i, text="Question: " + "x" * (390 if i == 11 else 20)) for i in range(20)]
    words = r"the prompt of document 11 has 400 tokens, the target's context holds 400 .*1 of 20 prompts are too long"
    with pytest.raises(EvalkitError, match=words + r".*fix: leave those documents out of --data"):
        check_tokens(task(asked, max_tokens=100), by_characters, 400)
    with pytest.raises(EvalkitError, match=r"fix: use fewer than 5 --shots"):
        check_tokens(task(asked, max_tokens=100, shots=5), by_characters, 400)
    (note,) = check_tokens(task(asked, max_tokens=100), by_characters, 450)
    assert note.startswith("1 of 20 prompts leave less than the 100 tokens of an answer") and "leaves 50" in note
    assert check_tokens(task(asked, max_tokens=100), by_characters, 500) == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """test.jsonl, and a train.jsonl whose rows are others, under other ids."""
    for name, first in (("test", 0), ("train", 500)):
        lines = [
            {"id": f"{name}-{i}", "question": f"What is {i} + 1?", "answer": f"{i} + 1 is {i + 1}\n#### {i + 1}"}
            for i in range(first, first + N)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "test.jsonl"


def test_c31_leaks_are_found_in_the_prompts_that_lm_eval_builds(data: Path) -> None:
    cell = Cell.make(draft="none", data=data, task="gsm8k", shots=5)
    loaded = harness.load_task(cell)
    assert all(len(p.shots) == 5 and p.item for p in loaded.prompts) and check_task(loaded) == []
    leak = data.read_text().replace("test-", "train-")  # the same questions under other ids
    (data.parent / "train.jsonl").write_text(leak)
    with pytest.raises(EvalkitError, match="among the examples in their own prompt"):
        check_task(harness.load_task(cell))


def test_c19_a_doubled_bos_is_an_error() -> None:
    def doubled(texts: Any) -> list[list[int]]:
        return [[2, 2, *ids] for ids in by_characters(texts)]

    with pytest.raises(EvalkitError, match=r"every prompt starts with token 2 twice \(\[2, 2, 81, 117\]"):
        check_tokens(task(), doubled)
    assert check_tokens(task(), lambda texts: [[2, *ids] for ids in by_characters(texts)]) == []
    (note,) = check_tokens(task(), None)
    assert "no tokenizer" in note


def test_c12_gold_answers_near_the_limit_are_noted() -> None:
    asked = [prompt(i, gold="x" * (90 if i % 10 == 0 else 20) + "\n#### 1") for i in range(200)]
    (note,) = check_tokens(task(asked, max_tokens=100), by_characters)
    assert "95th percentile of the gold answers is 97 tokens (longest 97), near the limit of 100" in note
    assert check_tokens(task(asked, max_tokens=200), by_characters) == []
    assert cap_note(80, 90, 100, "x") == "" and cap_note(81, 90, 100, "x")
    assert "answers emitted is 99 tokens" in lengths_note([99] * 10 + [3] * 10, 100) and not lengths_note([], 100)


def test_the_checks_are_cheap() -> None:
    asked = [prompt(i, gold="words " * 60 + f"= {i}\n#### {i}", item=f"h{i}", shots=("a",) * 5) for i in range(1319)]
    started = time.process_time()
    check_task(task(asked))
    assert time.process_time() - started < 0.3


# --- a run


@pytest.fixture
def place(data: Path) -> Path:
    return make_checkpoints(data.parent)


def execute(
    place: Path, answer: Callable[[Any], Any], backend: Any = None, *, fresh: bool = False, **words: Any
) -> Run:
    cell = Cell.make(**{"model": str(place / "target"), "draft": "none", "data": place / "test.jsonl", **words})
    made = backend or Scripted(answer)
    return run_cell(cell, runs_dir=place / "runs", backend=lambda c: made, fresh=fresh)


def right(request: Any) -> str:
    return f" so\n#### {int(request.id) + 1}"


def test_a_run_stores_canonical_scores_and_notes(place: Path) -> None:
    def some(request: Any) -> Any:
        if request.id == "4":
            return Failure(id="4", error="timed out")
        return " it is 6" if request.id == "5" else right(request)

    made = execute(place, some)
    assert load_run(place / "runs" / made.id) == made
    one = made.samples[5].canonical
    assert one and (one.value, one.correct, one.disagreement) == ("6", True, "marker missing")
    assert made.samples[4].canonical is None
    assert sum(s.canonical is not None and s.canonical.correct is True for s in made.samples) == N - 1
    tokens, data = made.provenance["notes"]
    assert tokens == "prompts and gold answers were not tokenised before the run: the backend has no tokenizer to ask"
    assert data.startswith("the data are not the published ones of gradeschool (its 40 documents have the sha256 ")
    rows = {row[0]: row for row in tables.bucket_table(made).rows}
    assert (rows["answered"][1], rows["failed"][1]) == (str(N - 1), "1") and "1 of them timed out" in rows["failed"][3]
    assert tables.disagreement_table(made).rows[0][:2] == ("marker missing", "1")


def test_a_run_of_a_chat_task_without_a_template_stores_the_note(place: Path) -> None:
    """The note's place: before the first request, and with the run."""
    made = execute(place, right, task="gsm8k_inferencex", shots=0)
    assert made.complete and any("no chat template" in note for note in made.provenance["notes"])
    assert not any("chat" in note for note in execute(place, right, task="gsm8k", shots=0).provenance["notes"])


def test_c12_a_run_that_came_near_its_limit_says_so(place: Path) -> None:
    made = execute(place, lambda r: "a " * 18 + right(r), max_tokens=20)
    assert "raise --max-tokens" in made.provenance["notes"][-1]


def test_c07_c19_a_run_is_refused_before_its_first_request(place: Path) -> None:
    class Doubles(Scripted):
        def encode(self, texts: Any) -> list[list[int]]:
            return [[1, 1, *ids] for ids in by_characters(texts)]

    backend = Doubles(right)
    with pytest.raises(EvalkitError, match="doubled BOS"):
        execute(place, right, backend)
    lines = (place / "test.jsonl").read_text().replace("is", "is\\n\\n")
    (place / "test.jsonl").write_text(lines)
    with pytest.raises(EvalkitError, match=r"the stop '\\n\\n' of gradeschool"):
        execute(place, right, backend)
    assert backend.asked == [] and not (place / "runs").exists()


def test_c10_a_run_whose_first_answers_are_all_empty_is_given_up(place: Path) -> None:
    backend = Scripted(lambda request: "")
    with pytest.raises(EvalkitError, match=f"the first {SILENT} answers are all empty"):
        execute(place, right, backend)
    assert len(backend.asked) == SILENT
    made = execute(place, lambda r: right(r) if r.id == "3" else "", fresh=True)
    assert made.complete, "one text among the first is enough to go on"


# --- the gate


def sample(i: int, text: str, **more: Any) -> Sample:
    views = {STRICT: strict_view(text, "18"), FLEXIBLE: flexible_view(text, "18")}
    known: dict[str, Any] = {
        "doc_id": i, "doc_hash": f"{i:064d}"[::-1], "prompt_hash": f"{i:064d}", "question": "q", "gold": "18",
        "text": text, "finish_reason": "stop", "tokens": len(text.split()),
        "scores": {n: float(v.correct) for n, v in views.items()},
    }  # fmt: skip
    made = Sample(**(known | more))
    return dataclasses.replace(made, canonical=None if made.error else score_sample(made))


def verdict(texts: list[str], spec: GateSpec | None = None, **more: Any) -> Verdict:
    samples = tuple(sample(i, text, **more) for i, text in enumerate(texts))
    cell = {"target": "t", "draft": "none", "task": "gsm8k", "k": 0, "quant": "fp8"}
    run = Run(id="r", complete=True, cell=cell, fingerprint={}, provenance={}, samples=samples, expected=len(samples),
              task_size=len(samples))  # fmt: skip
    return judge(run, baseline=None, golden=None, spec=spec)


def named(found: Verdict, name: str) -> Check:
    return next(c for c in found.checks if c.name == name)


GOOD = "3 * 6 = 18\n#### 18"


def test_sound_answers_pass_every_check() -> None:
    found = verdict([GOOD] * 400)
    for name in ("stop cut", "empty answers", "reasoning only", "degenerate answers", "format", "protocol"):
        assert named(found, name).outcome is Outcome.PASS
    assert not [n for n in found.notes if "canonical" in n]


@pytest.mark.parametrize(
    ("text", "more", "name", "allowed", "outcome", "words"),
    [
        ("1. Identify the ", {"stop_hit": "Question"}, "stop cut", 2, Outcome.INCONCLUSIVE, "'Question' 3 times fired"),
        ("", {"tokens": 0}, "empty answers", 0, Outcome.FAIL, "NaN logits"),
        ("<think>hm 18", {"finish_reason": "length"}, "reasoning only", 4, Outcome.INCONCLUSIVE, "raise --max-tokens"),
        ("<think>hm</think>", {}, "reasoning only", 4, Outcome.INCONCLUSIVE, "5 of 400 answers are thinking only"),
        ("So 8191" + " 8191" * 99, {}, "degenerate answers", 4, Outcome.FAIL, "single token 5 .documents 0, 1"),
    ],
    ids=["c08", "c77", "c11", "c15", "c78"],
)
def test_the_gate_names_what_is_not_wrong(
    text: str, more: dict[str, Any], name: str, allowed: int, outcome: Outcome, words: str
) -> None:
    good = [sample(i, GOOD) for i in range(400)]

    def check(n: int) -> Check:
        samples = tuple([*(sample(i, text, **more) for i in range(n)), *good[n:]])
        run = Run(id="r", complete=True, cell={"k": 0}, fingerprint={}, provenance={}, samples=samples, expected=400,
                  task_size=400)  # fmt: skip
        return named(judge(run, baseline=None, golden=None), name)

    assert check(allowed).outcome is Outcome.PASS
    found = check(allowed + 1)
    assert found.outcome is outcome
    assert re.search(words, found.message), found.message


def test_c06_a_strict_of_zero_beside_a_good_flexible_is_refused() -> None:
    found = verdict(["So it is 18 ."] * 1319)
    assert found.outcome is Outcome.FAIL and named(found, "protocol").outcome is Outcome.FAIL
    assert named(found, "format").numbers["reasons"] == {"marker missing": 1319}


def test_c05_a_loss_of_form_is_format_drift_and_no_accuracy_loss() -> None:
    samples = [sample(i, "**Answer: \\$18 per day.**" if i < 100 else GOOD) for i in range(400)]
    loss = Check(name="accuracy", outcome=Outcome.FAIL, expected="", found="", message="0.75 against 1.0",
                 numbers={"difference": -0.25})  # fmt: skip
    (check,), accuracy = format_check(samples, AnswerLimits(), loss)
    assert check.outcome is Outcome.INCONCLUSIVE and "format drift, marker missing 100" in check.message
    assert accuracy.outcome is Outcome.INCONCLUSIVE and "not shown to be an accuracy loss" in accuracy.message
    held = dataclasses.replace(loss, outcome=Outcome.PASS)
    (check,), accuracy = format_check(samples, AnswerLimits(), held)
    assert check.outcome is Outcome.PASS and accuracy is held
    wrong = [sample(i, "#### 7" if i < 100 else GOOD) for i in range(400)]
    (check,), accuracy = format_check(wrong, AnswerLimits(), loss)
    assert check.outcome is Outcome.PASS and accuracy is loss, "a real loss stays one"


def test_a_strict_match_that_flatters_is_no_pass() -> None:
    """Answers that are wrong by any careful reading, scored as right: the pass of such scores is none."""
    right = {"strict-match": 1.0, "flexible-extract": 1.0}
    samples = [sample(i, GOOD) for i in range(300)]
    samples += [dataclasses.replace(sample(i, "#### 7"), scores=right) for i in range(300, 400)]
    held = Check(name="accuracy", outcome=Outcome.PASS, expected="", found="", message="", numbers={"difference": 0.0})
    (check,), _ = format_check(samples, AnswerLimits(), held)
    assert check.outcome is Outcome.INCONCLUSIVE


def test_c84_unanswered_requests_leave_the_verdict_open() -> None:
    samples = [sample(i, GOOD) for i in range(380)]
    samples += [sample(i, "", scores={}, error="lost") for i in range(380, 400)]
    run = Run(id="r", complete=True, cell={"k": 0}, fingerprint={}, provenance={}, samples=tuple(samples),
              expected=400, task_size=400)  # fmt: skip
    found = judge(run, baseline=None, golden=None, spec=GateSpec(max_failed=0.1))
    check = named(found, "unanswered")
    assert check.outcome is Outcome.INCONCLUSIVE and (check.numbers["worst"], check.numbers["best"]) == (0.95, 1.0)
    assert [b for b, n in tables.bucket_counts(samples).items() if n] == [Bucket.ANSWERED, Bucket.FAILED]


def test_a_run_stored_before_canonical_scores_is_judged_and_told() -> None:
    old = tuple(dataclasses.replace(sample(i, GOOD), canonical=None) for i in range(400))
    run = Run(id="r", complete=True, cell={"k": 0}, fingerprint={}, provenance={}, samples=old, expected=400,
              task_size=400)  # fmt: skip
    found = judge(run, baseline=None, golden=None)
    assert "400 of 400 answers were stored without a canonical score" in found.notes[-1]
    assert not {"stop cut", "format"} & {c.name for c in found.checks}

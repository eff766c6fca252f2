"""The gradeschool generator and the data committed from it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.gradeschool import figures, generator
from tasks.gradeschool.drawing import TEMPLATES
from tasks.gradeschool.problem import Problem

FOLDER = Path(generator.__file__).parent
Splits = dict[str, list[Problem]]


def read(split: str) -> list[dict[str, Any]]:
    lines = (FOLDER / "data" / f"{split}.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line) for line in lines]


def as_problem(row: dict[str, Any]) -> Problem:
    value = int(row["answer"].rpartition("#### ")[2].replace(",", ""))
    return Problem(row["question"], row["answer"], value, row["template"], row["steps"])


@pytest.fixture(scope="module")
def committed() -> Splits:
    return {split: [as_problem(row) for row in read(split)] for split in ("train", "test")}


@pytest.fixture(scope="module")
def made() -> Splits:
    return generator.make_splits()


@pytest.fixture(scope="module")
def sample() -> list[Problem]:
    return list(islice(generator.stream(7), 6000))


@pytest.fixture
def example() -> Problem:
    lines = ("The cards cost 4 * 300 = $1,200.", "That leaves 1,000 - 1,200 = -200 dollars.")
    return Problem("How much is left?", "\n".join((*lines, "#### -200")), -200, "example", 2)


def test_counts_and_templates(committed: Splits) -> None:
    assert {split: len(problems) for split, problems in committed.items()} == {
        "train": 2000,
        "test": 1319,
    }
    assert len(TEMPLATES) >= 40
    for problems in committed.values():
        assert {p.template for p in problems} == set(TEMPLATES)
        assert {p.steps for p in problems} == {1, 2, 3, 4, 5}
    for split in committed:
        ids = [row["id"] for row in read(split)]
        assert ids == [f"{split}-{i:04d}" for i in range(len(ids))]


def test_no_question_twice_and_splits_disjoint(committed: Splits) -> None:
    hashes = [generator.question_hash(p.question) for c in committed.values() for p in c]
    assert len(set(hashes)) == len(hashes) == 3319
    assert generator.test_hashes() == {generator.question_hash(p.question) for p in committed["test"]}


def test_question_hash_ignores_case_and_spacing() -> None:
    assert generator.question_hash("How  many\nare LEFT? ") == generator.question_hash("how many are left?")
    assert generator.question_hash("How many is 3?") != generator.question_hash("How many is 4?")


def test_committed_files_are_what_the_generator_makes(made: Splits) -> None:
    for split, problems in made.items():
        text = (FOLDER / "data" / f"{split}.jsonl").read_text(encoding="ascii")
        assert text == generator.to_jsonl(split, problems), "run the generator with --write"


def test_readme_figures_are_current(made: Splits) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert readme == figures.insert(readme, figures.render(made)), "run the generator with --write"


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs this pair of lines"):
        figures.insert("# no markers", "block")


def test_every_committed_row_is_recomputed(committed: Splits) -> None:
    for problems in committed.values():
        for problem in problems:
            generator.check(problem)


def test_every_template_checks_and_varies(sample: list[Problem]) -> None:
    for problem in sample:
        generator.check(problem)
        assert (problem.question + problem.answer).isascii()
        assert "\n" not in problem.question
        assert -99 <= problem.value <= 9999
    drawn = Counter(p.template for p in sample)
    distinct = Counter(p.template for p in {p.question: p for p in sample}.values())
    assert set(drawn) == set(TEMPLATES)
    for name, count in drawn.items():
        assert distinct[name] >= 0.9 * count, name


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("4 * 300", "5 * 300", r"5 \* 300 is 1500", id="operand"),
        pytest.param("$1,200", "$1,201", r"is 1200, not \$1,201", id="result"),
        pytest.param("1,000 - 1,200", "1,000 + 1,200", r"is 2200", id="operator"),
        pytest.param("#### -200", "#### 200", "last line", id="sign"),
        pytest.param("#### -200", "#### -200.", "last line", id="not a number"),
        pytest.param("= -200 dollars", "dollars", "not exactly one statement", id="no statement"),
        pytest.param("\nThat", "\n5 + 5 = 10\nThat", "steps says 2", id="line too many"),
        pytest.param("1,000 - 1,200 = -200", "1,000 - 900 = 100", "lines end in 100", id="end"),
    ],
)
def test_check_fails_on_a_tampered_answer(example: Problem, old: str, new: str, message: str) -> None:
    generator.check(example)
    assert old in example.answer
    with pytest.raises(ValueError, match=message):
        generator.check(replace(example, answer=example.answer.replace(old, new)))


def test_check_fails_on_any_committed_row_with_another_number(committed: Splits) -> None:
    for problem in committed["test"]:
        with pytest.raises(ValueError, match="last line"):
            generator.check(replace(problem, value=problem.value + 1))
        wrong = re.sub(r"= (-?\$?)\d", r"= \g<1>77", problem.answer, count=1)
        with pytest.raises(ValueError, match="not "):
            generator.check(replace(problem, answer=wrong))


def test_check_reads_per_cent() -> None:
    problem = Problem("?", "That is 25% * 60 = 15.\n#### 15", 15, "example", 1)
    generator.check(problem)
    assert problem.answer_text == "15"


def test_stream_depends_on_the_seed_alone(sample: list[Problem]) -> None:
    assert list(islice(generator.stream(7), 300)) == sample[:300]
    assert list(islice(generator.stream(8), 300)) != sample[:300]


def test_stream_skips_excluded_questions(sample: list[Problem]) -> None:
    gone = frozenset(generator.question_hash(p.question) for p in sample[:100:2])
    kept = [p for p in sample[:100] if generator.question_hash(p.question) not in gone]
    assert kept
    assert list(islice(generator.stream(7, gone), len(kept))) == kept


def test_shares_of_negative_and_four_digit_answers(committed: Splits, sample: list[Problem]) -> None:
    for problems in (*committed.values(), sample):
        assert 0.04 <= figures.share(p.value < 0 for p in problems) <= 0.06
        assert 0.08 <= figures.share(p.value > 999 for p in problems) <= 0.12
        for problem in problems:
            if problem.value > 999:
                assert "," in problem.answer_text


def test_strict_match_reads_every_gold_answer(committed: Splits) -> None:
    config = yaml.safe_load((FOLDER / "task.yaml").read_text(encoding="utf-8"))
    patterns = {f["name"]: re.compile(f["filter"][0]["regex_pattern"]) for f in config["filter_list"]}
    for problem in (p for problems in committed.values() for p in problems):
        assert patterns["strict-match"].findall(problem.answer) == [problem.answer_text]
        last = patterns["flexible-extract"].findall(problem.answer)[-1]
        assert [group for group in last if group] == [problem.answer_text]


def test_task_yaml_points_at_the_committed_files() -> None:
    config = yaml.safe_load((FOLDER / "task.yaml").read_text(encoding="utf-8"))
    files = config["dataset_kwargs"]["data_files"]
    # from the repository's root, where `lm_eval --include_path tasks` is started
    assert files == {s: f"tasks/gradeschool/data/{s}.jsonl" for s in ("train", "test")}
    assert all((FOLDER.parent.parent / file).is_file() for file in files.values())
    assert config["task"] == "gradeschool"
    assert config["doc_to_text"] == "Question: {{question}}\nAnswer:"
    assert config["generation_kwargs"] == {
        "until": ["\n\n", "Question:"],
        "do_sample": False,
        "temperature": 0.0,
        "max_gen_toks": 128,
    }

"""Our task files against what lm-eval 0.4.13 and InferenceX say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit.config import Cell
from evalkit.harness import load_task
from evalkit.preflight import check_documents

TASKS = Path(__file__).parents[2] / "tasks"
INFERENCEX = TASKS.parents[1] / "shared" / "data" / "inferencex" / "gsm8k.yaml"

DOCUMENTS = "fd07ecf5d6fb3d99c64e31871d02bc4e6b7246264f62a2b07989cd6562ef960a"  # of the public test.jsonl, 1319 rows
PUBLIC = TASKS.parents[1] / "shared" / "data" / "gsm8k" / "test.jsonl"
STRICT = r"#### (\-?[0-9\.\,]+)"
FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def filters(strict_group: dict[str, int]) -> list[dict[str, Any]]:
    def regex(name: str, pattern: str, group: dict[str, int]) -> dict[str, Any]:
        first = {"function": "regex", "regex_pattern": pattern, **group}
        return {"name": name, "filter": [first, {"function": "take_first"}]}

    return [
        regex("strict-match", STRICT, strict_group),
        regex("flexible-extract", FLEXIBLE, {"group_select": -1}),
    ]


#: lm-eval 0.4.13, lm_eval/tasks/gsm8k/gsm8k.yaml, version 3
GSM8K: dict[str, Any] = {
    "tag": ["math_word_problems"],
    "task": "gsm8k",
    "dataset_path": "openai/gsm8k",
    "dataset_name": "main",
    "output_type": "generate_until",
    "training_split": "train",
    "fewshot_split": "train",
    "test_split": "test",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "ignore_punctuation": False,
            "regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"],
        }
    ],
    "generation_kwargs": {
        "until": ["Question:", "</s>", "<|im_end|>"],
        "do_sample": False,
        "temperature": 0.0,
    },
    "repeats": 1,
    "num_fewshot": 5,
    "filter_list": filters({}),
    "metadata": {"version": 3.0, "documents_sha256": DOCUMENTS},
}


@pytest.mark.skipif(not PUBLIC.is_file(), reason=f"no copy of GSM8K's test.jsonl at {PUBLIC}")
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_inferencex"])
def test_the_pin_is_of_the_public_questions_and_one_row_less_is_told(name: str, tmp_path: Path) -> None:
    task = load_task(Cell.make(task=name, data=PUBLIC))
    assert task.documents == {"sha256": DOCUMENTS, "pinned": DOCUMENTS} and task.size == 1319
    for split in ("test", "train"):
        rows = PUBLIC.with_name(f"{split}.jsonl").read_text("utf-8").splitlines(keepends=True)
        (tmp_path / f"{split}.jsonl").write_text("".join(rows[: len(rows) - (split == "test")]), "utf-8")
    part = load_task(Cell.make(task=name, data=tmp_path / "test.jsonl"))
    assert "its 1318 documents have the sha256" in check_documents(part)[0] and not check_documents(task)


def test_gsm8k_says_what_lm_eval_says() -> None:
    assert load(TASKS / "gsm8k" / "task.yaml") == GSM8K


def test_inferencex_differs_from_gsm8k_where_it_should() -> None:
    ours = load(TASKS / "gsm8k" / "inferencex.yaml")
    changed = {key for key in GSM8K.keys() | ours.keys() if ours.get(key) != GSM8K.get(key)}
    assert changed == {"task", "doc_to_text", "generation_kwargs", "filter_list"}
    assert ours["task"] == "gsm8k_inferencex"
    assert ours["generation_kwargs"]["until"] == ["</s>", "<|im_end|>"]
    assert ours["filter_list"] == filters({"group_select": -1})


@pytest.mark.skipif(not INFERENCEX.is_file(), reason=f"no copy of InferenceX's gsm8k.yaml at {INFERENCEX}")
def test_inferencex_equals_the_original_but_for_its_name() -> None:
    original = load(INFERENCEX)
    assert load(TASKS / "gsm8k" / "inferencex.yaml") == {
        **original,
        "task": "gsm8k_inferencex",
        "metadata": {**original["metadata"], "documents_sha256": DOCUMENTS},
    }


def test_gradeschool_scores_as_gsm8k_does() -> None:
    ours = load(TASKS / "gradeschool" / "task.yaml")
    for key in ("filter_list", "metric_list", "doc_to_text", "doc_to_target", "output_type"):
        assert ours[key] == GSM8K[key], key
    assert ours["num_fewshot"] == 0
    assert ours["metadata"]["version"] == 1.0

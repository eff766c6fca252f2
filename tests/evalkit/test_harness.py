"""Tasks, prompts and scores through lm-eval, without a model."""

import json
import socket
import threading
import time
from pathlib import Path

import datasets
import pytest
import yaml
from datasets import config as datasets_config
from huggingface_hub import constants
from lm_eval.api.task import ConfigurableTask

from evalkit import harness
from evalkit.config import ROOT, Cell, resolve_task
from evalkit.errors import EvalkitError
from evalkit.harness import hub
from evalkit.harness import load as load_module
from evalkit.preflight import check_documents

FIELDS = ("answer", "question")


def row(i):
    return {"question": f"What is {i} + 1?", "answer": f"{i} + 1 = {i + 1}.\n#### {i + 1}"}


@pytest.fixture
def data(tmp_path):
    """test.jsonl with 12 questions and train.jsonl with 9 others."""
    for name, numbers in (("test", range(12)), ("train", range(100, 109))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in numbers))
    return tmp_path / "test.jsonl"


def load(data=None, **words):
    return harness.load_task(Cell.make(draft="none", data=data, **words))


def test_a_task_is_read_from_its_own_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # relative data files are the YAML's, not the working directory's
    task = load(limit=5, seed=3)
    assert (task.name, task.size, len(task.prompts), task.shots) == ("gradeschool", 1319, 5, 0)
    assert task.stop == ("\n\n", "Question:") and task.max_tokens == 128
    assert list(task.files) == ["test"] and Path(task.files["test"]["path"]).is_absolute()
    assert all(p.text == f"Question: {p.question}\nAnswer:" for p in task.prompts)


def test_data_replaces_the_test_split_and_brings_its_shots(data):
    task = load(data, task="gsm8k")
    assert (task.size, task.shots, task.max_tokens) == (12, 5, 256)
    first = task.prompts[0]
    assert first.text.endswith("\n\nQuestion: What is 0 + 1?\nAnswer:") and first.text.count("Question:") == 6
    assert first.text.count("What is 10") == 5  # the shots are from train.jsonl
    assert set(task.files) == {"test", "train"}


def test_data_that_a_task_pins_are_refused_when_they_changed_and_told_when_they_are_others(data, tmp_path):
    own = load()
    assert own.documents["sha256"] == own.documents["pinned"] and not own.notes
    config = yaml.safe_load(resolve_task("gradeschool").read_text())
    shipped = tmp_path / "shipped.jsonl"
    config["dataset_kwargs"]["data_files"] = {"train": str(shipped), "test": str(shipped)}
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(config))
    lines = (ROOT / "tasks" / "gradeschool" / "data" / "test.jsonl").read_text().splitlines(keepends=True)
    shipped.write_text("".join(lines))
    assert load(task=str(path)).documents == own.documents
    shipped.write_text("".join(lines[:-1]))
    with pytest.raises(EvalkitError, match=r"data of gradeschool were changed: its 1318 documents .*restore"):
        load(task=str(path))
    (note,) = check_documents(load(data))
    assert "not the published ones of gradeschool (its 12 documents" in note
    assert check_documents(own) == []
    del config["metadata"]
    path.write_text(yaml.safe_dump(config))
    assert check_documents(load(task=str(path))) == []


def test_prompts_and_hashes_are_lm_evals(data):
    """The same task, built by lm-eval alone, asks the same."""
    ours = load(data, task="gsm8k")
    config = yaml.safe_load(resolve_task("gsm8k").read_text())
    files = {"test": str(data), "train": str(data.parent / "train.jsonl")}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    del config["tag"]
    config["dataset_kwargs"]["cache_dir"] = str(data.parent / "cache")
    theirs = ConfigurableTask(config=config)
    theirs.set_fewshot_seed(1234)
    theirs.build_all_requests()
    assert [harness.arguments(i)[0] for i in theirs.instances] == [p.text for p in ours.prompts]
    assert harness.arguments(theirs.instances[0])[1]["until"] == list(ours.stop)


def test_a_subset_has_the_prompts_of_the_full_run(data):
    full, some = load(data, task="gsm8k"), load(data, task="gsm8k", limit=4, seed=1)
    assert set(some.prompts) <= set(full.prompts) and len(some.prompts) == 4
    assert (some.size, some.task_sha, some.prompts_sha) == (12, full.task_sha, full.prompts_sha)


def test_a_subset_is_a_seeded_draw():
    draws = [harness.subset(1319, 100, seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2] and draws[0] == sorted(set(draws[0]))
    assert draws[0] != list(range(100)) and max(draws[0]) > 1000
    assert harness.subset(5, 0, 0) == harness.subset(5, 9, 0) == [0, 1, 2, 3, 4]


def test_what_changes_the_task_changes_its_hash(data):
    before = load(data, task="gsm8k").task_sha
    assert load(data, task="gsm8k", shots=2).task_sha != before
    assert load(data, task="gsm8k_inferencex").task_sha != before
    data.write_text(data.read_text().replace("#### 3", "#### 4"))  # the answer only
    assert load(data, task="gsm8k").task_sha != before


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" so 4.\n#### 4", 1, 1),
        (" #### 4. And #### 5", 1, 0),
        (" it is 4", 0, 1),
        ("", 0, 0),
        (" #### 1,000 and 4", 0, 1),
    ],
)
def test_score_reads_a_text_as_the_filters_do(data, text, strict, flexible):
    found = load(data, shots=0, task="gsm8k").score(3, text)
    assert found.scores == {"strict-match": strict, "flexible-extract": flexible}
    assert set(found.extracted) == {"strict-match", "flexible-extract"}


def test_evaluate_goes_through_lm_eval_and_agrees_with_score(data):
    task = load(data, task="gsm8k", limit=7, seed=2)
    texts = [p.gold if p.doc_id % 2 else f" perhaps {p.doc_id}" for p in task.prompts]
    official = task.evaluate(lambda prompts: texts)
    assert official == {p.doc_id: task.score(p.doc_id, t) for p, t in zip(task.prompts, texts, strict=True)}
    assert {s.scores["strict-match"] for s in official.values()} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "x", "answer": ', "is not JSON"),
        ('["question"]', "holds a list"),
        ('{"question": "x"}', "has no 'answer'"),
        ('{"question": " ", "answer": "1"}', "has an empty 'question'"),
        ('{"question": "x", "answer": 1}', "has a int for 'answer'"),
        ('{"question": "x", "answer": NaN}', "is not JSON"),
        ('{"question": "x", "answer": null}', "has no 'answer'"),
        (b'{"question": "\xff", "answer": "1"}', "is not JSON"),
        (
            b'{"question": "\\ud83d", "answer": "1"}',
            "holds half a character .*; fix: mend or remove",
        ),
        (b'{"question": "x", "answer": ' + b"[" * 100_000, "is not JSON .nested too deep."),
    ],
)
def test_a_malformed_line_is_named(data, line, words):
    lines = data.read_bytes().splitlines()
    lines[4:4] = [b"", line if isinstance(line, bytes) else line.encode()]
    data.write_bytes(b"\n".join(lines))
    with pytest.raises(EvalkitError, match=f"test.jsonl, line 6 {words}"):
        load(data)


def test_blank_lines_and_windows_ends_are_fine(data):
    data.write_bytes(data.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert load(data).size == 12


def test_empty_and_missing_data_are_errors(data):
    (data.parent / "train.jsonl").unlink()
    with pytest.raises(EvalkitError, match=r"train.jsonl does not exist .5 shots are taken from it"):
        load(data, task="gsm8k")
    assert load(data, task="gsm8k", shots=0).shots == 0
    data.write_text("\n")
    with pytest.raises(EvalkitError, match="has no lines"):
        load(data)
    with pytest.raises(EvalkitError, match="does not exist"):
        load(data.parent / "other.jsonl")


def test_a_folder_in_place_of_data_is_named_as_one(data, tmp_path):
    with pytest.raises(EvalkitError, match=r"is a folder, expected a JSONL file; fix: give .*/test\.jsonl"):
        load(data.parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvalkitError, match="is a folder, expected a JSONL file; fix: give a file in it"):
        load(tmp_path / "empty")


def test_more_shots_than_examples_is_an_error(data):
    with pytest.raises(EvalkitError, match="has 9 examples for 9 shots"):
        load(data, task="gsm8k", shots=9)


def test_an_unreachable_hub_is_an_error(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(EvalkitError, match=r"could not be fetched.*--data FILE.jsonl"):
        load(task="gsm8k")


@pytest.fixture
def silent():
    """The address of a host that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_hub_costs_seconds(monkeypatch, silent):
    for module in (constants, datasets_config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    monkeypatch.setattr(hub, "WAIT", 0.2)
    tried = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: tried.append(constants.HF_HUB_OFFLINE) or 1 / 0)
    monkeypatch.setattr(load_module, "REFUSALS", (ZeroDivisionError,))
    started = time.monotonic()
    with pytest.raises(EvalkitError, match=r"hub does not answer, or is switched off\); fix: give them with --data"):
        load(task="gsm8k")
    assert time.monotonic() - started < 5 and tried == [True], "in offline mode: what is cached is still found"
    assert not constants.HF_HUB_OFFLINE and not datasets_config.HF_HUB_OFFLINE, "for the time of the load only"


def test_what_counts_as_an_answer_of_the_hub(silent):
    assert not hub.reachable(silent, wait=0.2) and not hub.reachable("http://127.0.0.1:1", wait=0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert hub.reachable(f"http://127.0.0.1:{server.getsockname()[1]}", wait=5)
        thread.join()


def test_a_hub_that_is_switched_off_is_not_asked(monkeypatch):
    monkeypatch.setattr(hub, "reachable", lambda: 1 / 0)
    with hub.offline_where_unreachable() as offline:  # conftest.py switches it off
        assert offline


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "cannot be read"),
        ("dataset_path: json", "no `task:`"),
        ("task: t\noutput_type: multiple_choice", "multiple_choice"),
        ("task: t\nrepeats: 3", "3 repeats"),
        ("task: t\ndoc_to_text: !function x.y", "cannot be read"),
    ],
)
def test_a_task_that_cannot_run_is_an_error(tmp_path, text, words):
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(EvalkitError, match=words):
        load(task=str(path))


def test_a_task_of_the_users_own(tmp_path, data):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "task: mine\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: test.jsonl\ntest_split: test\n"
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
        "generation_kwargs:\n  until: stop\nmetric_list:\n  - metric: exact_match\n    aggregation: mean\n"
        "    higher_is_better: true\n"
    )
    task = load(task=str(path))
    assert (task.name, task.size, task.stop, task.max_tokens) == ("mine", 12, ("stop",), 256)
    assert task.score(0, row(0)["answer"]).scores == {"none": 1.0}

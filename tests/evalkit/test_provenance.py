"""Fingerprints and hashes: equal where runs are comparable, different where they are not."""

import subprocess

import pytest

from evalkit import provenance
from evalkit.config import Cell

TASK = {"task": "t", "task_sha": "x", "shots": 0}
SETTINGS = {"device": "cpu", "dtype": "float32"}


@pytest.fixture
def checkpoints(tmp_path):
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(name.encode())
    return tmp_path


def _print(folder, ids=range(3), settings=SETTINGS, **words):
    cell = Cell.make(model=str(folder / "target"), draft=str(folder / "draft"), **words)
    return provenance.fingerprint(cell, settings=settings, task=TASK, doc_ids=list(ids))


def test_the_gpu_s_driver_is_told_where_there_is_one(tmp_path):
    nvidia, amd = tmp_path / "nvidia" / "version", tmp_path / "amdgpu" / "version"
    assert provenance.gpu_driver((nvidia, amd)) == ""
    for file, text in ((amd, "6.12.12\n"), (nvidia, "NVRM version: X  Kernel Module  580.65.06\nGCC version:\n")):
        file.parent.mkdir()
        file.write_text(text)
    assert provenance.gpu_driver((nvidia, amd)) == "nvidia NVRM version: X Kernel Module 580.65.06"
    assert provenance.gpu_driver((amd,)) == "amdgpu 6.12.12"
    nvidia.write_text("")
    assert provenance.gpu_driver((nvidia, amd)) == "amdgpu 6.12.12"


def test_equal_cells_have_equal_fingerprints(checkpoints):
    assert _print(checkpoints) == _print(checkpoints)


def test_two_spellings_of_a_quant_mode_are_one_setting(checkpoints):
    one, two = (_print(checkpoints, quant=words) for words in ("kv=nvfp4 w=ptpc_fp8", "w=ptpc_fp8 act=fp8 kv=nvfp4"))
    assert one == two and one["hash"] != _print(checkpoints, quant="nvfp4")["hash"]


FP8 = '{"global_quant_config": "ptpc_fp8"}'


@pytest.mark.parametrize("words", [{"batch": 3}, {"threads": 2}, {"prefix_cache": False}, {"online_quant_config": "{}"},
                                   {"online_quant_config": '{"exclude_layer": ["lm_head"]}'}])  # fmt: skip
def test_what_must_not_change_a_sample_is_left_out(checkpoints, words):
    assert _print(checkpoints, **words)["hash"] == _print(checkpoints)["hash"]


@pytest.mark.parametrize(
    "words", [{"k": 3}, {"quant": "fp8"}, {"quant": "ptpc-fp8"}, {"online_quant_config": FP8},
              {"seed": 1}, {"temperature": 1.0}, {"draft_width": "block"}, {"tp": 2},
              {"verify": "block"}, {"forced_length": 1.5}, {"confidence_threshold": 0.5}, {"verify_rows": 64},
              {"ids": [0, 1]}, {"settings": {"device": "cuda", "dtype": "bf16"}}],
)  # fmt: skip
def test_what_changes_a_sample_changes_the_hash(checkpoints, words):
    assert _print(checkpoints, **words)["hash"] != _print(checkpoints)["hash"]


@pytest.mark.parametrize("words", [{"top_p": 0.9}, {"top_k": 5}])
def test_what_is_drawn_from_changes_the_hash(checkpoints, words):
    warm = _print(checkpoints, temperature=1.0)["hash"]
    assert _print(checkpoints, temperature=1.0, **words)["hash"] != warm


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("target/model.safetensors", "target_sha"),
        ("target/config.json", "target_sha"),
        ("draft/model.safetensors", "draft_sha"),
        ("target/tokenizer.json", "tokenizer_sha"),
    ],
)
def test_changed_files_are_seen(checkpoints, file, key):
    before = _print(checkpoints)
    (checkpoints / file).write_text("other")
    after = _print(checkpoints)
    assert before[key] != after[key] and before["hash"] != after["hash"]


def test_git_state(tmp_path):
    assert provenance.git_state(tmp_path) == {"commit": "", "dirty": None}

    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True)

    (tmp_path / "f").write_text("1")
    for words in (("init", "-q"), ("add", "f"), ("commit", "-qm", "x")):
        git(*words)
    state = provenance.git_state(tmp_path)
    assert len(state["commit"]) == 40 and state["dirty"] is False
    (tmp_path / "f").write_text("2")
    assert provenance.git_state(tmp_path)["dirty"] is True


def test_git_absent_is_fine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(tmp_path) == {"commit": "", "dirty": None}


def test_collect_names_versions_and_machine(checkpoints):
    cell = Cell.make(model=str(checkpoints / "target"), draft=str(checkpoints / "draft"), threads=1)
    found = provenance.collect(cell, settings=SETTINGS, files={})
    assert found["versions"]["lm-eval"] and found["versions"]["python"] and found["threads"] == 1
    assert found["cpu"] and len(found["code"]) == 64 and found["started"].endswith("+00:00")


def test_the_file_of_a_task_of_one_s_own_is_recorded(checkpoints, tmp_path):
    def told(task):
        cell = Cell.make(model=str(checkpoints / "target"), draft=str(checkpoints / "draft"), task=task)
        return provenance.collect(cell, settings=SETTINGS, files={}).get("task_path")

    (tmp_path / "mine.yaml").write_text("task: mine\n")
    assert told(str(tmp_path / "mine.yaml")) == str(tmp_path / "mine.yaml") and told("gradeschool") is None

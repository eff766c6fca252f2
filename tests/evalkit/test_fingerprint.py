"""Which facts make two runs comparable, and which change a configuration."""

import pytest

from evalkit.fingerprint import BEFORE, acceptance_fingerprint, accuracy_fingerprint, config_fingerprint, in_words, make
from evalkit.records import Run

TOLD = {
    "target_sha": "a" * 64, "tokenizer_sha": "b" * 64, "task": "t", "task_sha": "c" * 64, "prompts_sha": "d" * 64,
    "shots": 5, "stop": ["\n\n"], "max_tokens": 128, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "k": 7,
    "draft_method": "dspark", "draft_sha": "e" * 64, "draft_width": "k", "quant": "fp8", "dtype": "float32",
    "device": "cpu", "seed": 0, "hash": "x",
}  # fmt: skip
CELL = {
    "max_batch": 64, "max_batched_tokens": 2048, "max_model_len": 0, "page_size": 16, "prefix_cache": True,
    "threads": 2, "target": "m",
}  # fmt: skip
MADE = {"code": "f" * 64, "versions": {"torch": "2", "triton": "3"}, "image": "img:1"}


def _run(**changes):
    told, cell, made = dict(TOLD), dict(CELL), dict(MADE)
    for name, value in changes.items():
        (made if name in made or name == "flags" else cell if name in (*cell, *BEFORE) else told)[name] = value
    return {"fingerprint": told, "cell": cell, "provenance": made}


@pytest.mark.parametrize("name", ["task_sha", "prompts_sha", "shots", "stop", "max_tokens", "temperature", "top_p",
                                  "top_k", "target_sha", "tokenizer_sha", "endpoint", "template", "mode"])  # fmt: skip
@pytest.mark.parametrize("kind", [accuracy_fingerprint, acceptance_fingerprint])
def test_a_run_asked_otherwise_is_not_comparable(kind, name):
    one, other = kind(_run()), kind(_run(**{name: "other"}))
    assert [d.name for d in one.differences(other)] == [name]
    assert one.hash != other.hash


@pytest.mark.parametrize("name", ["k", "draft_sha", "draft_method", "draft_width"])
def test_what_is_judged_is_part_of_acceptance_only(name):
    one, other = _run(), _run(**{name: "other"})
    assert accuracy_fingerprint(one).hash == accuracy_fingerprint(other).hash
    assert [d.name for d in acceptance_fingerprint(one).differences(acceptance_fingerprint(other))] == [name]


@pytest.mark.parametrize("name", ["quant", "seed", "threads", "max_batch"])
def test_quant_mode_and_machine_do_not_forbid_a_comparison(name):
    assert acceptance_fingerprint(_run()).hash == acceptance_fingerprint(_run(**{name: "other"})).hash


@pytest.mark.parametrize("name", ["k", "quant", "draft_sha", "draft_method", "draft_width", "target_sha", "dtype",
                                  "device", "image", "code", "flags", "max_batch", "prefix_cache", "page_size",
                                  "mono", "graphs", "kernels", "tp", "versions"])  # fmt: skip
def test_another_configuration_has_another_hash(name):
    changed = {"torch": "3"} if name in ("versions", "flags") else "other"
    assert config_fingerprint(_run()).hash != config_fingerprint(_run(**{name: changed})).hash


def test_a_run_of_before_there_were_paths_took_the_ordinary_one():
    assert (
        config_fingerprint(_run()).hash == config_fingerprint(_run(mono="off", graphs="off", kernels="auto", tp=1)).hash
    )


@pytest.mark.parametrize("name", ["task", "task_sha", "shots", "temperature", "seed", "max_tokens", "threads", "stop"])
def test_a_configuration_is_the_same_for_another_workload(name):
    assert config_fingerprint(_run()).hash == config_fingerprint(_run(**{name: "other"})).hash


def test_both_values_of_every_differing_field_are_said():
    found = accuracy_fingerprint(_run()).differences(accuracy_fingerprint(_run(shots=0, task_sha="9" * 64)))
    assert in_words(found) == "task_sha cccccccccccc / 999999999999, shots 5 / 0"


def test_what_is_not_recorded_is_never_equal():
    one = make({"a": None, "b": 1})
    assert in_words(one.differences(make({"b": 1}))) == "a not recorded / not recorded"
    assert not one.differences({"b": 1}, ["b"])


def test_a_number_is_equal_to_itself_however_written_and_a_bool_is_no_number():
    assert not make({"t": 0}).differences(make({"t": 0.0}))
    assert make({"t": 0}).differences(make({"t": False}))


def test_a_run_and_its_head_on_disk_have_one_fingerprint():
    head = _run()
    run = Run(id="r", complete=True, samples=(), expected=1, task_size=1, **head)  # pyright: ignore[reportArgumentType]
    assert config_fingerprint(run) == config_fingerprint(head)
    assert accuracy_fingerprint(run) == accuracy_fingerprint(head)

"""ATOM's accuracy catalogue: what is unsound is one line that names the entry, and an entry becomes a specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evalkit.ci.catalogue import SCHEMA_FILE, Entry, find_entry, problems, read_catalogue, remarks
from evalkit.ci.spec import spec_text, spec_values
from evalkit.cli import main
from evalkit.errors import EvalkitError
from evalkit.spec.read import read_spec


def row(**change: Any) -> dict[str, Any]:
    """An entry as ATOM writes them; None takes a field out."""
    values = {
        "model_name": "Big-R1 MTP", "model_path": "org/Big-R1", "runner": "mi355-8", "test_level": "pr",
        "extraArgs": "--kv_cache_dtype fp8 -tp 8 --method mtp --num-speculative-tokens 3",
        "env_vars": "ATOM_A=1\nATOM_B=x=y", "accuracy_threshold": 0.94, "accuracy_baseline": 0.9553,
        "accuracy_baseline_model": "org/Big-R1", "_baseline_note": "mean of 4 runs", "mtp_accept_threshold": 0.62,
    } | change  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def entry(tmp_path: Path, **change: Any) -> Entry:
    path = tmp_path / "models_accuracy.json"
    path.write_text(json.dumps([row(**change)]))
    return read_catalogue(path)[0]


def test_an_entry_is_read(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text()))
    found = entry(tmp_path)
    assert found.env == {"ATOM_A": "1", "ATOM_B": "x=y"} and found.level == "pr" and found.threshold == 0.94
    assert found.drafts and found.option("--num-speculative-tokens") == "3" and found.option("-tp") == "8"
    assert found.accept_threshold == 0.62 and found.shots is None and not found.chat
    other = entry(tmp_path, accuracy_threshold=None, accuracy_test_threshold=0.9, extraArgs=None,
                  extra_args="-tp=4 --x '{\"a b\": 1}'", lm_eval_num_fewshot=5, lm_eval_use_chat_completions="true",
                  accuracy_baseline=None, env_vars="", priority="P1",
                  client_command="lm_eval --model_args model=${MODEL_PATH} --output_path ${OUTPUT_PATH}")  # fmt: skip
    assert other.threshold == 0.9 and other.arguments == ("-tp=4", "--x", '{"a b": 1}') and other.option("-tp") == "4"
    assert other.shots == 5 and other.chat and other.baseline is None and other.env == {} and not other.drafts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accuracy_threshold": None}, "has no accuracy_threshold or accuracy_test_threshold"),
        ({"accuracy_test_threshold": 0.9}, "has both accuracy_threshold and accuracy_test_threshold"),
        ({"accuracy_threshold": 94}, "has accuracy_threshold 94, expected at most 1"),
        ({"accuracy_threshold": -0.1}, "has accuracy_threshold -0.1, expected at least 0"),
        ({"accuracy_threshold": "0.94"}, 'has accuracy_threshold "0.94", expected a number'),
        ({"accuracy_threshold": True}, "has accuracy_threshold true, expected a number"),
        ({"accuracy_baseline": "n/a"}, 'has accuracy_baseline "n/a", expected a number from 0 to 1, or null'),
        ({"test_level": "weekly"}, 'has test_level "weekly", expected one of pr, main, nightly'),
        ({"model_path": None, "runner": None}, "has no model_path, runner"),
        ({"runner": " "}, 'has runner " ", expected some text'),
        ({"accuracy_treshold": 0.9}, "has the unknown field 'accuracy_treshold'; did you mean accuracy_threshold?"),
        ({"env_vars": "A=1\nexport B"}, "has the env_vars line 'export B', expected K=V"),
        ({"env_vars": "A=1\nA=2"}, "sets a variable twice"),
        ({"extra_args": "-tp 4"}, "has both extraArgs and extra_args"),
        ({"extraArgs": "--x 'open"}, "has extraArgs that a shell could not read"),
        ({"client_command": "x ${HOME}"}, "has the placeholder ${HOME} in client_command"),
        ({"mtp_accept_threshold": 62}, "has mtp_accept_threshold 62, expected at most 1"),
        ({"lm_eval_use_chat_completions": True}, "has lm_eval_use_chat_completions true, expected one of 0, 1"),
    ],
)
def test_what_is_unsound_is_one_line_with_the_entry(tmp_path: Path, change: dict, said: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps([row(model_name="A"), row(**change)]))
    with pytest.raises(EvalkitError) as caught:
        read_catalogue(path)
    assert said in caught.value.what and "\n" not in caught.value.what
    assert caught.value.what.startswith("models.json: entry 2 (Big-R1 MTP)"), caught.value.what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected a list of at least one entry"),
        ("{}", "found {}, expected a list"),
        ("[1]", "entry 1 is 1, expected an object"),
        ("{", "is not JSON"),
        ('[{"accuracy_threshold": NaN}]', "accuracy_threshold is no finite number"),
        (json.dumps([row(), row()]), "'Big-R1 MTP' is there 2 times"),
        (json.dumps([row(runner=3), row(accuracy_threshold=9)]), "(and 1 more)"),
    ],
)
def test_what_is_no_catalogue(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(text)
    with pytest.raises(EvalkitError) as caught:
        read_catalogue(path)
    assert said in caught.value.what
    with pytest.raises(EvalkitError, match="cannot be read"):
        read_catalogue(tmp_path / "nothing.json")


def test_a_missing_entry_is_an_error_and_no_threshold_of_0(tmp_path: Path) -> None:
    found = [entry(tmp_path)]
    assert find_entry(found, "Big-R1 MTP") is found[0]
    with pytest.raises(EvalkitError, match=r"no entry 'Big-R1 MPT'.*did you mean Big-R1 MTP"):
        find_entry(found, "Big-R1 MPT")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"mtp_accept_threshold": None}, "a draft that does nothing would pass"),
        ({"accuracy_baseline_model": "org/Other"}, "the baseline of org/Other, another model"),
        ({"accuracy_threshold": 0.96}, "at or above its baseline"),
        (
            {"accuracy_threshold": 0.92},
            "under its baseline (n = 1319): it is blind to a loss of 3.5 pt",
        ),
        ({"accuracy_baseline": None}, "what a loss is measured from is unknown"),
    ],
)
def test_c34_c36_bars_that_cannot_fail_or_pass_or_are_of_another_model_are_remarked_on(
    tmp_path: Path, change: dict, said: str | None
) -> None:
    found = remarks(entry(tmp_path, **change))
    assert (found == []) if said is None else (len(found) == 1 and said in found[0])


def test_an_entry_becomes_a_specification(tmp_path: Path) -> None:
    found = entry(tmp_path, _baseline_note="two\nlines: {x}", env_vars="A=1\rfloor: 1\nB=2\u2028x: 1")
    text = spec_text(found, source="models_accuracy.json")
    values = yaml.safe_load(text)
    assert values == spec_values(found) == {
        "schema": 1, "name": "Big-R1 MTP", "floor": 94.0, "checks": ["floor", "length"],
        "cells": [{"name": "Big-R1 MTP", "run": "gsm8k*-Big-R1-*k3-*"}],
    }  # fmt: skip
    assert "accepted length of 2.86 at K=3" in text and "# Its note: two lines: {x}\n" in text
    plain = entry(tmp_path, extraArgs="-tp 8", mtp_accept_threshold=None)
    assert spec_values(plain)["checks"] == ["floor"]
    with pytest.raises(EvalkitError, match="no floor"):
        spec_values(entry(tmp_path, accuracy_threshold=0))


def test_the_specification_is_one_that_the_gate_reads(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(spec_text(entry(tmp_path)))
    (cell,) = read_spec(path).cells
    assert cell.limits.floor == 0.94 and cell.run == "gsm8k*-Big-R1-*k3-*" and set(cell.limits.demands) == {
        "floor", "length"
    }  # fmt: skip


def test_catalogue_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, out = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "spec.yaml"
    good.write_text(json.dumps([row(), row(model_name="Plain", extraArgs="-tp 8", accuracy_threshold=0.9)]))
    bad.write_text(json.dumps([row(accuracy_threshold=None)]))
    assert main(["catalogue", "check", str(good)]) == 0
    said = capsys.readouterr().out
    assert "good.json: 2 entries, 1 with a draft" in said and "Plain has a threshold 9." in said
    assert main(["catalogue", "check", str(bad), str(good)]) == 2
    out_, err = capsys.readouterr()
    assert "unsound: bad.json: entry 1 (Big-R1 MTP) has no" in out_ and "1 of 2 catalogues" in err
    assert main(["catalogue", "spec", str(good), "Plain", "--run", "r1", "-o", str(out)]) == 0
    assert yaml.safe_load(out.read_text())["cells"] == [{"name": "Plain", "run": "r1"}]
    assert main(["catalogue", "spec", str(good), "Plan"]) == 2 and "did you mean Plain" in capsys.readouterr().err
    assert problems([row()]) == []

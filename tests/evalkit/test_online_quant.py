"""Weights quantised after loading: one spelling, and every place that names or compares a setting knows of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from evalkit.baseline import load_baseline, record_baseline
from evalkit.config import Cell
from evalkit.console import run_table, runs_table
from evalkit.errors import EvalkitError
from evalkit.fingerprint import acceptance_fingerprint, accuracy_fingerprint, config_fingerprint
from evalkit.gate.length import _policies
from evalkit.gate.limits import GateSpec
from evalkit.golden import read_curve, record_curve
from evalkit.golden.defaults import Standards
from evalkit.online_quant import asked, canonical, words
from evalkit.records import Run
from evalkit.report.subject import subjects
from evalkit.report.tables import quant_mode
from evalkit.show import run_text
from evalkit.spec.find import _same_setting
from tests.evalkit.goldens import make_run

FP8 = '{"global_quant_config": "ptpc_fp8"}'
NOTHING = ["", "{}", " { } ", '{"exclude_layer": ["lm_head"]}', '{"global_quant_config": null}',
           '{"layer_quant_config": {}}']  # fmt: skip


def online(run: Run, config: str = FP8, layers: int | None = None) -> Run:
    info = {} if layers is None else {"online_quant_info": {"num_layers": layers}}
    cell = {**run.cell, "online_quant_config": config}
    return dataclasses.replace(run, cell=cell, provenance={**run.provenance, **info})


@pytest.mark.parametrize("config", NOTHING)
def test_a_configuration_that_can_quantise_nothing_is_none(config: str) -> None:
    assert canonical(config) == "" and Cell.make(online_quant_config=config).stem("t") == Cell.make().stem("t")


def test_a_setting_has_one_spelling_and_layers_keep_their_order() -> None:
    assert canonical('{ "global_quant_config":"PTPC_FP8","exclude_layer":"b" }') == canonical(
        {"exclude_layer": ["b", "b"], "global_quant_config": "ptpc_fp8"}
    )
    one, two = ({"layer_quant_config": dict(pairs)} for pairs in ((("*", "mxfp4"), ("a", "mxfp8")),
                                                                  (("a", "mxfp8"), ("*", "mxfp4"))))  # fmt: skip
    assert canonical(one) != canonical(two)  # the first that matches counts
    assert words(canonical(one)) != words(canonical(two))
    assert canonical("{no json") == "{no json" and words("{no json")  # never taken for nothing


@pytest.mark.parametrize("kind", [config_fingerprint, accuracy_fingerprint, acceptance_fingerprint])
def test_fingerprints_know_it_and_only_where_it_is_asked_for(kind) -> None:
    plain = make_run(7)
    assert kind(online(plain)).fields == {**kind(plain).fields, "online_quant_config": canonical(FP8)}
    for same in (*(online(plain, config) for config in NOTHING), online(plain, FP8, layers=0)):
        assert kind(same).hash == kind(plain).hash
    assert kind(online(plain, FP8, layers=8)).hash == kind(online(plain)).hash


def test_quantised_weights_make_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(EvalkitError, match="K=0 in float32 online=ptpc_fp8: a baseline is K=0 in float32") as e:
        record_baseline(online(make_run(0)), tmp_path / "b.json")
    assert "but --online-quant-config" in e.value.fix
    record_baseline(online(make_run(0), "{}"), tmp_path / "b.json")
    assert "online_quant_config" not in load_baseline(tmp_path / "b.json").fingerprint


def test_a_golden_says_it_and_mixes_with_no_other(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    plain, quantised = make_run(7), online(make_run(5))
    with pytest.raises(EvalkitError, match="differ in online_quant_config"):
        record_curve([plain, dataclasses.replace(quantised, id="other")], path)
    record_curve([online(plain)], path)
    assert "quant: float32 online=ptpc_fp8" in path.read_text()
    (value,) = read_curve(path, str(plain.cell["target"])).values["thinking_off"].values()
    assert value.fingerprint and value.fingerprint["online_quant_config"] == canonical(FP8)
    assert ("online_quant_config", "same") in _policies(GateSpec(golden_quant="same"))


def test_people_see_it_wherever_the_quant_mode_is_named() -> None:
    plain = make_run(7)
    run = dataclasses.replace(online(plain), id="of-before")
    assert "float32 online=ptpc_fp8" in run_table(run).plain
    assert "of-before online=ptpc_fp8" in runs_table([run]).plain and "online" not in runs_table([plain]).plain
    assert 'online_quant_config {"global_quant_config": "ptpc_fp8"}' in " ".join(run_text(run).split())
    assert quant_mode(run).endswith(canonical(FP8)) and "after loading" not in quant_mode(plain)
    labels = [
        s.label
        for s in subjects([(r, None, Standards(golden=None, baseline=None, references=())) for r in (plain, run)])
    ]
    assert labels[0] != labels[1] and "online=ptpc_fp8" in labels[1]
    assert "online-ptpc_fp8" in Cell.make(online_quant_config=FP8).stem("t")


def test_a_plain_run_is_not_found_for_a_quantised_setting() -> None:
    cell = Cell.make(k=7, online_quant_config=FP8).to_json()
    plain = {"cell": Cell.make(k=7).to_json(), "provenance": {"online_quant_info": {"num_layers": 0}}}
    same = {"cell": {**cell, "online_quant_config": json.dumps(json.loads(FP8), indent=1)}, "provenance": {}}
    assert not _same_setting(cell, plain) and _same_setting(cell, same)
    assert _same_setting(Cell.make(k=7).to_json(), plain) and asked(cell) == canonical(FP8)

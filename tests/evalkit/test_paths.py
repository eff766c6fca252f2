"""The paths of the engine in a run's record, from the command line to the gate's check."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.errors import EngineError
from engine.mode import PRESETS, QuantMode
from evalkit import fingerprint
from evalkit.cli import main
from evalkit.config import ROOT, Cell
from evalkit.console import path_rows, run_rows
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge
from evalkit.gate.limits import PathShare
from evalkit.records import Outcome, Run
from evalkit.report.grid import mono
from evalkit.report.subject import Subject
from evalkit.servers.spec import ServerSpec
from evalkit.show import run_text
from tests.engine.tiny import build, prompts, requests
from tests.evalkit.test_gate import make_run, named


@pytest.mark.parametrize(("quant", "batch"), [
    ("float32", 64), ("fp8", 64), ("m31flash-c1-4", 4), ("m31flash-c8-16", 16), ("m31flash-c32-48", 48),
    ("m31flash-c8-16 kv[draft]=bf16", 16),
])  # fmt: skip
def test_a_band_decodes_as_many_requests_as_it_is_for(quant: str, batch: int) -> None:
    assert Cell.make(quant=quant).engine.max_batch == batch
    assert Cell.make(quant=quant, batch=3).engine.max_batch == 3


@pytest.mark.parametrize("quant", PRESETS)
def test_mono_is_off_unless_the_preset_asks_for_it_and_every_text_says_so(quant: str) -> None:
    band = QuantMode.parse(quant, "auto").band
    asks = band is not None and band.mono
    assert Cell.make(quant=quant).engine.mono == ("auto" if asks else "off")
    page = " ".join((ROOT / "docs" / "paths.md").read_text(encoding="utf-8").split())
    default = page.split("Without the option it is off, and auto only where")[1].split(".")[0]
    assert (f"`{quant}`" in default) is asks
    assert "| `--mono` | off, or auto where the preset asks for it |" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("quant", PRESETS)
def test_a_prefill_waits_only_where_the_preset_asks_for_it_or_somebody_does(quant: str) -> None:
    band = QuantMode.parse(quant, "auto").band
    asks = band.prefill_decode_interval if band is not None else 0
    assert Cell.make(quant=quant).engine.prefill_decode_interval == asks
    assert Cell.make(quant=quant, prefill_decode_interval=0).engine.prefill_decode_interval == 0
    made = Cell.make(quant=quant, prefill_decode_interval=8, prefill_delayer="stall=3").to_json()
    assert (made["prefill_decode_interval"], made["prefill_delayer"]) == (8, "stall=3")
    server = ServerSpec(engine="openai", base_url="http://127.0.0.1:1/v1")
    assert Cell.make(model="m", quant=quant, server=server).engine.prefill_decode_interval == 0
    with pytest.raises(EvalkitError, match="--prefill-decode-interval is of the built-in"):
        Cell.make(model="m", prefill_decode_interval=4, server=server)


def test_an_interval_is_part_of_the_configuration_and_of_no_other_comparison() -> None:
    plain, held = (Cell.make(prefill_decode_interval=n).to_json() for n in (0, 4))
    old = {n: v for n, v in plain.items() if not n.startswith("prefill_d")}  # stored before there was a delayer
    prints = [fingerprint.config_fingerprint({"cell": cell}) for cell in (old, plain, held)]
    assert prints[0].hash == prints[1].hash != prints[2].hash
    assert prints[2].fields["prefill_decode_interval"] == 4
    for of in (fingerprint.accuracy_fingerprint, fingerprint.acceptance_fingerprint):
        assert of({"cell": plain}).hash == of({"cell": held}).hash


def test_the_record_says_how_long_prefill_was_held(tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = build(tmp_path_factory.mktemp("tiny"))
    llm = tiny.llm(k=0, max_batch=2, prefill_decode_interval=20000)
    llm.generate(
        [dataclasses.replace(r, params=dataclasses.replace(r.params, max_tokens=4 + 8 * (i % 2)))
         for i, r in enumerate(requests(prompts(4), max_tokens=8, ignore_eos=True))]
    )  # fmt: skip
    run = dataclasses.replace(make_run(), counters=llm.counters)
    (row,) = [value for name, value in path_rows(run) if name == "prefill delayer"]
    # gangs of two, each with one of 4 tokens and one of 12: the second pair has nobody behind it
    assert row == "interval 20000: 8 of 23 ticks held (34.8 %)" and row in run_text(run)
    assert not [n for n, _ in path_rows(make_run()) if n == "prefill delayer"]


@pytest.mark.parametrize(("words", "told"), [
    ({"k": 7, "quant": "fp8"}, "64 requests that decode together at K=7 make steps of 512 rows; Mono serves at most "
                               "16; fix: use --batch 2 at most"),
    ({"k": 5, "quant": "m31flash-c1-4"}, "4 requests .* at K=5 make steps of 24 rows; .* use --batch 2 at most"),
    ({"k": 7, "quant": "m31flash-c32-48", "batch": 2}, "Mono reads fp8 caches only"),
    ({"graphs": "wide"}, "graphs is 'wide'; fix: use off, atom, dense"),
    ({"graphs": "off", "kernels": "tritn"}, "unknown kernels 'tritn'; fix: did you mean triton"),
])  # fmt: skip
def test_what_mono_cannot_cover_is_refused_before_the_run(words: dict[str, Any], told: str) -> None:
    with pytest.raises(EngineError, match=told):
        Cell.make(mono="require" if "graphs" not in words else "auto", **words)
    assert Cell.make(k=3, quant="m31flash-c1-4", mono="require").engine.mono == "require"


def test_a_server_has_its_own_paths() -> None:
    with pytest.raises(EvalkitError, match="--mono, --graphs and --kernels are of the built-in engine"):
        Cell.make(model="m", mono="off", server=ServerSpec(engine="openai", base_url="http://127.0.0.1:1/v1"))


def test_the_command_line_says_it_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--k", "7", "--preset", "m31flash-c1-4", "--mono", "require"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "--batch 2 at most" in said[1]


def test_the_record_says_which_path_served(tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = build(tmp_path_factory.mktemp("tiny"))

    def run_of(max_batch: int) -> Run:
        llm = tiny.llm(k=7, quant="fp8", max_batch=max_batch, mono="auto", graphs="dense")
        llm.generate(requests(prompts(4), max_tokens=8))
        return dataclasses.replace(make_run(), counters=llm.counters)

    spec = GateSpec(paths=(PathShare(name="mono", share=0.9),))
    good, wide = run_of(2), run_of(4)
    check = named(judge(good, baseline=None, golden=None, spec=spec), "path mono")
    assert check.outcome is Outcome.PASS and check.numbers["share"] == mono_share(good) == 1.0
    check = named(judge(wide, baseline=None, golden=None, spec=spec), "path mono")
    assert check.outcome is Outcome.FAIL  # too many decode together: most steps are ordinary ones
    rows = dict(path_rows(wide))
    assert rows["Mono"].startswith(f"{100 * mono_share(wide):.1f} % of ") and "refused rows " in rows["Mono"]
    assert rows["graph sizes"].endswith("0 padding rows") or "hits" in rows["graph sizes"]
    assert "Mono" in dict(run_rows(good)) and re.search(r"Mono +100\.0 %", run_text(good))
    assert max(map(len, run_text(wide, 80).splitlines())) <= 80


def mono_share(run: Run) -> float:
    """As the report reads it."""
    share = mono(cast(Subject, SimpleNamespace(run=run)))
    assert share is not None
    return share


def test_the_record_says_which_kernels_served() -> None:
    told = {"decode_ticks": 8, "kernels_steps": 6, "kernels": {"triton": ["draw"], "twin": ["index_topk", "store_kv"]}}
    (row,) = path_rows(make_run(counters=told))
    assert row == ("kernels", "Triton in 6 of 8 decode steps; plain torch for index_topk, store_kv")
    run, spec = make_run(counters=told), GateSpec(paths=(PathShare(name="kernels", share=0.9),))
    check = named(judge(run, baseline=None, golden=None, spec=spec), "path kernels")
    assert check.outcome is Outcome.FAIL and check.numbers["share"] == 0.75
    assert path_rows(make_run(counters={"kernels": {"triton": [], "twin": ["draw"]}})) == []


def test_a_run_without_these_counters_has_no_such_rows() -> None:
    assert path_rows(make_run(counters={})) == [] and "paths" not in run_text(make_run(counters={}))
    only_fused = path_rows(make_run(counters={"decode_ticks": 10, "fused_verify_topk_steps": 4}))
    assert only_fused == [("fused verify top-k", "4 of 10 decode steps")]

"""A server of another setting than the run says: refused before the first question, and never a standard."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from evalkit.backends.http import bos_mark
from evalkit.baseline import record_baseline
from evalkit.config import TARGETS, Cell
from evalkit.errors import EvalkitError
from evalkit.gate import judge
from evalkit.golden import record_curve
from evalkit.records import Outcome
from evalkit.run import run_cell
from evalkit.servers.per_request import drafts_told
from evalkit.servers.profile import profile_of
from evalkit.servers.setting import differences, told_setting
from evalkit.servers.spec import ServerSpec
from tests.servers.conftest import cell_of

ABOUT = {"target": "faulty", "draft": "dspark", "k": 7, "quant": "fp8", "draft_width": "k", "verify": "standard"}


def serving(k: int = 7, draft: str = "dspark", quant: str = "fp8", **more) -> Cell:
    """The Cell of a server that is only talked of."""
    spec = ServerSpec(base_url="http://localhost:1/v1")
    return Cell.make(model="faulty", k=k, draft=draft, quant=quant, server=spec, **more)


def told(cell: Cell, engine: str = "openai", **flags) -> dict[str, tuple[str, str]]:
    words = {n: str(v) for n, v in flags.items()}
    return {o.name: (o.told, o.said) for o in differences(profile_of(engine), words, cell.to_json())}


def test_every_word_of_a_setting_is_compared():
    assert told(serving(), **ABOUT) == {}
    assert told(serving(k=0, draft="none", quant="float32"), **ABOUT) == {
        "k": ("7", "0"), "draft": ("dspark", "none"), "quant": ("fp8", "float32"),
    }  # fmt: skip
    assert told(serving(k=3), **ABOUT) == {"k": ("7", "3")}
    assert told(serving(draft="dspark-weak"), **ABOUT) == {"draft": ("dspark", "dspark-weak")}
    assert told(serving(draft_width="block"), **ABOUT) == {"draft_width": ("k", "block")}
    assert told(serving(), **ABOUT | {"verify": "forced"}) == {"verify": ("forced", "standard")}
    assert told(serving(quant="kv=fp8 index=fp8"), **ABOUT) == {}, "the same mode in other words"


def test_without_drafts_on_both_sides_what_drafts_would_be_means_nothing():
    assert told(serving(k=0, draft="none"), **ABOUT | {"k": 0, "draft": "dspark", "draft_width": "block"}) == {}


def test_other_engines_settings_are_read_in_their_own_words():
    sglang = {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 8, "kv_cache_dtype": "fp8_e4m3"}
    assert told(serving(), "sglang", **sglang) == {}
    assert told(serving(k=3, draft="mtp"), "sglang", **sglang) == {"k": ("7", "3"), "method": ("dspark", "mtp")}
    assert told(serving(quant="bf16"), "sglang", **sglang) == {"kv": ("fp8", "bf16")}
    tree = sglang | {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 4}
    assert told(serving(draft="eagle3", k=3), "sglang", **tree) == {}, "a tree of drafts has no K"
    atom = {"num_speculative_tokens": 7, "method": "dspark", "kv_cache_dtype": "bf16"}
    assert told(serving(quant="fp8"), "atom", **atom) == {"kv": ("bf16", "fp8")}
    assert told_setting(profile_of("vllm"), {"k": "7"}) == {}


@pytest.mark.parametrize(("words", "said", "fix"), [
    ({"k": 0, "draft": "none"}, "k 0, draft none, quant float32", "--k 7 --draft dspark --quant fp8"),
    ({"k": 7}, "quant float32", "--quant fp8"),
    ({"k": 3, "quant": "fp8"}, "k 3", "--k 7"),
])  # fmt: skip
def test_another_setting_is_refused_before_the_first_question(faulty, sums, tmp_path, words, said, fix):
    server = faulty(k=7, about=ABOUT)
    plain = cell_of(server, sums(8), engine="openai", k=7)
    known = {"model": "faulty", "draft": "dspark", "data": plain.data, "server": plain.server}
    with pytest.raises(EvalkitError) as e:
        run_cell(Cell.make(**known | words), runs_dir=tmp_path / "runs")
    assert e.value.what.endswith(f"; this run says {said}") and f"give {fix}, or start" in e.value.fix
    assert "\n" not in str(e.value) and server.tell()["asked"] == 1, "one token, to see that it is ready"
    assert not list((tmp_path / "runs").glob("*/samples.jsonl"))


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "sglang", "atom", "trtllm"])
@pytest.mark.parametrize(("k", "more"), [(3, " --k 7"), (7, "")])
def test_evalkit_s_own_server_is_not_taken_for_another_engine_s(faulty, sums, tmp_path, engine, k, more):
    """Else what it tells of K and quant mode would be read by nobody."""
    server = faulty(k=7, about=ABOUT)
    cell = cell_of(server, sums(8), engine=engine, k=k)
    cell = replace(cell, engine=replace(cell.engine, quant="fp8"))
    with pytest.raises(
        EvalkitError, match=f"evalkit's own .k 7, draft dspark, quant fp8., .* takes it for {engine}"
    ) as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert e.value.fix == f"give --engine openai{more}"
    assert server.tell()["asked"] <= 1 and not list((tmp_path / "runs").glob("*/samples.jsonl"))


def test_a_stored_run_that_took_evalkit_s_server_for_another_engine_s_fails_the_gate(faulty, sums, tmp_path):
    run = run_cell(cell_of(faulty(), sums(8)), runs_dir=tmp_path / "runs")
    served = {"pages": {"/v1/models": {"id": "faulty", "evalkit.k": 7, "evalkit.quant": "float32"}}}
    other = replace(run, provenance={**run.provenance, "served": served})
    check = {c.name: c for c in judge(other, baseline=None, golden=None).checks}["served setting"]
    assert check.outcome is Outcome.FAIL and "told k 7, the run says 4" in check.message


def test_the_setting_that_is_told_is_run(faulty, sums, tmp_path):
    server = faulty(k=7, about=ABOUT)
    cell = cell_of(server, sums(8), engine="openai", k=7)
    cell = replace(cell, engine=replace(cell.engine, quant="fp8"))
    run = run_cell(cell, runs_dir=tmp_path / "runs")
    assert "served setting" not in {c.name for c in judge(run, baseline=None, golden=None).checks}
    assert not any("is what --quant says" in note for note in run.provenance["notes"])


def test_a_server_that_tells_nothing_is_noted(faulty, sums, tmp_path):
    run = run_cell(cell_of(faulty(), sums(8)), runs_dir=tmp_path / "runs")
    assert "quant mode float32 is what --quant says; the server does not tell its own" in run.provenance["notes"]


@pytest.mark.parametrize("engine", ["vllm", "atom", "sglang"])
def test_a_server_that_drafts_at_k_0_fails_the_gate_and_is_no_baseline(faulty, sums, tmp_path, engine):
    """By counters where there are any, by the replies where they tell their own acceptance."""
    page = {"vllm": "vllm", "atom": "atom", "sglang": "none"}[engine]
    server = faulty(k=4, page=page)
    run = run_cell(cell_of(server, sums(12), k=0, engine=engine), runs_dir=tmp_path / "runs")
    check = {c.name: c for c in judge(run, baseline=None, golden=None).checks}["served setting"]
    assert check.outcome is Outcome.FAIL and "drafts, the run says k 0" in check.message
    with pytest.raises(EvalkitError, match="the run says k 0: no baseline"):
        record_baseline(run, tmp_path / "b.json")


def test_a_stored_run_whose_server_told_another_setting_is_no_baseline(faulty, sums, tmp_path):
    """As runs were stored before they were refused."""
    run = run_cell(cell_of(faulty(k=0), sums(12), k=0, engine="openai"), runs_dir=tmp_path / "runs")
    assert "served setting" not in {c.name for c in judge(run, baseline=None, golden=None).checks}
    flags = {"draft": "dspark", "k": "7", "quant": "fp8"}
    other = replace(run, provenance={**run.provenance, "flags": flags})
    check = {c.name: c for c in judge(other, baseline=None, golden=None).checks}["served setting"]
    assert check.outcome is Outcome.FAIL and "told k 7, the run says 0" in check.message
    with pytest.raises(EvalkitError, match="told quant fp8, the run says float32"):
        record_baseline(other, tmp_path / "b.json")
    assert "new 1.0000" in record_baseline(run, tmp_path / "b.json")


def test_acceptance_of_a_reply_is_seen_whatever_k():
    assert drafts_told({}, {"meta_info": {"spec_verify_ct": 3}}) == 3
    assert drafts_told({"timings": {"draft_n": 5}}, {}) == 5
    assert drafts_told({"metrics": {"speculative_decoding": {"num_spec_steps": 2}}}, {}) == 2
    assert drafts_told({}, {"meta_info": {"spec_verify_ct": 0}}) == 0 and drafts_told({"usage": {}}, {}) is None


def test_c20_no_token_measured_is_the_tokenizer_s_policy_where_it_adds_none(tmp_path):
    """Else a run over HTTP could never be compared with one in this process; a server that leaves a BOS out still is
    another arm, and one that adds a token is."""
    target = TARGETS["gradeschool-m3"]
    assert bos_mark("0 special tokens", target) == "tokenizer" and bos_mark("1 special tokens", target) != "tokenizer"
    shutil.copy(target / "tokenizer.json", tmp_path)
    special = next(t["content"] for t in json.loads((target / "tokenizer.json").read_text())["added_tokens"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": special}))
    assert bos_mark("0 special tokens", tmp_path) == "0 special tokens"
    assert bos_mark("", target) == ""


def test_what_acceptance_is_not_told_is_said_only_where_none_is(faulty, sums, tmp_path):
    words = "the server does not tell acceptance"
    for page, noted in (("vllm", False), ("none", True)):
        run = run_cell(cell_of(faulty(page=page), sums(4), engine="openai"), runs_dir=tmp_path / page)
        assert any(words in note for note in run.provenance["notes"]) is noted


def test_a_stored_run_whose_server_told_another_k_is_no_golden(faulty, sums, tmp_path):
    run = run_cell(cell_of(faulty(), sums(12), engine="openai"), runs_dir=tmp_path / "runs")
    other = replace(run, provenance={**run.provenance, "flags": {"k": "7"}})
    with pytest.raises(EvalkitError, match="told k 7, the run says 4: no golden"):
        record_curve([other], tmp_path / "g.yaml")

"""--extra-body: what a run says of itself can't be replaced by it, and what it does add is a part of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalkit.baseline import record_baseline
from evalkit.errors import EvalkitError
from evalkit.fingerprint import EXTRA, acceptance_fingerprint, accuracy_fingerprint, config_fingerprint
from evalkit.gate import GateSpec, judge
from evalkit.gate.accuracy import baseline_differences
from evalkit.gate.repeats import join_repeats
from evalkit.golden.curve import differing_marks
from evalkit.golden.record import curve_of
from evalkit.judging import read_baseline
from evalkit.records import Verdict
from evalkit.report.best import differing
from evalkit.run import run_cell
from evalkit.servers.spec import ServerSpec
from tests.servers.conftest import cell_of

PRINTS = (accuracy_fingerprint, acceptance_fingerprint, config_fingerprint)


@pytest.mark.parametrize(("body", "words", "fix"), [
    ('{"temperature": 0.3}', "'temperature', which --temperature sets", "--temperature"),
    ('{"top_p": 0.9}', "--top-p", "--top-p"),
    ('{"foo": 1, "top_k": 4}', "--top-k", "--top-k"),
    ('{"max_tokens": 9}', "--max-tokens", "--max-tokens"),
    ('{"max_completion_tokens": 9}', "--max-tokens", "--max-tokens"),
    ('{"seed": 3}', "--seed", "--seed"),
    ('{"stream": true}', "--stream", "--stream"),
    ('{"model": "other"}', "--served-name", "--served-name"),
    ('{"stop": ["4"]}', "the task sets it", "take it out"),
    ('{"prompt": "x"}', "the task sets it", "take it out"),
    ('{"messages": []}', "the task sets it", "take it out"),
    ('{"n": 2}', "one answer a question", "take it out"),
    ('{"best_of": 2}', "one answer a question", "take it out"),
    ('{"echo": true}', "plain replies", "take it out"),
    ('{"logprobs": 1}', "plain replies", "take it out"),
    ('{"sampling_params": {"temperature": 1}}', "--temperature", "take it out"),
    ('{"speculative.n_max": 2}', "--k says", "give --k"),
    ('{"api_key": "sk-1"}', "a run stores it", "--api-key-env"),
    ('{"foo": NaN}', "NaN", "give a number"),
])  # fmt: skip
def test_what_evalkit_sets_itself_is_refused_in_one_line(body, words, fix):
    with pytest.raises(EvalkitError) as e:
        ServerSpec(base_url="http://localhost:1/v1", extra_body=body)
    assert words in e.value.what and fix in e.value.fix and "\n" not in e.value.what + e.value.fix
    assert "sk-1" not in str(e.value)


def test_what_is_added_is_noted_and_a_part_of_every_fingerprint(faulty, sums, tmp_path):
    server, data = faulty(), sums(12)
    plain = run_cell(cell_of(server, data), runs_dir=tmp_path / "runs")
    added = run_cell(cell_of(server, data, extra_body='{"b":1,"a":2}'), runs_dir=tmp_path / "runs")
    assert server.tell()["bodies"][-1]["b"] == 1 and plain.id != added.id
    assert any('--extra-body added {"a": 2, "b": 1} to every request' in n for n in added.provenance["notes"])
    assert plain.fingerprint["hash"] != added.fingerprint["hash"]
    for of in PRINTS:
        assert of(plain).hash != of(added).hash
    assert config_fingerprint(added).fields["flags"][EXTRA] == '{"a": 2, "b": 1}'
    assert differing(plain, added) == [EXTRA]
    each = [Verdict(outcome=judge(r, baseline=None, golden=None).outcome, checks=(), run_id=r.id)
            for r in (plain, added)]  # fmt: skip
    with pytest.raises(EvalkitError, match="extra_body differ"):
        join_repeats([plain, added], each, baseline=None, spec=GateSpec())


def test_fingerprints_without_an_extra_body_are_those_of_before(faulty, sums, tmp_path):
    run = run_cell(cell_of(faulty(), sums(6)), runs_dir=tmp_path / "runs")
    before = {n: v for n, v in run.cell["server"].items() if n != EXTRA}
    older = replace(run, cell={**run.cell, "server": before})
    empty = replace(run, cell={**run.cell, "server": before | {EXTRA: "{}"}})
    for of in PRINTS:
        assert of(run) == of(older) == of(empty)
        assert EXTRA not in of(run).fields and EXTRA not in str(of(run).fields.get("flags"))
    assert EXTRA not in run.fingerprint


def test_a_standard_without_it_is_not_compared_with_a_run_that_has_it(faulty, sums, tmp_path):
    server, data = faulty(k=0), sums(12)
    plain = run_cell(cell_of(server, data, k=0), runs_dir=tmp_path / "runs")
    record_baseline(plain, tmp_path / "b.json")
    added = run_cell(cell_of(server, data, k=0, extra_body='{"foo":1}'), runs_dir=tmp_path / "runs")
    baseline = read_baseline(tmp_path / "b.json")
    said = {c.name: c for c in judge(added, baseline=baseline, golden=None).checks}["accuracy"].message
    assert "another setting" in said and "extra_body" in said
    record_baseline(added, tmp_path / "c.json")
    theirs = read_baseline(tmp_path / "c.json")
    assert [d.name for d in baseline_differences(theirs, plain)] == [EXTRA] and not baseline_differences(theirs, added)
    for first, second in ((plain, added), (added, plain)):
        with pytest.raises(EvalkitError, match="extra_body differ"):
            record_baseline(first, tmp_path / "d.json", repeats=[second])


def test_a_golden_of_the_one_is_no_golden_of_the_other(faulty, sums, tmp_path):
    data = sums(12)
    server = faulty(page="none")
    plain = run_cell(cell_of(server, data, engine="sglang"), runs_dir=tmp_path / "runs")
    added = run_cell(cell_of(server, data, engine="sglang", extra_body='{"foo":1}'), runs_dir=tmp_path / "runs")
    (old,), (new,) = (list(curve_of(r).values["thinking_off"].values()) for r in (plain, added))
    assert differing_marks(old, plain) == [] == differing_marks(new, added)
    assert differing_marks(old, added) == [EXTRA] == differing_marks(new, plain)


def test_a_field_that_the_server_refuses_is_named(faulty, sums, tmp_path):
    server = faulty(refuses=["foo"])
    with pytest.raises(EvalkitError) as e:
        run_cell(cell_of(server, sums(4), extra_body='{"fine": 2, "foo": 1}'), runs_dir=tmp_path / "runs")
    assert "refuses a request with --extra-body (HTTP 400: unknown field 'foo'; leave it away)" in e.value.what
    assert e.value.fix == "take foo out of --extra-body"

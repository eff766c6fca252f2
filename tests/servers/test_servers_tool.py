"""`make test-servers` without a server: which cases run, what its exit code says, how runs are held together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from engine.api import Completion, FinishReason, Step
from evalkit.records import Run, Sample, StepRecord
from evalkit.taskdata import stops_of
from tools import test_servers as tool
from tools.realservers import case, evidence, install, lookup, vllm_case
from tools.realservers.install import Failed, Skip

ROW = evidence.Row("x", "m", 4, 2, 1, "1.5", 2, 1, "steps", "1 in 2", 3)


def run_of(*samples, **counters):
    return Run(id="r", complete=True, cell={"k": 3}, fingerprint={}, provenance={}, samples=samples,
               expected=len(samples), task_size=len(samples), counters=counters)  # fmt: skip


def sample(doc, text, *, steps=((3, 2), (3, 0)), gaps=(), pieces=(), right=1.0):
    records = tuple(StepRecord(k=k, accepted=a, accepted_trimmed=a) for k, a in steps)
    return Sample(doc_id=doc, doc_hash=f"{doc}", prompt_hash="", question="", gold="", text=text, tokens=5, gaps=gaps,
                  pieces=pieces, steps=records, scores={"strict-match": right})  # fmt: skip


def main(monkeypatch, tmp_path, *words, **cases):
    monkeypatch.setattr(tool, "CASES", {n: (n.upper(), made) for n, made in cases.items()})
    return tool.main([*words, "--folder", str(tmp_path)])


def passes(setting):
    """About it."""
    return [ROW], ["a line"], ["verdict: FAIL"]


def skips(setting):
    raise Skip("no wheel")


def fails(setting):
    raise Failed("a difference")


def test_the_exit_code_is_0_only_where_a_server_ran_and_none_failed(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, a=passes, b=skips) == 0
    assert "PASS a: a line" in capsys.readouterr().out
    assert main(monkeypatch, tmp_path, a=passes, c=fails) == 1
    assert "FAIL c: a difference" in capsys.readouterr().err
    assert main(monkeypatch, tmp_path, b=skips) == 1
    assert "no server ran" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(monkeypatch, tmp_path, "nothing", a=passes)


def test_the_table_is_printed_and_the_page_made_of_what_was_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert main(monkeypatch, tmp_path, "--write", a=passes, b=skips) == 0
    page = (tmp_path / "page.md").read_text()
    assert "## A\n\nAbout it." in page and "- a line" in page and "SKIP: no wheel" in page and "verdict: FAIL" in page
    assert "| x | m | 4 | 2 | 1/2 | 1.5 | 1 in 2 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0]["length"] == "1.5"


def test_a_case_that_fails_leaves_no_older_result_for_the_page(monkeypatch, tmp_path):
    assert main(monkeypatch, tmp_path, a=passes, b=passes) == 0
    main(monkeypatch, tmp_path, a=fails, b=passes)
    assert not (tmp_path / "a.json").exists() and (tmp_path / "b.json").exists()


def test_answers_that_differ_are_named_with_their_gap_and_only_a_near_tie_is_a_cause():
    pieces, gaps = (" one", " two", " three"), (2.0, 3e-5, 1.0)
    ours = run_of(sample(0, " one two three", pieces=pieces, gaps=gaps), sample(1, "same"))
    near = run_of(sample(0, " one too three"), sample(1, "same"))
    line = case.texts(ours, near, "S")
    assert "1 of 2 answers are ours" in line
    assert "question 0: texts part at character 6, top-two gap 3e-05: a near-tie" in line
    far = run_of(sample(0, " one two four"), sample(1, "same"))
    wide = run_of(replace(ours.samples[0], gaps=(2.0, 1.0, 1.0)), ours.samples[1])
    with pytest.raises(Failed, match="1 of 2 answers differ from ours: question 0: texts part at character 9"):
        case.texts(wide, far, "S")
    with pytest.raises(Failed, match="gap unknown"):
        case.texts(run_of(sample(1, "same")), run_of(sample(1, "other")), "S")
    with pytest.raises(Failed, match="scores"):
        case.texts(run_of(sample(1, "same")), run_of(sample(1, "same", right=0.0)), "S")
    assert case.texts(ours, ours, "S").startswith("S: 2 of 2 answers are ours, character by character")


def test_steps_and_counters_must_be_equal_to_the_last_digit():
    told = {"acceptance": {"accepted": 2, "steps": 2}}
    ours, theirs = run_of(sample(0, "a")), run_of(sample(0, "a"), **told)
    rows = [replace(ROW, length="2.0", accepted=2, steps=2), replace(ROW, length="2.0", accepted=2, steps=2)]
    assert case.equal(rows, ours, theirs, "S").endswith("2 in 2: accepted length 2.0")
    with pytest.raises(Failed, match="by its counters"):
        case.equal(rows, ours, run_of(sample(0, "a"), acceptance={"accepted": 3, "steps": 2}), "S")
    with pytest.raises(Failed, match="steps differ in 1 questions"):
        case.equal(rows, ours, run_of(sample(0, "a", steps=((3, 1), (3, 1))), **told), "S")


def test_vllm_s_drafts_are_what_followed_the_earliest_longest_suffix():
    assert lookup.earliest([1, 2, 7, 1, 2, 8, 1, 2], 3) == [7, 1, 2]
    assert lookup.earliest([5, 1, 2, 9, 1, 2, 8, 5, 1, 2], 2) == [9, 1], "three tokens beat two"
    assert lookup.earliest([1, 2, 3], 4) == [] and lookup.earliest([4], 4) == []
    assert lookup.earliest([1, 1, 1, 1], 4) == [1], "a place may overlap the suffix"
    assert lookup.earliest([3, 9, 3], 4) == [], "one token is no suffix"


def test_verify_steps_are_compared_one_by_one_and_in_order():
    steps = (Step(k=0, accepted=0, accepted_trimmed=0), Step(k=4, accepted=2, accepted_trimmed=1))
    done = Completion(id="1", text="", token_ids=(), prompt_tokens=1, cached_tokens=0,
                      finish_reason=FinishReason.LENGTH, steps=steps)  # fmt: skip
    assert vllm_case.steps_of(done) == [(4, 2)] == vllm_case.told_by(sample(1, "", steps=((4, 2),)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_that_are_left_are_found_by_their_mark():
    mark = f"REAL_SERVERS_RUN=test-{os.getpid()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, name: value}) as child:
        assert vllm_case.marked(mark) == [child.pid]
        child.kill()
    assert vllm_case.marked(mark) == []


def test_the_task_without_stops_differs_from_gsm8k_in_nothing_else(tmp_path):
    made = yaml.safe_load(vllm_case.without_stops(tmp_path).read_text())
    real = yaml.safe_load(vllm_case.TASK.read_text())
    assert stops_of(made["generation_kwargs"]["until"], "x")[0] == ()
    assert {n for n in real if made[n] != real[n]} == {"task", "generation_kwargs"}


def test_packages_are_installed_once_and_again_where_others_are_wanted(monkeypatch, tmp_path):
    done: list[tuple[str, ...]] = []
    monkeypatch.setattr(install, "run", lambda *words, **more: done.append(tuple(map(str, words))))
    (tmp_path / "lib").mkdir()
    install.library(tmp_path, "lib", alone=("a==1",), whole=("b==1",))
    assert len(done) == 2 and "b==1" in done[0] and "--constraint" in done[0] and "--no-deps" in done[1]
    install.library(tmp_path, "lib", alone=("a==1",), whole=("b==1",))
    assert len(done) == 2
    install.library(tmp_path, "lib", alone=("a==2",))
    assert len(done) == 3 and done[2][-1] == "a==2"

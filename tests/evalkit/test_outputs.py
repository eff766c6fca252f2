"""What a gate writes: every form is valid, holds hostile text as text, and shows no run as passed that is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from evalkit.cli import main
from evalkit.commands.outputs import Outputs
from evalkit.errors import EvalkitError
from evalkit.outputs import (
    annotation_lines,
    append_summary,
    write_benchmark,
    write_json,
    write_junit,
    write_lm_eval,
    write_summary,
)
from evalkit.outputs.common import safe
from evalkit.outputs.document import SCHEMA_FILE, document
from evalkit.outputs.junit import junit_text
from evalkit.outputs.lm_eval_files import unfit
from evalkit.outputs.summary import LIMIT, escape, summary_text
from evalkit.records import Run, StepRecord, Verdict
from evalkit.report import checks
from evalkit.runfile import read_json
from tests.evalkit.verdicts import (
    FAIL,
    HOSTILE,
    INCONCLUSIVE,
    PASS,
    make_check,
    make_run,
    make_sample,
    make_verdict,
    sha,
    three_outcomes,
)

HERE = Path(__file__).parent
SCHEMA = json.loads(SCHEMA_FILE.read_text())
NAN = float("nan")


# --- JSON


def test_json_fits_its_published_schema(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = read_json(write_json([three_outcomes()], [make_run()], tmp_path / "deep" / "v.json").read_text("ascii"))
    jsonschema.validate(found, SCHEMA)
    assert (found["outcome"], found["exit_code"], found["schema"]) == ("fail", 1, 1)
    assert found["verdicts"][0]["checks"][0]["numbers"]["interval"] == [-0.03, -0.01]
    assert found["verdicts"][0]["run"]["k"] == 7 and found["verdicts"][0]["run"]["samples"] == 20


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"outcome": "passed"}, {"verdicts": []}, {"exit_code": 2}, {"extra": 1}],
    ids=lambda c: next(iter(c)),
)
def test_the_schema_refuses_what_is_no_such_document(change: dict) -> None:
    found = document([three_outcomes()], [make_run()])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | change, SCHEMA)


def test_c88_a_number_that_is_not_finite_is_named_and_never_nan_or_null(tmp_path: Path) -> None:
    check = make_check("accuracy", FAIL, p=NAN, interval=[0.1, float("inf")], n=3)
    text = write_json([make_verdict(check)], [make_run()], tmp_path / "v.json").read_text()
    found = read_json(text)  # refuses NaN
    jsonschema.validate(found, SCHEMA)
    (one,) = found["verdicts"][0]["checks"]
    assert one["numbers"] == {"p": "nan", "interval": [0.1, "inf"], "n": 3}
    assert one["not_finite"] == ["p", "interval[1]"]


def test_the_worst_verdict_is_the_outcome_and_none_is_a_fail() -> None:
    runs = [make_run(id=name) for name in "abc"]
    verdicts = [
        make_verdict(make_check(outcome=o), run_id=n) for o, n in zip((PASS, INCONCLUSIVE, PASS), "abc", strict=True)
    ]
    assert document(verdicts, runs)["outcome"] == "inconclusive"
    assert document([], [])["outcome"] == "fail"
    with pytest.raises(EvalkitError, match="no verdict on run d"):
        document(verdicts, [*runs, make_run(id="d")])


# --- JUnit


@pytest.fixture(scope="module")
def xsd() -> etree.XMLSchema:
    return etree.XMLSchema(etree.parse(HERE / "junit.xsd"))


def test_junit_fits_the_common_schema_and_counts_what_did_not_pass(tmp_path: Path, xsd: etree.XMLSchema) -> None:
    path = write_junit([three_outcomes()], [make_run()], tmp_path / "j.xml")
    xsd.assertValid(etree.parse(path))
    (suite,) = ET.parse(path).getroot()
    cases = {c.get("name"): c for c in suite.iter("testcase")}
    assert suite.get("tests") == str(len(cases)) == "4" and suite.get("failures") == "3"
    types = [f.get("type") for f in suite.iter("failure")]
    assert types == ["fail", "inconclusive", "fail"] and cases["requests"].find("failure") is None
    assert suite.get("timestamp") == "2026-11-30T11:29:47"


def test_inconclusive_is_a_failure_and_never_skipped() -> None:
    text = junit_text([make_verdict(make_check(outcome=INCONCLUSIVE))], [make_run()])
    suite = ET.fromstring(text)[0]
    assert suite.get("failures") == "2" and "skipped" not in text
    assert [f.get("type") for f in suite.iter("failure")] == ["inconclusive", "inconclusive"]


@pytest.mark.parametrize("verdict", [make_verdict(), make_verdict(make_check(), outcome=FAIL)], ids=["empty", "odd"])
def test_a_verdict_that_failed_is_red_whatever_its_checks_say(verdict: Verdict, xsd: etree.XMLSchema) -> None:
    text = junit_text([verdict], [make_run()])
    xsd.assertValid(etree.fromstring(text.encode()))
    suite = ET.fromstring(text)[0]
    assert int(suite.get("failures", "0")) >= 1 and int(suite.get("tests", "0")) >= 1
    assert next(c for c in suite.iter("testcase") if c.get("name") == "verdict").find("failure") is not None


def test_a_pass_has_no_failure(xsd: etree.XMLSchema) -> None:
    text = junit_text([make_verdict(make_check())], [make_run(provenance={})])
    xsd.assertValid(etree.fromstring(text.encode()))
    assert ET.fromstring(text)[0].get("failures") == "0" and "<failure" not in text


@given(st.text(alphabet=st.characters(categories=None)))
def test_any_text_gives_xml_that_can_be_read(text: str) -> None:
    check = make_check(f"c{text}", FAIL, text)
    found = ET.fromstring(junit_text([make_verdict(check, notes=(text,))], [make_run(1)]).encode())
    failure = next(found.iter("failure"))
    as_read = safe(text).replace("\r\n", "\n").replace("\r", "\n")  # as XML parsers do (2.11)
    assert failure.text is not None and as_read in failure.text.replace("\r", "\n")


# --- markdown


def test_summary_has_the_table_and_what_did_not_pass_first(tmp_path: Path) -> None:
    text = write_summary([three_outcomes()], [make_run()], tmp_path / "s.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| check | outcome | expected | found | interval | margin | n |")
    assert [row.split(" | ")[1] for row in rows[1:]] == ["fail", "inconclusive", "pass"]
    assert "| 90 %: -3.0 .. -1.0 pt | 1 pt | 20 |" in rows[1] and "| 90 %: 90.0 .. 101.0 % | 5 % |" in rows[2]
    assert "|  | 0 % | 20 |" in rows[3] and text.startswith("## evalkit gate: FAIL")
    assert len(re.split(r"(?<!\\)\|", rows[1])) == len(rows[0].split("|")), "a pipe in a text makes no column"


def test_the_summary_has_an_interval_as_the_report_has_it() -> None:
    numbers = {"interval": [0.98975, 1.00625], "level": 0.9, "margin": 0.05, "ratio": 0.998}
    floor = make_check("floor", interval=[0.9, 0.95], level=0.95, floor=0.8)
    length = make_check("accepted length", **numbers)
    rows = summary_text([make_verdict(length, floor)], [make_run()]).split("\n")
    for check, words in ((length, "99.0 .. 100.6 %"), (floor, "0.9000 .. 0.9500")):
        (row,) = [line for line in rows if line.startswith(f"| {check.name} ")]
        assert f": {words} |" in row and checks.interval(check).startswith(words)
    assert "| 5 % |" in next(line for line in rows if line.startswith("| accepted length"))


def test_c89_hostile_text_is_text_in_the_summary() -> None:
    text = summary_text([three_outcomes()], [make_run(cell={"target": HOSTILE})])
    for word in ("<img", "`c`", "a|b", "[y](", "@me", "*x*", "://z", "www.z", "\x1b", "\u202e", "\x00"):
        assert word not in text
    text.encode()  # no lone surrogate is left
    tags = set(re.findall(r"<[^>]*>", text))
    assert tags == {"<details>", "<summary>", "</summary>", "</details>"}


@given(st.text(alphabet=st.characters(categories=None)))
def test_an_escaped_text_is_one_line_without_anything_active(text: str) -> None:
    found = escape(text)
    assert not set(found) & set("<>|`*_[]~\\@$\n\r") and len(found.splitlines()) <= 1


@pytest.mark.parametrize(("limit", "kept"), [(6000, True), (900, True), (260, False), (90, False), (10, False)])
def test_a_summary_fits_and_says_what_it_leaves_out(limit: int, kept: bool) -> None:
    checks = [make_check(f"c{i}", FAIL if i == 9 else PASS, "word " * 20) for i in range(10)]
    text = summary_text([make_verdict(*checks, notes=("n" * 900,))], [make_run()], limit=limit)
    assert len(text.encode()) <= limit and ("| c9 | fail |" in text) == kept
    assert "FAIL" in text or limit == 10
    assert limit > 900 or "not shown" in text or limit < 200


def test_the_largest_sweep_stays_under_a_mebibyte() -> None:
    runs = [make_run(1, id=f"r{i}") for i in range(400)]
    checks = [make_check(f"c{i}", FAIL, "é" * 1990) for i in range(15)]
    text = summary_text([make_verdict(*checks, run_id=r.id) for r in runs], runs)
    assert len(text.encode()) <= LIMIT and "r399" in text and "not shown" in text


def test_the_step_summary_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "step.md"
    path.write_text("before\n")
    append_summary([three_outcomes()], [make_run()], path)
    assert path.read_text().startswith("before\n## evalkit gate: FAIL")
    path.write_text("x" * (LIMIT - 200))
    append_summary([three_outcomes()], [make_run()], path)
    assert path.stat().st_size <= LIMIT
    with pytest.raises(EvalkitError, match="step summary"):
        append_summary([three_outcomes()], [make_run()], tmp_path / "no" / "step.md")


# --- annotations


def commands(lines: list[str]) -> list[tuple[str, str, str]]:
    """(level, title, message) as GitHub's runner reads workflow commands, line by line."""
    found = [re.fullmatch(r"::(\w+) title=([^:,\r\n]*)::([^\r\n]*)", line) for line in lines]
    assert all(found), lines
    plain = [tuple(part.replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%25", "%")
                   for part in one.groups()) for one in found if one]  # fmt: skip
    return plain  # type: ignore[return-value]


def test_annotations_tell_fails_before_what_is_inconclusive_and_a_pass_once() -> None:
    told = commands(annotation_lines([three_outcomes()], [make_run()]))
    assert [level for level, _, _ in told] == ["error", "warning"]
    assert (told[1][1] == "dspark K=7 nvfp4: length" and "run-1" in told[1][2]) or told[1][2].endswith("...")
    fine = make_verdict(make_check(), make_check("b"))
    told = commands(annotation_lines([fine, replace(fine, run_id="x")], []))
    assert told == [("notice", "evalkit gate: pass", "4 checks in 2 verdicts, and all pass: run-1, x")]
    (one,) = commands(annotation_lines([make_verdict(make_check())], []))
    assert one[2] == "1 check in 1 verdict, and all pass: run-1"
    assert commands(annotation_lines([], []))[0][0] == "error"
    bare = commands(annotation_lines([make_verdict(outcome=FAIL)], []))
    assert bare == [("error", "run-1: verdict", "run-1 is fail")]


def test_annotations_are_at_most_ten_of_a_level_and_say_what_is_left_out() -> None:
    many = [make_check(f"c{i}", FAIL if i % 2 else INCONCLUSIVE, "100 % of it") for i in range(30)]
    told = commands(annotation_lines([make_verdict(*many)], [make_run()]))
    assert [level for level, _, _ in told] == ["error"] * 10 + ["warning"] * 10
    assert told[9][1] == "evalkit gate: 6 more" and told[0][2] == "100 % of it (run-1)"
    ten = commands(annotation_lines([make_verdict(*many[:20])], [make_run()]))
    assert len(ten) == 20 and not any("more" in title for _, title, _ in ten)


@given(st.text())
def test_no_text_begins_another_workflow_command(text: str) -> None:
    check = make_check(f"a\n::set-env::{text}", FAIL, f"x\r\n::error::{text}")
    assert len(commands(annotation_lines([make_verdict(check, run_id=text)], []))) == 1


# --- github-action-benchmark


def benchmark(tmp_path: Path, run: Run) -> tuple[dict, dict]:
    found = write_benchmark([make_verdict(make_check(), run_id=run.id)], [run], tmp_path / "b.json")
    assert [p.name for p in found] == ["b.json", "b.smaller.json"]
    bigger, smaller = (read_json(p.read_text()) for p in found)
    for entry in [*bigger, *smaller]:
        assert isinstance(entry["name"], str) and type(entry["value"]) in (int, float) and entry["unit"]
        assert f"run: {run.id}" in entry["extra"] and "verdict: pass" in entry["extra"]
    return {e["name"]: e for e in bigger}, {e["name"]: e for e in smaller}


def test_benchmark_keeps_the_two_directions_apart(tmp_path: Path) -> None:
    bigger, smaller = benchmark(tmp_path, make_run())
    stem = "evalkit::m + dspark K=7 nvfp4 gsm8k "
    assert set(bigger) == {stem + w for w in ("strict-match", "flexible-extract", "accepted length", "acceptance rate")}
    assert set(smaller) == {stem + w for w in ("failed requests", "truncated answers")}
    assert bigger[stem + "strict-match"]["value"] == 0.8 and bigger[stem + "strict-match"]["range"].startswith("± 0.09")
    accepted = sum(a for i in range(20) for a in (i % 8, (3 * i) % 8, 2))
    assert bigger[stem + "accepted length"]["value"] == round(1 + accepted / 60, 6)


def test_c29_a_subset_is_a_series_of_its_own(tmp_path: Path) -> None:
    bigger, _ = benchmark(tmp_path, make_run(task_size=1319))
    assert bigger and all(name.endswith("(subset of 20)") for name in bigger)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"forced": True}, set()),
        ({"error": "HTTP 500", "scores": {}}, {"accepted length", "acceptance rate"}),
        ({"scores": {"strict-match": NAN, "flexible-extract": 1.0}},
         {"flexible-extract", "accepted length", "acceptance rate"}),
        ({"scores": {"strict-match": 1.0}}, {"strict-match", "accepted length", "acceptance rate"}),
        ({"steps": (StepRecord(k=7, accepted=9, accepted_trimmed=9),)}, {"strict-match", "flexible-extract"}),
    ],
    ids=["forced", "failed", "nan", "missing", "counts"],
)  # fmt: skip
def test_a_broken_sample_leaves_no_figure_that_it_would_be_in(tmp_path: Path, change: dict, left: set) -> None:
    run = make_run(samples=(*(make_sample(i) for i in range(19)), make_sample(19, **change)))
    bigger, smaller = benchmark(tmp_path, run)
    assert {name.split(" gsm8k ")[1] for name in bigger} == left
    assert all(e["value"] == (5.0 if "error" in change and "failed" in name else 0.0) for name, e in smaller.items())


# --- lm-eval's files


def by_validator(folder: Path, minimum: float) -> int:
    """What a reader of InferenceX's kind makes of a folder: every number named exact_match,FILTER against one bar,
    anything else passed over, nothing checked is a fail."""
    checked = failed = 0
    for file in sorted(folder.glob("results*.json")):
        for metrics in json.loads(file.read_text())["results"].values():
            for name, value in metrics.items():
                if name.startswith("exact_match,") and "stderr" not in name and isinstance(value, (int, float)):
                    checked, failed = checked + 1, failed + (value < minimum)
    return 1 if failed or not checked else 0


def by_dashboard(folder: Path) -> dict:
    """What a reader of ATOM's kind takes from the last results file by name."""
    files = sorted(folder.glob("*.json"), reverse=True)
    if not files:
        return {}
    data = json.loads(files[0].read_text())
    scores, ci = data["results"].get("gsm8k", {}), data.get("atom_ci_metadata", {})
    return {"score": scores.get("exact_match,flexible-extract"), "strict": scores.get("exact_match,strict-match"),
            "shots": data["configs"]["gsm8k"]["num_fewshot"], "model": data["config"]["model_args"]["model"],
            "percent": ci.get("mtp_acceptance_rate"), "length": ci.get("avg_tokens_per_forward"),
            "publish": ci.get("dashboard_publish_allowed"), "image": ci.get("docker_image")}  # fmt: skip


def test_c30_lm_eval_files_are_read_by_both_readers(tmp_path: Path) -> None:
    said = write_lm_eval([make_verdict(make_check())], [make_run()], tmp_path)
    assert said == [] and by_validator(tmp_path, 0.8) == 0 and by_validator(tmp_path, 0.81) == 1
    length = 1 + sum(a for i in range(20) for a in (i % 8, (3 * i) % 8, 2)) / 60
    assert by_dashboard(tmp_path) == {
        "score": 1.0, "strict": 0.8, "shots": 5, "model": "m", "percent": round(100 * (length - 1) / 7, 4),
        "length": round(length, 4), "publish": True, "image": "rocm/atom:1",
    }  # fmt: skip
    (file,) = tmp_path.glob("samples_gsm8k_*.jsonl")
    rows = [read_json(line) for line in file.read_text().splitlines()]
    assert len(rows) == 40 and {(r["doc_id"], r["filter"]) for r in rows} == {
        (i, f) for i in range(20) for f in ("strict-match", "flexible-extract")
    }
    assert rows[0]["exact_match"] == 0.0 and rows[0]["resps"] == [[" so\n#### 1"]] and rows[0]["doc_hash"] == sha("d0")
    (results,) = tmp_path.glob("results_*.json")
    assert ":" not in results.name
    data = read_json(results.read_text())
    assert data["results"]["gsm8k"]["exact_match_stderr,strict-match"] == pytest.approx((0.8 * 0.2 / 19) ** 0.5)
    assert data["n-samples"]["gsm8k"] == {"original": 20, "effective": 20} and data["config"]["limit"] is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"complete": False}, "incomplete"),
        ({"expected": 30, "task_size": 30}, "20 of 30"),
        (
            {"samples": (make_sample(0), make_sample(1, error="HTTP 500", scores={})), "expected": 2},
            "1 requests failed",
        ),
        ({"samples": (make_sample(0), make_sample(1, forced=True)), "expected": 2}, "forced"),
        ({"samples": (make_sample(0), make_sample(1, scores={"strict-match": NAN})), "expected": 2}, "no scores"),
        ({"samples": (make_sample(0), make_sample(1, scores={"strict-match": 1.0})), "expected": 2}, "no scores"),
        ({"samples": (make_sample(0), make_sample(0)), "expected": 2}, "twice"),
    ],
)
def test_a_broken_run_leaves_nothing_that_a_reader_could_pass(tmp_path: Path, change: dict, why: str) -> None:
    run = make_run(**change)
    said = write_lm_eval([make_verdict(make_check(outcome=FAIL))], [run], tmp_path)
    assert why in said[0] and why in unfit(run)
    assert by_validator(tmp_path, 0.0) == 1 and by_dashboard(tmp_path) == {}
    assert list(tmp_path.glob("samples_*.jsonl"))


def test_lm_eval_files_of_a_fail_and_of_a_subset_are_not_for_the_dashboard(tmp_path: Path) -> None:
    for i, (outcome, size) in enumerate([(FAIL, 20), (INCONCLUSIVE, 20), (PASS, 1319)]):
        folder = tmp_path / str(i)
        write_lm_eval([make_verdict(make_check(outcome=outcome))], [make_run(task_size=size)], folder)
        assert by_dashboard(folder)["publish"] is False
    assert json.loads(next((tmp_path / "2").glob("results*")).read_text())["config"]["limit"] == 20


def test_results_of_somebody_else_or_of_yesterday_are_not_read_with_ours(tmp_path: Path) -> None:
    verdict, run = make_verdict(make_check()), make_run()
    write_lm_eval([verdict], [run], tmp_path)
    old = next(tmp_path.glob("results*"))
    Outputs(lm_eval=tmp_path)  # as the command starts: before anything can go wrong
    assert not old.exists() and list(tmp_path.iterdir()) == []
    (tmp_path / "results_mine.json").write_text('{"results": {}}')
    with pytest.raises(EvalkitError, match="not evalkit's"):
        write_lm_eval([verdict], [run], tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["results_mine.json"]


def test_several_runs_have_a_folder_each(tmp_path: Path) -> None:
    runs = [make_run(id="a"), make_run(id="../b")]
    write_lm_eval([make_verdict(make_check(), run_id=r.id) for r in runs], runs, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["_b", "a"] and not (tmp_path / "b").exists()
    Outputs(lm_eval=tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/results*"))


def test_the_task_of_inferencex_is_gsm8k_to_its_readers(tmp_path: Path) -> None:
    run = make_run()
    run = replace(run, cell={**run.cell, "task": "gsm8k_inferencex"})
    write_lm_eval([make_verdict(make_check())], [run], tmp_path)
    assert by_dashboard(tmp_path)["score"] == 1.0


# --- cells of a specification: published figures without a run, and two cells on one run


def test_cells_without_a_run_and_two_on_one(tmp_path: Path, xsd: etree.XMLSchema) -> None:
    verdicts = [make_verdict(make_check(), run_id="figures"), make_verdict(make_check()),
                make_verdict(make_check(outcome=FAIL))]  # fmt: skip
    runs = [make_run()]
    found = document(verdicts, runs)
    jsonschema.validate(found, SCHEMA)
    assert [v["run"] is None for v in found["verdicts"]] == [True, False, False] and found["outcome"] == "fail"
    text = junit_text(verdicts, runs)
    xsd.assertValid(etree.fromstring(text.encode()))
    assert [s.get("name") for s in ET.fromstring(text)] == ["figures", "run-1", "run-1 #2"]
    assert "published figures, no run" in summary_text(verdicts, runs)
    bigger, _ = write_benchmark(verdicts, runs, tmp_path / "b.json")
    assert len(read_json(bigger.read_text())) == 4 and "verdict: fail" in bigger.read_text()
    assert write_lm_eval(verdicts, runs, tmp_path / "lm") == []
    assert by_dashboard(tmp_path / "lm")["publish"] is False, "the worst verdict on a run is the one that it has"


def test_a_specification_s_gate_writes_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"source": "a page", "target": "minimax-m3.1-flash", "task": "gsm8k", "shots": 5, "correct": 9, "n": 10}
    spec = {"schema": 1, "name": "s", "against": [{"score": "sglang"}], "cells": [{"figures": figures}]}
    (tmp_path / "s.yaml").write_text(json.dumps(spec))
    junit = tmp_path / "j.xml"
    code = main(["gate", str(tmp_path / "s.yaml"), "--junit", str(junit), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert code == found["exit_code"] == 3 and found["verdicts"][0]["run"] is None
    assert ET.parse(junit).getroot()[0].get("name") == "a page"
    assert main(["gate", str(tmp_path / "s.yaml"), "--junit", str(tmp_path)]) == 2


# --- the options


def test_an_old_file_is_gone_before_anything_is_judged(tmp_path: Path) -> None:
    names = ["v.json", "j.xml", "s.md", "b.json", "b.smaller.json"]
    for name in names:
        (tmp_path / name).write_text("yesterday's pass")
    json_, junit, summary, bench, _ = (tmp_path / name for name in names)
    Outputs(json=json_, junit=junit, summary=summary, benchmark=bench)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_place_for_an_output_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "run.json").write_text("{}")
    for words, said in [
        ({"json": tmp_path}, "is a folder"),
        ({"json": tmp_path / "run.json"}, "part of a stored run"),
        ({"json": tmp_path / "a", "junit": tmp_path / "a"}, "one file"),
        ({"step_summary": True}, "is not set"),
        ({"json": Path("-"), "junit": Path("-")}, "--json - and --junit -: standard output has room for one"),
        ({"benchmark": Path("-")}, "--benchmark - : it writes several files"),
        ({"lm_eval": Path("-")}, "--lm-eval - : it writes several files.*; fix: give a folder"),
    ]:
        with pytest.raises(EvalkitError, match=said):
            Outputs(**words)
    assert (tmp_path / "run.json").read_text() == "{}"


def test_everything_is_written_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    to = Outputs(json=Path("-"), junit=tmp_path / "j.xml", summary=tmp_path / "s.md", step_summary=True,
                 annotations=True, benchmark=tmp_path / "b.json", lm_eval=tmp_path / "lm")  # fmt: skip
    to.write([three_outcomes()], [make_run(complete=False)])
    out, err = capsys.readouterr()
    assert json.loads(out)["outcome"] == "fail" and "no lm-eval results of run-1" in err
    assert "\n::error title=dspark K=7 nvfp4%3A" in f"\n{err}" and "\n::warning title=" in err
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"j.xml", "s.md", "step.md", "b.json", "b.smaller.json", "lm"}


@pytest.mark.parametrize("name", ["json", "junit", "summary"])
def test_a_dash_is_standard_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    dash: dict[str, Any] = {name: Path("-")}
    named: dict[str, Any] = {name: tmp_path / "file"}
    to = Outputs(**dash)
    to.write([three_outcomes()], [make_run()])
    out = capsys.readouterr().out
    Outputs(**named).write([three_outcomes()], [make_run()])
    assert to.alone and out == (tmp_path / "file").read_text() != ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_output_never_replaces_a_specification(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("cells: []\n")
    with pytest.raises(EvalkitError, match="ends as a specification"):
        Outputs(json=spec)
    assert spec.exists()

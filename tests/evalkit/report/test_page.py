"""The report's page: what it says equals its inputs, what is missing is said in words, nothing stored can run in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.acceptance import positions, summarize
from evalkit.baseline import STRICT, Row
from evalkit.errors import EvalkitError
from evalkit.formats import typeset
from evalkit.gate import judge
from evalkit.golden import GoldenValue, Standards
from evalkit.records import Outcome, Run
from evalkit.report import again, best, bundle, drafts, grid, origin, tables, text
from evalkit.report.markdown import page_markdown
from evalkit.report.render import render, render_page, write_page, write_report
from evalkit.report.subject import Subject, subjects
from tests.evalkit.report.makers import (
    HOSTILE,
    RECORDED,
    REFERENCES,
    Reader,
    make_baseline,
    make_curve,
    make_golden,
    make_page,
    make_run,
    make_subject,
    make_verdict,
)


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run()


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return make_page(run, golden=RECORDED, baseline=make_baseline(run), references=REFERENCES)


def test_page_says_what_its_inputs_say(run: Run, page: str) -> None:
    words, found = Reader(page).text, summarize(run.samples, 7)
    assert "0.9400 ± 0.0168 (188/200)" in words and "0.8981 .. 0.9653" in words
    assert (
        "0.9450 ± 0.0162 (189/200)" in words
        and "4 lost, 3 gained" in words
        and "\u22120.5 pt (\u22123.7 .. +2.6 pt)" in words
    )
    assert typeset(str(found.steps)) in words and f"{found.accepted_length:.3f}" in words
    assert f"{found.accepted_length_trimmed:.3f}" in words and f"{found.acceptance_rate:.4f}" in words
    assert "4.040" in words and "w=float32 act=float32 kv=nvfp4" in words and "200 of 200" in words
    for i, steps in enumerate(found.histogram):
        assert re.search(rf"\b{i} {steps:,} {steps / found.steps:.4f} ", words)
    assert "no: it is of target minimax-m3.1-flash, this run of gradeschool-m3" in words
    assert "evalkit run --task gradeschool --draft dspark --k 7 --quant nvfp4" in words
    assert "torch 2.13.0, triton absent" in words and "dirty no" in words and run.id in words


@pytest.mark.parametrize("k", [0, 6, 7])
@pytest.mark.parametrize("baseline", [False, True])
def test_nothing_is_shown_as_none_or_nan(k: int, baseline: bool) -> None:
    run = make_run(40, k)
    words = Reader(make_page(run, baseline=make_baseline(run) if baseline else None)).text
    assert not re.search(r"\b(None|nan|NaN|inf|Undefined)\b", words)


def test_missing_things_are_said() -> None:
    words = Reader(make_page(make_run(40, 6), golden=make_curve(RECORDED))).text
    assert "no golden for K=6: gradeschool-m3_dspark.yaml has K=7; nothing is interpolated" in words
    assert "No baseline" in words and "No published score is known for this run" in words
    bare = replace(make_run(1, 6), provenance={}, fingerprint={}, seconds=0.0)
    words = Reader(make_page(bare)).text
    assert "(one sample has no standard error)" in words and "none from one sample" in words
    assert "time not recorded" in words and "draft width k" in words and "shots not recorded" in words
    other = replace(make_baseline(make_run(40)), rows={"0" * 16: Row("1" * 16, 1, 1)})
    assert "no question in common" in Reader(make_page(make_run(40, 6, seed=4), baseline=other)).text


@pytest.mark.parametrize("key", ["target_sha", "task_sha", "max_tokens", "stop"])
def test_a_baseline_of_another_setting_is_not_comparable_and_says_why(run: Run, key: str) -> None:
    run = replace(run, fingerprint={**run.fingerprint, "max_tokens": 128, "stop": ["Question:"]})
    base = make_baseline(run)
    other = replace(base, fingerprint={**base.fingerprint, key: "77" * 32})
    page = render(run, judge(run, baseline=other, golden=None), baseline=other)
    words = Reader(page).text
    assert (
        "Not comparable with baseline gradeschool-m3_gradeschool.baseline.json" in words and f"{key} 77777777" in words
    )
    assert "lost, 3 gained" not in words and "strict-match 0.9400" in words and "0.9450" not in words
    assert {r.get("c") for r in unpacked(page)[0]["rows"]} == {None}
    one = make_subject(run, None, baseline=other)
    (row,) = grid.rows([one], ())
    shown = dict(zip([name for name, _ in grid.columns([one])], row.entries, strict=True))["difference to baseline, pt"]
    assert shown.text == "not comparable" and key.removesuffix("_sha").replace("_", " ") in shown.note
    told = page_markdown([one])
    assert "not comparable" in told and "0.9450" not in told
    assert "Not comparable" not in Reader(render(run, None, baseline=base)).text


def test_a_golden_of_another_setting_is_not_comparable_and_not_drawn(run: Run) -> None:
    marks = {key: run.fingerprint[key] for key in ("target_sha", "task_sha", "temperature", "draft_width")}
    same, other = (replace(RECORDED, fingerprint={**marks, "task_sha": sha}) for sha in ("ef" * 32, "00" * 32))
    assert make_subject(run, None, golden=make_curve(same)).view.value is not None
    one = make_subject(run, None, golden=make_curve(other))
    assert one.view.value is None and not one.view.survival
    page = render(run, judge(run, baseline=None, golden=make_curve(other)), golden=make_curve(other))
    words = Reader(page).text
    assert "golden not comparable: gradeschool-m3_dspark.yaml differs from this run in task" in words
    assert not re.search(r"<text[^>]*>golden", page)
    drawn = render(run, None, golden=make_curve(same))
    assert re.search(r"<text[^>]*>golden", drawn)
    (row,) = grid.rows([one], ())
    shown = dict(zip([name for name, _ in grid.columns([one])], row.entries, strict=True))["of the golden, %"]
    assert (shown.text, shown.note) == ("not comparable", "golden differs in task")


def test_a_draft_that_never_proposed_is_said() -> None:
    run = make_run(40)
    run = replace(run, samples=tuple(replace(s, steps=()) for s in run.samples))
    assert "No verify step was counted in this run of K=7" in Reader(make_page(run)).text


def test_subset_incomplete_and_forced_are_said(run: Run) -> None:
    words = Reader(make_page(replace(run, task_size=1319))).text
    assert "subset: cannot certify (200 of the task's 1319" in words
    words = Reader(make_page(replace(run, samples=run.samples[:150], complete=False))).text
    assert "incomplete: cannot certify (150 of 200" in words and "not run 50 25.0 %" in words
    forced = replace(run, samples=tuple(replace(s, forced=True) for s in run.samples))
    assert "forced acceptance: cannot certify" in Reader(make_page(forced)).text


def test_report_is_written_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    verdict = make_verdict(run)
    assert write_page(render(run, verdict), path) == path
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(EvalkitError, match="cannot write"):
        write_page(render(run, verdict), tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]


def test_implied_survival_comes_from_neighbours_only() -> None:
    lengths = {1: 1.8, 2: 2.4, 3: 2.88, 5: 3.46, 7: 4.04}
    curve = make_curve(*(make_golden(k, al) for k, al in lengths.items()))
    view = drafts.golden_view(curve, 7)
    assert view.survival[:3] == pytest.approx((0.8, 0.6, 0.48)) and view.survival[3:] == (None,) * 4
    assert view.survival_from == "implied" and "no golden histogram" in view.missing[0]
    falling = make_curve(make_golden(1, 1.8), make_golden(2, 1.7))
    assert drafts.golden_view(falling, 2).survival == ()
    assert "does not rise" in drafts.golden_view(falling, 2).missing[1]
    assert drafts.golden_view(RECORDED, 7).survival[0] == pytest.approx(12000 / 15000)
    two = replace(curve, values={"thinking_on": {7: RECORDED}, "thinking_off": {7: RECORDED}})
    assert drafts.golden_view(two, 7).value is None and drafts.golden_view(two, 7, "thinking_on").value is RECORDED
    run = make_run(40)
    assert "implied by the golden curve" in make_page(run, golden=curve)


def test_a_verdict_of_the_gate_is_shown_whole(run: Run) -> None:
    inputs: dict[str, Any] = {"baseline": make_baseline(run), "golden": make_curve(RECORDED), "references": REFERENCES}
    verdict = judge(run, **inputs)
    words = Reader(render(run, verdict, **inputs)).text
    for check in verdict.checks:
        said = check.message == f"{check.found}; expected {check.expected}" and typeset(check.found) in words
        assert (said or typeset(check.message) in words) and typeset(check.expected) in words
    assert all(typeset(note) in words for note in verdict.notes)
    accuracy = next(c.numbers for c in verdict.checks if c.name == "accuracy")
    low, high = (100 * x for x in accuracy["interval"])
    low_to_high = typeset(f"{low:+.1f} .. {high:+.1f} pt")
    row = f"strict-match 0.9400 (188/200) {low_to_high} (90 %) 1 pt 200"  # interval, margin, pairs
    assert row in words
    ratio = next(c.numbers for c in verdict.checks if c.name == "accepted length")["interval"]
    assert f"{100 * ratio[0]:.1f} .. {100 * ratio[1]:.1f} % (90 %) 5 %" in words


def test_a_run_without_a_gate_says_so(run: Run) -> None:
    words = Reader(render(run, None)).text
    assert "not judged" in words[:150] and "No gate was run" in words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not recorded"),
        ({}, "none"),
        ([], "none"),
        ("", "not recorded"),
        ({"a": None, "b": {}, "c": []}, "a none, b none, c none"),
        (False, "no"),
        ({"a": False, "b": ""}, "a no, b absent"),
        (["\n"], "'\\n'"),
    ],
)
def test_plain_values(value: object, words: str) -> None:
    assert text.plain(value) == words


def test_score_without_samples_and_command_of_folders() -> None:
    run = make_run(4)
    nothing = replace(run, samples=(), complete=False)
    assert tables.score_table(nothing, None).rows[0][1] == "no scored sample"
    assert text.score(1, 1) == "1.0000 (one sample has no standard error) (1/1)"

    cell = {**run.cell, "target": "mine", "model": "/m/mine", "draft": "d", "draft_path": "/m/d", "prefix_cache": False}
    assert again.command(replace(run, cell=cell)) == (
        "evalkit run --task gradeschool --model /m/mine --draft /m/d --k 7 --quant nvfp4 --no-prefix-cache"
    )


@pytest.mark.parametrize("n", [2, 8, 1319])
def test_c23_no_score_is_shown_as_plus_minus_nothing(n: int) -> None:
    for right in (0, n):
        for words in (text.score(right, n), text.mean_score([float(right > 0)] * n)):
            assert "±" not in words and f"95 % {text.wilson(right, n)}" in words and f"({right}/{n})" in words
    assert "±" in text.score(1, n) and "±" in text.mean_score([1.0, *[0.0] * (n - 1)])
    assert text.mean_score([0.5] * n) == f"0.5000  ({n / 2:g}/{n})"


def unpacked(page: str) -> list[dict[str, Any]]:
    """The samples in a page, as its script reads them."""
    kind = '<script type="application/octet-stream" '
    found = re.findall(rf'{kind}(?:id="questions"|class="block"[^>]*)>([^<]*)</script>', page)
    asked, *runs = [json.loads(zlib.decompress(base64.b64decode(block, validate=True))) for block in found]
    for row in (r for run in runs for r in run["rows"]):
        row["q"], row["g"], row["k"] = asked[row["i"]]
    return runs


def test_page_is_sound_and_loads_nothing(page: str) -> None:
    reader = Reader(page)
    assert not reader.open
    assert not {"link", "img", "iframe", "object", "embed", "image", "base", "audio", "video"} & set(reader.tags)
    bad = [n for n, _ in reader.attributes if n in ("src", "srcset", "xlink:href") or n.startswith("on")]
    assert not bad
    assert all(v.startswith("#") for n, v in reader.attributes if n == "href")
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    ids = [v for n, v in reader.attributes if n == "id"]
    assert len(ids) == len(set(ids))
    leads = {v[1:] for n, v in reader.attributes if n == "href" and not v.startswith("#sample=")}
    assert leads <= set(ids)


def test_only_the_script_that_the_policy_names_may_run(page: str) -> None:
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, flags=re.DOTALL)
    ours = [body for attributes, body in scripts if not attributes]
    assert len(ours) == 1 and all("octet-stream" in a for a, _ in scripts if a)
    digest = base64.b64encode(hashlib.sha256(ours[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page and "base-uri 'none'" in page
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", ours[0])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcome_is_a_word_with_an_icon(outcome: Outcome, run: Run) -> None:
    words = Reader(render(run, make_verdict(run, outcome))).text
    icon = {"pass": "✓", "fail": "✗", "inconclusive": "?"}[outcome.value]
    assert f"{icon} {outcome.value.capitalize()} " in words[:300]
    start = {"pass": "Yes: all 4 checks pass", "fail": "No: accuracy and reference SGLang fail",
             "inconclusive": "Can't tell yet: accuracy and reference SGLang are inc"}[outcome.value]  # fmt: skip
    assert start in words[:400]


def test_c89_hostile_text_is_inert(tmp_path: Path) -> None:
    run = make_run(30)
    bad = replace(run.samples[0], question=HOSTILE, gold=HOSTILE, text=HOSTILE, category=HOSTILE, pieces=(HOSTILE,),
                  extracted={HOSTILE: HOSTILE, STRICT: HOSTILE}, finish_reason=HOSTILE)  # fmt: skip
    long = replace(run.samples[2], text="x" * 1_000_000, question="</script><svg onload=alert(3)>" * 1000)
    lost = replace(run.samples[1], error=HOSTILE, scores={}, steps=())
    run = replace(run, samples=(bad, lost, long, *run.samples[3:]), id="x" + HOSTILE,
                  cell={**run.cell, "target": HOSTILE, "quant": HOSTILE},
                  provenance={"command": HOSTILE, "host": HOSTILE, "git": {"commit": HOSTILE}})  # fmt: skip
    page = write_page(make_page(run, baseline=make_baseline(make_run(30))), tmp_path / "r.html").read_text("utf-8")
    reader = Reader(page)
    assert not reader.open and "img" not in reader.tags and "alert" not in "".join(reader.tags)
    assert not [n for n, _ in reader.attributes if n.startswith("on")]
    assert [a for a in re.findall(r"<script([^>]*)>", page) if "octet-stream" not in a] == [""]
    assert "<script>alert(1)</script>" in reader.text and "{{ 7*7 }}" in reader.text and "49" not in HOSTILE
    assert "\\u202eevil\\u0000" in page and "\u202e" not in page and "\x00" not in page
    (packed,) = unpacked(page)
    assert (
        "\u202e" not in json.dumps(packed, ensure_ascii=False) and "<script>alert(1)</script>" in packed["rows"][0]["t"]
    )
    assert len(packed["rows"][2]["t"]) < 25_000 and "1,000,000 characters shown" in packed["rows"][2]["t"]


def test_every_sample_is_in_the_page_with_its_text_and_steps(run: Run, page: str) -> None:
    (packed,) = unpacked(page)
    assert packed["run"] == run.id and [r["d"] for r in packed["rows"]] == [s.doc_id for s in run.samples]
    for row, sample in zip(packed["rows"], run.samples, strict=True):
        assert (row["t"], row["q"], row["g"]) == (sample.text, sample.question, sample.gold)
        assert [step[:3] for step in row["n"]] == [[s.k, s.accepted, s.accepted_trimmed] for s in sample.steps]
    assert [r.get("c") for r in packed["rows"][:16]] == ["lost"] * 4 + [None] * 8 + ["gained"] * 3 + [None]
    words = Reader(page).text
    assert "Answers lost (4) and gained (3)" in words and words.index("#3 lost") < words.index("#12 gained")


def test_page_of_a_whole_task_stays_small() -> None:
    run = make_run(1319, wrong=1319)
    huge = replace(run.samples[0], text="<&\"'" * 100_000)
    page = make_page(replace(run, samples=(huge, *run.samples[1:])))
    (packed,) = unpacked(page)
    assert len(page.encode()) < 3_000_000 and len(packed["rows"]) == 1319
    assert "400,000 characters shown; the stored run has all" in packed["rows"][0]["t"]


def test_failed_requests_are_not_wrong_answers() -> None:
    run = make_run(50, wrong=2)
    lost = [replace(s, error="timed out", scores={}, text="", finish_reason="") for s in run.samples[40:]]
    run = replace(run, samples=(*run.samples[:40], *lost))
    page = make_page(run, baseline=make_baseline(run, range(0)))
    words = Reader(page).text
    assert "(38/40)" in words and "2 lost, 0 gained" in words and "failed 10 20.0 %" in words
    assert "timed out 10" in words and "empty 0" in words
    assert [r.get("b") for r in unpacked(page)[0]["rows"]] == [None] * 40 + ["failed"] * 10


@pytest.mark.parametrize("k", [0, 7])
def test_a_run_that_failed_whole_says_so(k: int) -> None:
    run = make_run(20, k)
    dead = tuple(replace(s, error="connection refused", scores={}, steps=(), text="", tokens=0) for s in run.samples)
    words = Reader(make_page(replace(run, samples=dead))).text
    assert "no scored sample" in words and "connection refused 20" in words and "no score" in words


def test_plain_decoding_has_no_acceptance() -> None:
    reader = Reader(make_page(make_run(40, 0)))
    assert "nothing was drafted" in reader.text and "no golden" not in reader.text


def test_counters_without_steps_are_shown_as_what_they_are() -> None:
    run = make_run(40)
    bare = tuple(replace(s, steps=()) for s in run.samples)
    run = replace(run, samples=bare, counters={"spec_accepted_tokens": 1234, "spec_draft_tokens": 4000, "other": 1})
    words = Reader(make_page(run)).text
    assert "spec accepted tokens 1234; spec draft tokens 4000" in words and "no position, histogram" in words


def test_acceptance_is_shown_with_its_band_groups_and_effect(run: Run) -> None:
    kinds = tuple(replace(s, category=f"kind {s.doc_id % 2}") for s in run.samples)
    run = replace(run, samples=kinds)
    golden = make_curve(RECORDED)
    verdict = judge(run, baseline=make_baseline(run), golden=golden, references=REFERENCES)
    page = render(run, verdict, golden=golden)
    words, curve = Reader(page).text, positions(run.samples, 7)
    band = curve[0].survival_band
    assert band is not None and f"{band.low:.4f} .. {band.high:.4f}".replace(" ", "\u00a0") in page
    assert "Accepted length by category" in words and "kind 1" in words
    assert "Accepted length by tokens of the answer" in words
    numbers = next(c.numbers for c in verdict.checks if "wasserstein" in c.numbers)
    assert f"lost at most {numbers['upper']:.3f}" in words and f"margin {numbers['margin']:.3f}" in words
    unjudged = Reader(render(run, None, golden=golden)).text
    assert "against the golden, in tokens a step" not in unjudged


def test_several_runs_are_a_sweep_that_leads_to_each_run() -> None:
    runs = [make_run(60, k, id=f"run-{k}") for k in (3, 5, 7)]
    found = [make_subject(r, make_verdict(r), label=f"K={r.cell['k']}", index=i) for i, r in enumerate(runs)]
    page = render_page(found)
    reader = Reader(page)
    assert "Of 3 runs, 3 can't be told yet" in reader.text and not reader.open
    for i, run in enumerate(runs):
        assert page.count(f'href="#run-{i}"') == 2 and f'id="run-{i}"' in page and run.id in reader.text
    assert len(unpacked(page)) == 3 and 'class="matrix"' in page and 'class="sortable"' in page


def test_c61_real_and_forced_acceptance_on_one_page_is_said_first_and_never_ranked() -> None:
    runs = [make_run(60, id="real"), make_run(60, id="drawn"), make_run(60, id="weak", seed=5)]
    runs[1] = replace(runs[1], samples=tuple(replace(s, forced=True, scores={}) for s in runs[1].samples))
    standards = Standards(golden=None, baseline=None, references=())
    found = subjects([(r, None, standards) for r in runs])
    page, told = render_page(found), page_markdown(found)
    words = "This page mixes real and forced acceptance: K=7 nvfp4 forced was forced"
    assert words in Reader(page).text and words in told and 'class="warning mixed"' in page
    drawn = next(s for s in found if s.run.id == "drawn")
    row = grid.rows(found, best.best_of(found))[drawn.index]
    assert row.length.endswith(" forced") and all(drawn.index not in (b.top, *b.tied) for b in best.best_of(found))
    for alike in (subjects([(runs[1], None, standards)]), subjects([(runs[0], None, standards)])):
        assert "This page mixes" not in render_page(alike)


def test_samples_that_do_not_fit_are_told_and_lie_beside(tmp_path: Path) -> None:
    run = make_run(400, wrong=20)
    path = tmp_path / "r.html"
    found = [make_subject(run, make_verdict(run), baseline=make_baseline(run))]
    page = render_page(found, full="r.samples.jsonl.gz", budget=16_000)
    (packed,) = unpacked(page)
    kept = {r["d"] for r in packed["rows"]}
    assert len(kept) < 400 and set(range(15)) <= kept and max(kept) > 300
    assert f"{len(kept)} of 400 samples are in this page" in Reader(page).text and "r.samples.jsonl.gz" in page
    full = bundle.write_all(found, bundle.beside(path))
    lines = [json.loads(line) for line in gzip.decompress(full.read_bytes()).splitlines()]
    assert len(lines) == 400 and {x["run"] for x in lines} == {run.id} and lines[7]["text"] == run.samples[7].text


def test_a_question_is_in_the_page_once_and_pairs_the_runs() -> None:
    run = make_run(50)
    asked_otherwise = replace(run.samples[7], prompt_hash="0" * 64)
    second = replace(run, id="second", samples=(*run.samples[:7], asked_otherwise, *run.samples[8:]))
    page = render_page([make_subject(r, None, index=i) for i, r in enumerate((run, second))])
    a, b = unpacked(page)
    alike = [x["i"] == y["i"] for x, y in zip(a["rows"], b["rows"], strict=True)]
    assert [i for i, same in enumerate(alike) if not same] == [7]
    assert len({r["i"] for r in (*a["rows"], *b["rows"])}) == 51 and b["rows"][7]["q"] == run.samples[7].question


def test_no_picture_of_a_curve_that_says_it_is_of_other_data_or_another_temperature_stands_beside_a_run(
    run: Run,
) -> None:
    def told(value: GoldenValue) -> Subject:
        return subjects([(run, None, Standards(golden=make_curve(value), baseline=None, references=()))])[0]

    for value, words in (
        (make_golden(dataset="coding"), "data coding / gradeschool"),
        (make_golden(temperature=1.0), "temperature 1"),
    ):
        assert told(value).view.value is None and words in told(value).golden_differs
    assert told(make_golden()).view.value is not None


def test_reproduce_names_commit_set_up_and_command(run: Run) -> None:
    assert again.reproduce(run).splitlines()[:2] == ["git checkout 1234567890abcdef", "make setup"]
    dirty = replace(run, provenance={"git": {"commit": "abc1234", "dirty": True}, "image": "rocm/atom@sha256:12"})
    assert "changes that are in no commit" in again.reproduce(dirty) and "# image: rocm" in again.reproduce(dirty)
    assert "the commit is not recorded" in again.reproduce(replace(run, provenance={}))


@pytest.mark.parametrize(
    "commit", ["HEAD; touch owned", "$(touch owned)", "1234567\ntouch owned", "--help", "abc", "1234567`touch owned`"]
)
def test_what_a_run_says_of_itself_runs_nothing_in_a_shell(run: Run, tmp_path: Path, commit: str) -> None:
    """The lines are pasted into a shell with git, make and evalkit replaced by ones that do nothing."""
    cell = {**run.cell, "target": "x; touch owned", "model": "/srv/$(touch owned)", "task": "`touch owned`"}
    where: dict[str, Any] = {"git": {"commit": commit, "dirty": True}, "image": "a\ntouch owned\r\u2028touch owned"}
    for recorded in (
        None,
        "evalkit run; touch owned\ntouch owned",
        "evalkit 'run\ntouch owned",
        ["$(touch owned)", "\n"],
    ):
        lines = again.reproduce(replace(run, cell=cell, provenance={**where, "command": recorded}))
        assert "commit not usable" in lines and "git checkout" not in lines
        stubs = "git() { :; }; make() { :; }; evalkit() { :; }\n"
        subprocess.run(["sh", "-c", stubs + lines], cwd=tmp_path, capture_output=True, check=False, timeout=20)
        assert list(tmp_path.iterdir()) == []


def test_the_command_is_that_of_the_set_up_and_a_path_of_a_machine_is_told(run: Run) -> None:
    own = {
        **run.cell,
        "target": "other",
        "model": "/srv/models/m3",
        "draft": "x",
        "draft_path": "/a/engine/reference/draft",
    }
    lines = again.reproduce(replace(run, cell=own)).splitlines()
    assert "# /srv/models/m3 is a path of the machine that ran this" in lines
    assert lines[-2] == "make setup" and lines[-1].startswith(".venv/bin/evalkit run ")
    assert "--draft engine/reference/draft" in lines[-1] and sum(line.startswith("# /") for line in lines) == 1


def test_a_folder_is_no_file_to_write_to(run: Run, tmp_path: Path) -> None:
    with pytest.raises(EvalkitError, match="is a folder, not a file") as told:
        write_report([make_subject(run)], tmp_path)
    assert "report.html" in told.value.fix and list(tmp_path.iterdir()) == []


def test_the_first_screen_says_when_how_long_and_from_what(run: Run) -> None:
    one = origin.words([make_subject(run)])
    assert one == (
        "2026-11-30 09:11 UTC", "200 samples", "commit 1234567890ab", "device cpu (Some CPU)", "image not recorded",
    )  # fmt: skip
    later = {"git": {"commit": "fedcba987", "dirty": True}, "started": "2026-12-01T10:00:00+00:00", "image": "a@1",
             "device": "NVIDIA H200"}  # fmt: skip
    two = [make_subject(run), make_subject(replace(run, id="b", provenance=later, samples=run.samples[:1]), index=1)]
    assert origin.words(two) == (
        "2026-11-30 09:11 UTC to 2026-12-01 10:00 UTC", "1 to 200 samples a run",
        "commits 1234567890ab, fedcba987 with changes", "devices cpu (Some CPU), NVIDIA H200",
        "images not recorded, a@1",
    )  # fmt: skip
    bare = replace(run, provenance={}, samples=run.samples[:1])
    assert origin.words([make_subject(bare)])[:3] == ("date not recorded", "1 sample", "commit not recorded")
    head = render_page([make_subject(run)]).split("</header>")[0]
    assert run.id in head and "200 samples" in head and "1234567890ab" in head
    assert "2 runs and their ids" in render_page(two).split("</header>")[0]

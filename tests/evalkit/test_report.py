"""The report: what it says equals its inputs, what is missing is said in words, nothing stored can run in it."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evalkit import stats
from evalkit.acceptance import positions, summarize
from evalkit.baseline import FLEXIBLE, HASH_CHARS, STRICT, Baseline, ReferenceScore, Row
from evalkit.errors import EvalkitError
from evalkit.gate import judge
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Check, Outcome, Run, Sample, StepRecord, Verdict
from evalkit.report import charts, drafts, samples, summary, tables, text
from evalkit.report.render import render, write_page

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil\x00 {{ 7*7 }} \ud800"


def make_sample(i: int, rng: random.Random, k: int, *, right: bool = True) -> Sample:
    gold = str(rng.randint(2, 900))
    answer = gold if right else str(int(gold) + 1)
    steps = []
    for _ in range(rng.randint(8, 16) if k else 0):
        accepted = next((j for j in range(k) if rng.random() > 0.82 - 0.02 * j), k)
        sure = tuple(min(0.99, 0.82 - 0.02 * j + rng.uniform(-0.1, 0.1)) for j in range(k))
        steps.append(StepRecord(k=k, accepted=accepted, accepted_trimmed=accepted, confidence=sure))
    if steps:
        last = steps[-1]
        steps[-1] = replace(last, accepted_trimmed=max(0, last.accepted - 2), cut="stop")
    return Sample(
        doc_id=i,
        doc_hash=hashlib.sha256(f"doc {i}".encode()).hexdigest(),
        prompt_hash=hashlib.sha256(f"prompt {i}".encode()).hexdigest(),
        question=f"Ivan and Olga pay ${i} for a table. They sell 8 beads at $4 each and 6 cups at $3 each and share "
        "the rest equally. How many dollars does each get?",
        gold=gold,
        text=f" The beads bring 8 * 4 = $32.\nThe cups bring 6 * 3 = $18.\nEach gets {answer}.\n#### {answer}",
        finish_reason="stop",
        tokens=45,
        steps=tuple(steps),
        scores={STRICT: float(right), FLEXIBLE: float(right)},
        extracted={STRICT: answer, FLEXIBLE: answer},
    )


def make_run(n: int = 200, k: int = 7, *, wrong: int = 12, seed: int = 3, **changes: Any) -> Run:
    rng = random.Random(seed)
    items = [make_sample(i, rng, k, right=i >= wrong) for i in range(n)]
    base = Run(
        id=f"gradeschool-gradeschool-m3-dspark-k{k}-nvfp4-20261130-0911",
        complete=True,
        cell={"target": "gradeschool-m3", "draft": "dspark" if k else "none", "k": k, "draft_width": "k",
              "quant": "nvfp4", "task": "gradeschool", "shots": None, "temperature": 0.0, "limit": 0, "max_batch": 64},
        fingerprint={"shots": 0, "dtype": "auto", "device": "cpu", "draft_sha": "cd" * 32,
                     "hash": "12" * 32, "target_sha": "ab" * 32, "task_sha": "ef" * 32,
                     "draft_width": "k", "temperature": 0.0},
        provenance={"git": {"commit": "1234567890abcdef", "dirty": False}, 
                    "versions": {"torch": "2.13.0", "triton": ""},
                    "cpu": "Some CPU", "started": "2026-11-30T09:11:00+00:00"},
        samples=tuple(items),
        expected=n,
        task_size=n,
        seconds=133.4,
        output_tokens=45 * n,
    )  # fmt: skip
    return replace(base, **changes)


def make_baseline(run: Run, wrong: range = range(4, 15)) -> Baseline:
    rows = {
        s.doc_hash[:HASH_CHARS]: Row(s.prompt_hash[:HASH_CHARS], int(s.doc_id not in wrong), int(s.doc_id not in wrong))
        for s in run.samples
    }
    marks = {key: run.fingerprint[key] for key in ("target_sha", "task_sha")}
    return Baseline(run_id="base-k0", target="gradeschool-m3", task="gradeschool", rows=rows, fingerprint=marks,
                    source="gradeschool-m3_gradeschool.baseline.json")  # fmt: skip


def make_golden(k: int = 7, length: float = 4.04, **more: Any) -> GoldenValue:
    return GoldenValue(k=k, accepted_length=length, mode="thinking_off", source="gradeschool-m3_dspark.yaml", **more)


def make_curve(*values: GoldenValue) -> Curve:
    by_k = {v.k: v for v in values}
    return Curve(model="gradeschool-m3", source="gradeschool-m3_dspark.yaml", values={"thinking_off": by_k})


RECORDED = make_golden(se=0.03, clusters=1319, steps=15000, interval=(3.98, 4.10),
                       histogram=(3000, 2300, 1800, 1500, 1300, 1000, 900, 3200))  # fmt: skip
REFERENCES = (
    ReferenceScore(name="embedded float32", target="gradeschool-m3", task="gradeschool", shots=0, metric=STRICT,
                   score=0.9431, n=1319, correct=1244, stderr=0.0064, gates=False,
                   source="model card", protocol="zero-shot, greedy"),
    ReferenceScore(name="SGLang", target="minimax-m3.1-flash", task="gsm8k", shots=5, metric=STRICT,
                   score=0.9598, n=1319, correct=1266, stderr=0.0054, gates=True,
                   source="SGLang CI", protocol="5-shot, chat template"),
)  # fmt: skip


def make_verdict(run: Run, outcome: Outcome = Outcome.INCONCLUSIVE) -> Verdict:
    """A verdict of the shape that the gate gives; the page must not depend on which checks there are."""
    found = "strict-match 0.9400 (188/200)"
    checks = (
        Check(name="completeness", outcome=Outcome.PASS, expected="all samples, each once", 
              found=f"{len(run.samples)} samples",
              message="the whole task, each sample once", numbers={"found": len(run.samples)}),
        Check(name="accuracy", outcome=outcome, expected="strict-match at most 1 pt below the baseline",
              found=found, message=f"{found} against baseline 0.9450 (189/200), 200 paired, 4 lost and 3 won: -0.5 pt, "
              "p 0.36 for a loss under 1 pt; 2,141 questions would settle this one",
              numbers={"paired": 200}),
        Check(name="accepted length", outcome=Outcome.PASS, expected="at most 5 % below golden",
              found="accepted length 4.1", message="ratio 1.01, 90 % 0.99 .. 1.03, p 0.0001 for a loss under 5 %"),
        Check(name="reference SGLang", outcome=outcome, expected="at most 2 pt below 0.9598", found="0.9400",
              message="unpaired", numbers={"paired": 0}),
    )  # fmt: skip
    return Verdict(outcome=outcome, checks=checks, run_id=run.id, notes=("protocol of SGLang: 5-shot",))


def make_page(run: Run, **more: Any) -> str:
    return render(run, make_verdict(run), acceptance=summarize(run.samples, run.cell["k"]), **more)


class Reader(HTMLParser):
    """The tags of a page, its visible text, and what its attributes would load."""

    VOID = ("meta", "link", "img", "br", "line", "rect", "circle", "path", "polyline")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run()


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return make_page(run, golden=RECORDED, baseline=make_baseline(run), references=REFERENCES)


def test_page_says_what_its_inputs_say(run: Run, page: str) -> None:
    words, found = Reader(page).text, summarize(run.samples, 7)
    assert "0.9400 ± 0.0168 (188/200)" in words and "0.8981 .. 0.9653" in words
    assert "0.9450 ± 0.0162 (189/200)" in words and "4 lost, 3 gained" in words and "-0.0050" in words
    assert f"{found.steps:,}" in words and f"{found.accepted_length:.3f}" in words
    assert f"{found.accepted_length_trimmed:.3f}" in words and f"{found.acceptance_rate:.4f}" in words
    assert "4.040" in words and "w=float32 act=float32 kv=nvfp4" in words and "200 of 200" in words
    for i, steps in enumerate(found.histogram):
        assert re.search(rf"\b{i} {steps:,} {steps / found.steps:.4f} ", words)
    assert "no: it is of target minimax-m3.1-flash, this run of gradeschool-m3" in words
    assert "evalkit run --task gradeschool --draft dspark --k 7 --quant nvfp4" in words
    assert "torch 2.13.0, triton absent" in words and "dirty no" in words and run.id in words


def test_page_is_sound_and_loads_nothing(page: str) -> None:
    reader = Reader(page)
    assert not reader.open
    assert not {"script", "link", "img", "iframe", "object", "embed", "image", "use", "base", "form"} & set(reader.tags)
    assert not [n for n, v in reader.attributes if n in ("src", "srcset", "xlink:href", "style") or n.startswith("on")]
    assert all(v.startswith("#") for n, v in reader.attributes if n == "href")
    assert "http:" not in page and "https:" not in page and "@import" not in page and "url(" not in page
    ids = [v for n, v in reader.attributes if n == "id"]
    assert len(ids) == len(set(ids)) and {v[1:] for n, v in reader.attributes if n == "href"} <= set(ids)


@pytest.mark.parametrize("k", [0, 6, 7])
@pytest.mark.parametrize("baseline", [False, True])
def test_nothing_is_shown_as_none_or_nan(k: int, baseline: bool) -> None:
    run = make_run(40, k)
    words = Reader(make_page(run, baseline=make_baseline(run) if baseline else None)).text
    assert not re.search(r"\b(None|nan|NaN|inf|Undefined)\b", words)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcome_is_a_word_with_an_icon(outcome: Outcome, run: Run) -> None:
    words = Reader(render(run, make_verdict(run, outcome), acceptance=None)).text
    icon = {"pass": "✓", "fail": "✗", "inconclusive": "?"}[outcome.value]
    assert f"{icon} {outcome.value} " in words[:200]


def test_hostile_text_is_inert(tmp_path: Path) -> None:
    run = make_run(30)
    bad = replace(run.samples[0], question=HOSTILE, gold=HOSTILE, text=HOSTILE,
                  extracted={HOSTILE: HOSTILE, STRICT: HOSTILE}, finish_reason=HOSTILE)  # fmt: skip
    lost = replace(run.samples[1], error=HOSTILE, scores={}, steps=())
    run = replace(run, samples=(bad, lost, *run.samples[2:]), id="x" + HOSTILE, cell={**run.cell, "target": HOSTILE},
                  provenance={"command": HOSTILE, "host": HOSTILE})  # fmt: skip
    out = write_page(render(run, make_verdict(run), acceptance=summarize(run.samples)), tmp_path / "r.html")
    page = out.read_text(encoding="utf-8")
    reader = Reader(page)
    assert not reader.open and "script" not in reader.tags and "img" not in reader.tags
    assert not [n for n, _ in reader.attributes if n.startswith("on")]
    assert "<script>alert(1)</script>" in reader.text and "&lt;script&gt;" in page and "{{ 7*7 }}" in reader.text
    assert "\\u202eevil\\u0000" in page and "\u202e" not in page and "\x00" not in page


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


def test_plain_decoding_has_no_acceptance() -> None:
    reader = Reader(make_page(make_run(40, 0)))
    assert "nothing was drafted" in reader.text and "no golden" not in reader.text and "svg" not in reader.tags


def test_a_draft_that_never_proposed_is_said() -> None:
    run = make_run(40)
    run = replace(run, samples=tuple(replace(s, steps=()) for s in run.samples))
    assert "No verify step was counted in this run of K=7" in Reader(make_page(run)).text


def test_failed_requests_are_not_wrong_answers() -> None:
    run = make_run(50, wrong=2)
    lost = [replace(s, error="timed out", scores={}, text="", finish_reason="") for s in run.samples[40:]]
    run = replace(run, samples=(*run.samples[:40], *lost))
    words = Reader(make_page(run, baseline=make_baseline(run, range(0)))).text
    assert "(38/40)" in words and "2 lost, 0 gained" in words and "failed 10 20.0 %" in words
    assert "lost: 2 samples" in words and "failed: 10 requests" in words and "#49" in words and "empty 0" in words


def test_subset_incomplete_and_forced_are_said(run: Run) -> None:
    words = Reader(make_page(replace(run, task_size=1319))).text
    assert "subset: cannot certify (200 of the task's 1319" in words
    words = Reader(make_page(replace(run, samples=run.samples[:150], complete=False))).text
    assert "incomplete: cannot certify (150 of 200" in words and "not run 50 25.0 %" in words
    forced = replace(run, samples=tuple(replace(s, forced=True) for s in run.samples))
    assert "forced acceptance: cannot certify" in Reader(make_page(forced)).text


def test_samples_are_all_there_lost_first(run: Run, page: str) -> None:
    words = Reader(page).text
    heads = ["lost: 4 samples", "both wrong: 8 samples", "gained: 3 samples"]
    assert [words.index(h) for h in heads] == sorted(words.index(h) for h in heads)
    for doc_id in range(15):
        assert f"#{doc_id} " in words
    assert "#15 " not in words
    groups = samples.changed_samples(run, make_baseline(run))
    assert groups[0].samples[0].completion == run.samples[0].text
    steps = run.samples[0].steps
    assert f"{1 + sum(s.accepted for s in steps) / len(steps):.3f} over {len(steps)} steps" in words


def test_page_of_a_whole_task_stays_small() -> None:
    run = make_run(1319, wrong=1319)
    huge = replace(run.samples[0], text="<&\"'" * 100_000)
    page = make_page(replace(run, samples=(huge, *run.samples[1:])))
    assert len(page.encode()) < 3_000_000 and "400,000 characters shown; the stored run has all" in page
    assert page.count('class="sample"') == 1319
    assert f"#### {run.samples[5].extracted[STRICT]}</pre>" in page  # only the long text is cut


def test_report_is_written_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    verdict = make_verdict(run)
    assert write_page(render(run, verdict, acceptance=None), path) == path
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(EvalkitError, match="cannot write"):
        write_page(render(run, verdict, acceptance=None), tmp_path / "new")
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


def test_charts_draw_what_they_are_given() -> None:
    chart = charts.histogram([0.25, 0.75], [0.5, 0.5])
    assert chart.count('class="bar"') == 2 and chart.count('class="golden"') == 2 and ">75.0<" in chart
    assert 'class="golden"' not in charts.histogram([1.0], [])
    assert charts.survival([0.9, 0.5], [0.8, None]).count('class="golden"') == 1
    banded = charts.survival([0.9, 0.5], [], [stats.Interval(0.85, 0.93), stats.Interval(0.4, 0.6)])
    assert banded.count('class="band"') == 1 and banded.count('class="whisker"') == 2
    assert 'class="band"' not in charts.survival([0.9], [], [None])


def test_acceptance_is_shown_with_its_band_groups_and_effect(run: Run) -> None:
    kinds = tuple(replace(s, category=f"kind {s.doc_id % 2}") for s in run.samples)
    run = replace(run, samples=kinds)
    golden = make_curve(RECORDED)
    verdict = judge(run, baseline=make_baseline(run), golden=golden, references=REFERENCES)
    page = render(run, verdict, acceptance=summarize(run.samples, 7), golden=golden)
    words, curve = Reader(page).text, positions(run.samples, 7)
    assert page.count('class="whisker"') == 7 and "95 % band of all positions at once" in words
    band = curve[0].survival_band
    assert band is not None and f"{band.low:.4f} .. {band.high:.4f}".replace(" ", "\u00a0") in page
    assert "<details><summary>Accepted length by category" in page and "kind 1" in words
    assert "<details><summary>Accepted length by tokens of the answer" in page
    numbers = next(c.numbers for c in verdict.checks if "wasserstein" in c.numbers)
    assert f"lost at most {numbers['upper']:.3f}" in words and f"margin {numbers['margin']:.3f}" in words
    unjudged = Reader(render(run, None, acceptance=summarize(run.samples, 7), golden=golden)).text
    assert "against the golden, in tokens a step" not in unjudged


def test_summary_shares_the_words_of_the_page(run: Run, page: str) -> None:
    verdict = make_verdict(run)
    found = summarize(run.samples, 7)
    rows = summary.summary_table(run, found, verdict)
    words = Reader(page).text
    by_name = dict(rows)
    assert by_name[STRICT] in words and by_name["verdict"].split(": ", 1)[1] in words
    assert by_name["generated"] == "9,000 tokens in 2 min 13 s (67 tokens/s)"
    markdown = summary.summary_markdown(run, found, verdict)
    assert markdown.startswith(f"**{verdict.outcome.value}**: ") and f"| {STRICT} | {by_name[STRICT]} |" in markdown
    hostile = summary.summary_markdown(replace(run, id="a|b<script>\n`"), found, None)
    assert "a\\|b&lt;script&gt; \\`" in hostile and "not judged" in hostile


def test_a_verdict_of_the_gate_is_shown_whole(run: Run) -> None:
    inputs: dict[str, Any] = {"baseline": make_baseline(run), "golden": make_curve(RECORDED), "references": REFERENCES}
    verdict = judge(run, **inputs)
    words = Reader(render(run, verdict, acceptance=summarize(run.samples, 7), **inputs)).text
    for check in verdict.checks:
        assert check.message in words and check.expected in words
    assert all(note in words for note in verdict.notes)
    assert re.search(r"strict-match 0.9400 \(188/200\) 200 ", words)  # the pairs


def test_a_run_without_a_gate_says_so(run: Run) -> None:
    words = Reader(render(run, None, acceptance=summarize(run.samples))).text
    assert "not judged" in words[:150] and "No gate was run" in words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not recorded"),
        ({}, "not recorded"),
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
    assert tables.command(replace(run, cell=cell)) == (
        "evalkit run --task gradeschool --model /m/mine --draft /m/d --k 7 --quant nvfp4 --no-prefix-cache"
    )


@pytest.mark.parametrize(
    ("weights", "budget", "limit"), [([5, 5], 20, 5), ([1, 9, 9], 11, 5), ([], 10, 0), ([8], 3, 3)]
)
def test_fair_limit(weights: list[int], budget: int, limit: int) -> None:
    assert text.fair_limit(weights, budget) == limit
    assert sum(min(w, limit) for w in weights) <= budget

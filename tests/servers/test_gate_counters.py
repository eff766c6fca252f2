"""The gate on acceptance that a server counted: it decides, says what from, and never passes on doubtful counts."""

from __future__ import annotations

import hashlib
import html
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit import tables
from evalkit.acceptance import by_answer_length, by_category, counted_positions, of_run
from evalkit.console import run_rows
from evalkit.errors import EvalkitError
from evalkit.gate import judge
from evalkit.golden import Curve, GoldenValue, read_curve, record_curve
from evalkit.outputs.benchmark import write_benchmark
from evalkit.records import Outcome, RequestCounts, Run, Sample, StepRecord
from evalkit.report.render import render
from evalkit.runfile import pack_sample, unpack_sample
from evalkit.servers.counters import Reading
from evalkit.show import run_text

N, K = 120, 4
MARKS = {"target_sha": "t", "draft_sha": "d", "task_sha": "q", "draft_width": "k", "temperature": 0.0}


def slices_of(n: int, length: float, spread: float = 0.05) -> tuple[tuple[int, int], ...]:
    rng = np.random.default_rng(4)
    return tuple((400, int(400 * (length - 1 + rng.normal(0, spread)))) for _ in range(n))


def reading(length: float = 3.0, **words: Any) -> Reading:
    slices = slices_of(20, length)
    steps, accepted = (sum(x[i] for x in slices) for i in range(2))
    known: dict[str, Any] = {
        "kind": "counters", "source": "vllm's /metrics", "k": K, "steps": steps, "accepted": accepted,
        "drafts": K * steps, "slices": slices, "overlap": 0.8, "requests": N, "output_tokens": accepted + steps,
    }  # fmt: skip
    return Reading(**(known | words))


def run_of(found: Reading | None, *, k: int = K, **more: Any) -> Run:
    samples = tuple(
        Sample(doc_id=i, doc_hash=hashlib.sha256(f"{i}".encode()).hexdigest(), prompt_hash="p", question="q", gold="1",
               text="#### 1", finish_reason="stop", tokens=30, scores={"strict-match": 1.0, "flexible-extract": 1.0},
               **more)
        for i in range(N)
    )  # fmt: skip
    cell = {"target": "m", "draft": "dspark", "task": "t", "k": k, "quant": "fp8", "temperature": 0.0, "server": {}}
    return Run(id="r", complete=True, cell=cell, fingerprint=MARKS, provenance={}, samples=samples, expected=N,
               task_size=N, counters={"acceptance": found.to_json()} if found else {})  # fmt: skip


def golden(length: float) -> Curve:
    value = GoldenValue(k=K, accepted_length=length, mode="thinking_off", source="g.yaml", se=0.01, clusters=500,
                        fingerprint=MARKS)  # fmt: skip
    return Curve(model="m", source="g.yaml", values={"thinking_off": {K: value}})


def checks(run: Run, curve: Curve | None = None) -> dict[str, Any]:
    return {c.name: c for c in judge(run, baseline=None, golden=curve).checks}


@pytest.mark.parametrize(
    ("length", "outcome"), [(3.0, Outcome.PASS), (3.6, Outcome.FAIL), (3.16, Outcome.INCONCLUSIVE)]
)
def test_counters_decide_against_a_golden_value(length, outcome):
    found = checks(run_of(reading()), golden(length))
    assert found["acceptance source"].outcome is Outcome.PASS
    assert found["accepted length"].outcome is outcome and "20 pieces of time" in found["accepted length"].message


@pytest.mark.parametrize("words", [
    {"problems": ("the server was restarted",)}, {"requests": N // 2}, {"k": 3, "drafts": 3 * 8000},
])  # fmt: skip
def test_doubtful_counters_never_pass(words):
    run = run_of(reading(**words))
    assert checks(run, golden(3.0))["acceptance source"].outcome is Outcome.INCONCLUSIVE
    assert judge(run, baseline=None, golden=golden(3.0)).outcome is not Outcome.PASS


def test_counters_without_a_spread_are_inconclusive():
    found = checks(run_of(reading(slices=(), overlap=1.0)), golden(3.0))["accepted length"]
    assert found.outcome is Outcome.INCONCLUSIVE and "show no spread" in found.message


def test_c45_no_counters_fail_and_counters_that_contradict_are_no_figure():
    assert checks(run_of(None))["acceptance source"].outcome is Outcome.FAIL
    broken = reading(accepted=10**6, problems=("expected 0 <= accepted <= drafts",))
    assert of_run(run_of(broken)).accepted_length is None
    assert checks(run_of(broken))["acceptance source"].outcome is Outcome.FAIL


def test_c55_a_draft_that_does_nothing_is_seen_in_counters():
    dead = reading(accepted=0, slices=tuple((400, 0) for _ in range(20)))
    assert checks(run_of(dead), golden(3.0))["draft"].outcome is Outcome.FAIL


def test_forced_counters_are_seen_by_their_histogram():
    steps = 8000
    forced = reading(
        steps=steps, accepted=2 * steps + 320, drafts=4 * steps, survival=(steps, steps, 320, 0), slices=()
    )
    assert checks(run_of(forced), golden(3.04))["real acceptance"].outcome is Outcome.FAIL


def test_totals_of_each_request_are_clustered_by_document():
    run = run_of(None, counts=RequestCounts(steps=10, accepted=19, drafts=40))
    found = of_run(run)
    assert (found.source, found.accepted_length, found.clusters) == ("totals of each request", 2.9, N)
    assert checks(run, golden(2.9))["accepted length"].outcome is Outcome.PASS
    with pytest.raises(EvalkitError, match="expected 0 <= accepted"):
        of_run(run_of(None, counts=RequestCounts(steps=10, accepted=50, drafts=40)))


def test_k_0_of_a_server_has_no_acceptance_to_judge():
    assert "acceptance source" not in checks(run_of(None, k=0))


def test_what_is_shown_says_where_it_is_from(tmp_path):
    run = run_of(reading(survival=()))
    assert ("acceptance", "from counters of vllm's /metrics") in run_rows(run)
    assert "counters of vllm's /metrics" in run_text(run)
    sample = run_of(None, counts=RequestCounts(steps=1, accepted=2, drafts=4), attempts=3, reasoning="hm").samples[0]
    assert unpack_sample(pack_sample(sample), tmp_path)[0] == sample


def by_request() -> Run:
    """A run whose server tells totals of each request; long answers have less accepted."""
    made = run_of(None)
    samples = tuple(
        replace(s, tokens=20 + 60 * (i % 2), category=f"kind {i % 2}",
                counts=RequestCounts(steps=10, accepted=24 - 12 * (i % 2), drafts=40))
        for i, s in enumerate(made.samples)
    )  # fmt: skip
    return replace(made, samples=samples)


def test_totals_of_each_request_are_shown_by_length_and_category_and_nothing_untold_as_0():
    run = by_request()
    short, long = by_answer_length(run.samples, K)
    assert (short.accepted_length, long.accepted_length, short.steps) == (3.4, 2.2, 10 * N // 2)
    assert [g.accepted_length for g in by_category(run.samples, K)] == [3.4, 2.2] and short.survival == ()
    shown = run_text(run)
    assert "0 to 31" in shown and "3.400" in shown and "kind 1" in shown
    assert "useful K" not in shown and "0 at a stop" not in shown and "by position" not in shown
    assert "not told: those cut, those without a draft" in shown


def by_position() -> Reading:
    """Counters that tell accepted drafts by position too."""
    counted = reading().accepted
    return reading(survival=(6000, 4500, 3500, counted - 14000))


def test_counters_are_shown_by_position_without_a_band():
    run = run_of(by_position())
    first, *_ = counted_positions(of_run(run))
    assert (first.survival, first.survival_band) == (of_run(run).survival[0], None)
    shown = run_text(run)
    row = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["1"])
    assert "by position" in shown and row[:4] == ["1", str(first.steps), f"{first.survival:.4f}", "none"]
    assert "bands hold" not in shown
    assert "by tokens of the answer" not in shown and "0 at a stop" not in shown


@pytest.mark.parametrize("run", [by_request(), run_of(by_position()), run_of(reading())],
                         ids=["totals", "counters", "no positions"])  # fmt: skip
def test_the_page_of_a_server_has_its_accepted_length_and_says_what_is_not_told(run: Run):
    found, page = of_run(run), render(run, None)
    part = page[page.index('id="acceptance"') : page.index('id="samples"')]
    assert f"{found.accepted_length:.3f}" in part and found.source in html.unescape(part)
    assert "steps without a draft and steps cut are not told" in part and "No block was cut" not in part
    assert ("tells no single steps" in part) == (not found.histogram)
    assert ("Accept rate by position" in part) == bool(found.histogram)
    assert ("of all requests together only" in part) == (found.source != "totals of each request")
    assert "no verify step" not in part and "accepted length, trimmed" not in part


@pytest.mark.parametrize("run", [by_request(), run_of(reading())], ids=["totals", "counters"])
def test_what_other_programs_read_has_a_servers_accepted_length(run: Run, tmp_path):
    length, verdict = of_run(run).accepted_length, judge(run, baseline=None, golden=golden(3.0))

    def written(one: Run) -> list[float]:
        file, _ = write_benchmark([verdict], [one], tmp_path / "b.json")
        return [e["value"] for e in json.loads(file.read_text()) if e["name"].endswith("accepted length")]

    assert length is not None and written(run) == [round(length, 6)]
    frame = tables.runs([run])
    assert frame["accepted_length"].tolist() == [length]
    assert frame["acceptance_from"].tolist() == [of_run(run).source]
    doubt = reading(problems=("the server was restarted", "3 replies: its acceptance can't be read"))
    assert not written(replace(run, counters={"acceptance": doubt.to_json()})), "doubtful counts are no figure"


def recorded(run: Run, path: Any) -> GoldenValue:
    record_curve([replace(run, fingerprint={**run.fingerprint, "quant": "fp8"})], path)
    return read_curve(path, "m").values["thinking_off"][K]


def test_a_golden_of_counters_has_the_spread_of_pieces_of_time(tmp_path):
    """What a server that only counts can say is recorded: length, spread, positions where they are told; no more."""
    steps = reading().steps
    survival = (steps, *(round(steps * s) for s in (0.6, 0.3)))
    accepted = reading().accepted
    found = reading(survival=(*survival, accepted - sum(survival)))
    value = recorded(run_of(found), tmp_path / "m_dspark.yaml")
    stats = of_run(run_of(found))
    assert value.accepted_length == round(1 + accepted / steps, 4) and value.se == pytest.approx(stats.se, abs=1e-6)
    assert value.clusters == 20 and value.histogram == stats.histogram and value.covariance is None
    assert value.counters is not None and value.counters["pieces_of_time"] == 20
    assert "accepted_trimmed" not in value.counters
    again = checks(run_of(found), read_curve(tmp_path / "m_dspark.yaml", "m"))["accepted length"]
    assert again.outcome is Outcome.PASS
    plain = recorded(run_of(reading()), tmp_path / "plain_dspark.yaml")
    assert plain.histogram is None and plain.accepted_length == value.accepted_length


@pytest.mark.parametrize(("words", "said"), [
    ({"problems": ("the server was restarted",)}, "has doubtful acceptance (the server was restarted): no golden"),
    ({"slices": (), "overlap": 1.0}, "which show no spread over so short a run: no golden"),
])  # fmt: skip
def test_doubtful_or_short_counters_are_no_golden_and_say_why(tmp_path, words, said):
    with pytest.raises(EvalkitError) as e:
        recorded(run_of(reading(**words)), tmp_path / "m_dspark.yaml")
    assert said in e.value.what and e.value.fix and not list(tmp_path.iterdir())


def test_replies_that_tell_more_than_the_counters_are_no_evidence():
    """Counters may hold more than replies (steps behind a stop string), never less."""
    steps = (StepRecord(k=K, accepted=2, accepted_trimmed=2), StepRecord(k=K, accepted=1, accepted_trimmed=1))
    slices = {"slices": (), "overlap": 1.0, "drafts": 4 * 2 * N}
    exact = run_of(reading(steps=2 * N, accepted=3 * N, **slices), steps=steps)
    assert of_run(exact).source == "steps" and of_run(exact).problems == ()
    short = run_of(reading(steps=2 * N, accepted=3 * N - 1, **slices), steps=steps)
    (problem,) = of_run(short).problems
    assert "360 accepted drafts in 240 verify steps" in problem and "one of them lies" in problem
    assert checks(short)["acceptance source"].outcome is Outcome.INCONCLUSIVE
    half = run_of(reading(steps=N, accepted=N, requests=N // 2, **slices), steps=steps)
    assert of_run(half).problems == (), "the counters of a session whose server died are lost"
    restarted = run_of(reading(steps=5, accepted=5, problems=("the server was restarted",), slices=()), steps=steps)
    assert of_run(restarted).problems == ()


def test_an_answer_without_any_draft_is_no_answer_without_its_acceptance():
    """n-grams find nothing in some texts: the reply says so, and that is told apart from a reply that says nothing."""
    steps = (StepRecord(k=K, accepted=2, accepted_trimmed=2),)
    run = run_of(None, steps=steps)
    none = replace(run.samples[0], steps=(), counts=RequestCounts(steps=0, accepted=0, drafts=0))
    silent = replace(run.samples[0], steps=())
    assert of_run(replace(run, samples=(none, *run.samples[1:]))).problems == ()
    (problem,) = of_run(replace(run, samples=(silent, *run.samples[1:]))).problems
    assert problem == f"1 of {N} answers came without their acceptance"


def test_counters_are_taken_where_replies_are_incomplete():
    """vLLM tells no steps of an answer that a stop string ended: sound counters of all answers are better."""
    steps = (StepRecord(k=K, accepted=2, accepted_trimmed=2),)
    run = run_of(reading(), steps=steps)
    half = tuple(replace(s, steps=()) if s.doc_id % 2 else s for s in run.samples)
    found = of_run(replace(run, samples=half))
    assert found.source == "counters of vllm's /metrics" and found.problems == () and found.longest_answer == 30
    doubtful = run_of(reading(problems=("the server was restarted",)), steps=steps)
    (problem,) = of_run(replace(doubtful, samples=half)).problems
    assert problem == "60 of 120 answers came without their acceptance"

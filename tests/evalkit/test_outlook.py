"""What is said before a run: what it can show, how often a sound setting passes, what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit import stats
from evalkit.baseline import HASH_CHARS, Baseline, ReferenceScore, Row
from evalkit.gate import GateSpec
from evalkit.harness import Prompt
from evalkit.outlook import cost_words, gpu_count, outlook
from evalkit.store import RunHead
from tests.evalkit.verdicts import sha

MARKS = {"target_sha": "t", "task_sha": "q"}


def prompts(n: int) -> list[Prompt]:
    return [
        Prompt(doc_id=i, doc_hash=sha(f"d{i}"), prompt_hash=sha(f"p{i}"), text="?", question="?", gold="1")
        for i in range(n)
    ]


def head(n: int, size: int = 0, **cell: Any) -> RunHead:
    known = {"target": "m", "task": "gsm8k", "draft": "dspark", "k": 7, "quant": "nvfp4", "shots": 5, "tp": 1}
    return RunHead(cell={**known, **cell}, fingerprint={**MARKS, "device": "cpu"}, provenance={"device": "MI355X"},
                   expected=n, task_size=size or n)  # fmt: skip


def baseline(n: int, wrong: int = 21, **marks: str) -> Baseline:
    rows = {p.doc_hash[:HASH_CHARS]: Row(p.prompt_hash[:HASH_CHARS], int(p.doc_id >= wrong), 1) for p in prompts(n)}
    return Baseline(run_id="b", target="m", task="gsm8k", rows=rows, fingerprint={**MARKS, **marks}, source="b.json")


def reference(**more: Any) -> ReferenceScore:
    known: dict[str, Any] = {"name": "sglang", "target": "m", "task": "gsm8k", "shots": 5, "metric": "strict-match",
                             "score": 0.9598, "n": 1319, "correct": 1266, "stderr": None, "gates": True,
                             "source": "s", "protocol": "p"}  # fmt: skip
    return ReferenceScore(**(known | more))


def said(n: int = 1319, *, of: RunHead | None = None, spec: GateSpec | None = None, **more: Any) -> str:
    known: dict[str, Any] = {"baseline": baseline(n), "references": ()}
    return "\n".join(outlook(of or head(n), prompts(n), spec=spec or GateSpec(), **(known | more)))


def test_a_whole_run_says_the_loss_that_it_shows_and_how_often_a_sound_setting_passes() -> None:
    words = said()
    assert "show a loss of 0.97 pt with 80 % power if 2 % of the answers flip without one (assumed)" in words
    assert "passes the margin of 1 pt in 78 of 100 runs" in words and "about" not in words


@pytest.mark.parametrize(("n", "margin", "passes", "needed"), [(200, 0.01, 21, 1397), (1319, 0.005, 34, 5131)])
def test_a_plan_without_power_says_so_and_what_would_do(n: int, margin: float, passes: int, needed: int) -> None:
    words = said(n, spec=GateSpec(accuracy_margin=margin))
    assert f"in {passes} of 100 runs: about {needed} questions, or a wider --margin, would make that 80" in words


def test_a_subset_and_a_baseline_that_does_not_fit_are_told_before_the_run() -> None:
    part = said(8, of=head(8, 1319))
    assert "8 of the task's 1319 questions: such a run can fail, it can never pass" in part
    assert "show a loss of" in part and "passes the margin" not in part
    assert "no baseline to compare with, so the verdict can fail and not pass" in said(baseline=None)
    assert "another setting (target_sha other / t)" in said(baseline=baseline(1319, target_sha="other"))
    assert "1300 of 1319 prompts are the same" in said(baseline=baseline(1300))
    assert said(of=head(1319, k=0), baseline=None) == "", "plain decoding becomes the baseline itself"
    assert said(of=head(1319, verify="forced")) == "", "nothing of it is scored"


def test_a_published_score_is_told_unpaired_and_only_where_it_gates() -> None:
    words = said(references=[reference()])
    assert "unpaired, strict-match shows a loss of 1.9 pt with 80 % power" in words
    assert "margin of 2 pt in 83 of 100 runs" in words
    for other in (reference(target="x"), reference(shots=8), reference(gates=False)):
        assert "unpaired" not in said(references=[other])


def old(n: int = 1319, seconds: float = 1200.0, **more: Any) -> dict[str, Any]:
    known = {"id": f"run-{n}", "complete": True, "seconds": seconds, "samples": n, "cell": head(n).cell,
             "provenance": {"device": "MI355X", "started": "2026-11-30"}}  # fmt: skip
    return {**known, **more}


def test_time_and_gpu_minutes_come_from_the_newest_stored_run_of_the_setting() -> None:
    runs = [old(), old(seconds=600.0, id="newer", provenance={"device": "MI355X", "started": "2026-12-01"})]
    assert cost_words(head(1319), runs) == "about 10 min 00 s, by run newer"
    assert cost_words(head(660, limit=660), runs).startswith("about 5 min"), "in proportion"
    assert "no baseline" not in said(stored=runs) and "about 10 min 00 s" in said(stored=runs)
    on_gpus = replace(head(1319, tp=4), fingerprint={"device": "cuda"})
    four = [old(cell=on_gpus.cell)]
    assert cost_words(on_gpus, four) == "about 20 min 00 s, 80 GPU-minutes on 4 GPUs, by run run-1319"


@pytest.mark.parametrize(
    "more",
    [
        {"complete": False}, {"stopped": "success after 300"}, {"seconds": 0.0}, {"samples": 100},
        {"provenance": {"device": "B300"}}, {"cell": head(1319, quant="fp8").cell},
        {"cell": head(1319, server={"engine": "vllm", "concurrency": 64, "tp": 4}).cell},
    ],
)  # fmt: skip
def test_a_run_of_another_kind_says_nothing_of_the_time(more: dict[str, Any]) -> None:
    assert cost_words(head(1319), [old(**more)]) == ""


def test_gpus_of_a_server_are_known_where_it_was_started_here() -> None:
    assert gpu_count({"server": {"tp": 4, "base_url": ""}}, {"device": "server"}) == 4
    assert gpu_count({"server": {"tp": 1, "base_url": "http://x"}}, {"device": "server"}) == 0
    assert gpu_count({"tp": 2}, {"device": "cpu"}) == 0


@pytest.mark.stat
@pytest.mark.parametrize(("n", "share", "margin"), [(1319, 0.02, 0.01), (1319, 0.05, 0.01), (500, 0.02, 0.02)])
def test_the_power_that_is_told_is_that_of_the_gates_own_test(n: int, share: float, margin: float) -> None:
    """Seed 1; 2000 simulated runs have a standard error under 1.2 points, the formula is at most 2 off: with 5 errors
    allowed beyond that, a false alarm is under 1e-6."""
    draws = np.random.default_rng(1).multinomial(n, [share / 2, share / 2, 1 - share], size=2000)
    passed = np.mean([stats.tango_test(int(up), int(down), n, -margin).p_above <= 0.05 for up, down, _ in draws])
    assert abs(passed - stats.power_noninferior(n, share, margin)) < 0.02 + 5 * 0.012


def test_pairs_needed_are_the_fewest_that_do() -> None:
    for share, margin in ((0.02, 0.01), (0.05, 0.02), (0.0, 0.01)):
        n = stats.needed_noninferior(share, margin)
        assert stats.power_noninferior(n, share, margin) >= 0.8
        assert n == 1 or stats.power_noninferior(n - 1, share, margin) < 0.8
    with pytest.raises(ValueError, match="margin is 0"):
        stats.needed_noninferior(0.02, 0.0)

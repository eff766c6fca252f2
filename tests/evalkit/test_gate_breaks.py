"""The engine broken on purpose, and a check of the gate that says so by name. A tiny random target and draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine import verify
from engine.api import Completion, Request, SamplingParams
from engine.verify import Decision, accept_greedy, accept_sampled
from evalkit.gate import GateSpec, judge
from evalkit.records import Check, Outcome, Run, StepRecord
from tests.engine.tiny import Tiny, build
from tests.evalkit.test_gate import make_run, named
from tests.evalkit.test_gate_checks import full_run, told

N, K = 60, 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return build(tmp_path_factory.mktemp("tiny"))


def completions(tiny: Tiny, *, n: int = N, temperature: float = 0.0, **settings: Any) -> list[Completion]:
    """Of short prompts; speculative and plain runs draw with other seeds, as two runs of a user might."""
    first = 0 if settings.get("k") else 10_000
    ask = [
        Request(
            id=str(i),
            prompt=tuple(3 + (i * 7 + j * j) % 40 for j in range(6)),
            params=SamplingParams(max_tokens=24, temperature=temperature, seed=first + i),
        )
        for i in range(n)
    ]
    return tiny.llm(**{"max_batch": 32, "gaps": True, **settings}).generate(ask)


def as_run(found: Sequence[Completion], k: int, quant: str = "float32", temperature: float = 0.0) -> Run:
    samples = tuple(
        dataclasses.replace(
            told(i, tuple(map(str, c.token_ids))), gaps=c.gaps, tokens=len(c.token_ids),
            steps=tuple(StepRecord(k=s.k, accepted=s.accepted, accepted_trimmed=s.accepted_trimmed) for s in c.steps),
        )
        for i, c in enumerate(found)
    )  # fmt: skip
    base = full_run(quant=quant, dtype="float32", temperature=temperature)
    cell = {**base.cell, "k": k, "quant": quant, "temperature": temperature}
    made = dataclasses.replace(base, id=f"k{k}", cell=cell, samples=samples, expected=len(samples))
    return dataclasses.replace(made, task_size=len(samples))


def lossless(run: Run, plain: Run) -> Check:
    spec = GateSpec(demands=("lossless",), min_samples=10)
    return named(judge(run, baseline=None, golden=None, plain=plain, spec=spec), "lossless")


def one_more(targets: Any, drafts: Any, counts: Any = None) -> Decision:
    """The verify rule that accepts one draft more than it verified."""
    found = accept_greedy(targets, drafts, counts)
    most = torch.full_like(found.accepted, drafts.shape[1]) if counts is None else counts
    more = torch.minimum(found.accepted + 1, most)
    return Decision(more, targets.gather(1, more[:, None]).squeeze(1))


def test_one_more_draft_accepted_than_verified_is_refused_by_lossless(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = as_run(completions(tiny), 0)
    assert lossless(as_run(completions(tiny, k=K), K), plain).outcome is Outcome.PASS
    monkeypatch.setattr(verify, "accept_greedy", one_more)
    found = lossless(as_run(completions(tiny, k=K), K), plain)
    assert found.outcome is Outcome.FAIL and "in float32 none may; first document" in found.message


def test_a_gap_tells_a_near_tie_from_a_draft_that_was_not_verified(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """In reduced precision a divergence may be rounding: the plain run's gap at its first token says whether it is."""
    words: dict[str, Any] = {"quant": "fp8"}
    plain = as_run(completions(tiny, **words), 0, quant="fp8")
    sound = lossless(as_run(completions(tiny, k=K, **words), K, quant="fp8"), plain)
    assert sound.outcome is Outcome.PASS, sound.message
    monkeypatch.setattr(verify, "accept_greedy", one_more)
    found = lossless(as_run(completions(tiny, k=K, **words), K, quant="fp8"), plain)
    assert found.outcome is Outcome.FAIL and "which rounding does not explain" in found.message
    assert found.numbers["unknown"] == 0 and found.numbers["unexplained"] > 0
    assert "at token " in found.message and "top-two gap" in found.message


def laid_out(found: Sequence[Completion], batch: int) -> Run:
    made = as_run(found, K)
    facts = {"draft_method": "dspark", "draft_sha": "d", "draft_width": "k", "k": K}
    return dataclasses.replace(
        made, id=f"b{batch}", cell={**made.cell, "max_batch": batch}, fingerprint={**made.fingerprint, **facts}
    )


def layout(run: Run, twin: Run) -> Check:
    spec = GateSpec(demands=("layout",), min_samples=10)
    return named(judge(run, baseline=None, golden=None, twin=twin, spec=spec), "layout")


def test_a_fault_that_needs_a_batch_is_refused_by_layout(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain decoding in the same batch it could hide; alone, each request is answered as it should be."""
    alone = laid_out(completions(tiny, k=K, max_batch=1), 1)
    sound = layout(laid_out(completions(tiny, k=K), 32), alone)
    assert sound.outcome is Outcome.PASS and f"{N} of {N} texts are those of batch 32 / 1 in run b1" in sound.message

    def in_batches(targets: Any, drafts: Any, counts: Any = None) -> Decision:
        return (one_more if len(drafts) > 1 else accept_greedy)(targets, drafts, counts)

    monkeypatch.setattr(verify, "accept_greedy", in_batches)
    assert layout(laid_out(completions(tiny, k=K, max_batch=1), 2), alone).outcome is Outcome.PASS
    found = layout(laid_out(completions(tiny, k=K), 32), alone)
    assert found.outcome is Outcome.FAIL and "which rounding does not explain" in found.message
    assert found.numbers["unexplained"] > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "has the same layout (max_batch, concurrency, tp"),
        ({"cell": {"max_batch": 1, "k": 3}, "fingerprint": {"k": 3}}, "of another setting (k 5 / 3)"),
        ({"cell": {"max_batch": 1}, "fingerprint": {"quant": "fp8"}}, "quant float32 / fp8"),
        ({"cell": {"max_batch": 1}, "fingerprint": {"draft_sha": "e"}}, "draft_sha d / e"),
    ],
)
def test_a_run_that_says_nothing_of_a_layout_is_refused_and_where_demanded_a_fail(
    change: dict[str, Any], words: str
) -> None:
    run = laid_out([], 32)
    run = dataclasses.replace(run, samples=make_run(20).samples, expected=20, task_size=20)
    twin = dataclasses.replace(run, id="t", cell={**run.cell, **change.get("cell", {})},
                               fingerprint={**run.fingerprint, **change.get("fingerprint", {})})  # fmt: skip
    found = layout(run, twin)
    assert found.outcome is Outcome.FAIL and words in found.message and "the gate demands it" in found.message
    free = named(judge(run, baseline=None, golden=None, twin=twin), "layout")
    assert free.outcome is Outcome.INCONCLUSIVE
    served = {"server": {"tp": 4, "concurrency": 64}}
    both = [dataclasses.replace(run, cell={**run.cell, "server": {**served["server"], "tp": tp}}) for tp in (2, 4)]
    assert "are those of tp 2 / 4 in run" in layout(*both).message


@pytest.mark.stat
def test_a_skipped_residual_is_refused_by_lossless(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled at temperature 1, 900 prompts; the seeds are fixed, and texts of one law are refused in 0.1 % of them."""
    many: dict[str, Any] = {"n": 900, "temperature": 1.0}
    plain = as_run(completions(tiny, **many), 0, temperature=1.0)
    sound = lossless(as_run(completions(tiny, k=K, **many), K, temperature=1.0), plain)
    assert sound.outcome is Outcome.PASS, sound.message

    def skipped(*args: Any, **words: Any) -> Decision:
        return accept_sampled(*args, **{**words, "residual": False})

    monkeypatch.setattr(verify, "accept_sampled", skipped)
    found = lossless(as_run(completions(tiny, k=K, **many), K, temperature=1.0), plain)
    assert found.outcome is Outcome.FAIL and "the draft changes what is sampled" in found.message


def test_half_of_the_samples_missing_is_refused_by_completeness() -> None:
    half = make_run(200, expected=400, task_size=400)
    assert named(judge(half, baseline=None, golden=None), "completeness").outcome is Outcome.FAIL

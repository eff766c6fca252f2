"""Against the published tiny pair: ids, per-step lists and first blocks that other engines agree on."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, Completion, EngineConfig, Request, SamplingParams
from engine.tokenizer import Tokenizer

DATA = Path(__file__).parents[3] / "shared" / "data" / "tiny_qwen3_dspark"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the conformance pair is not at {DATA}")
MODES = {"k": "T=K", "block": "T=block"}


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "expected.jsonl").read_text().splitlines()]


@cache
def llm(**settings: Any) -> LLM:
    """An LLM for these settings. Stop sets share it, so the second run starts with a warm prefix cache."""
    draft = {"draft": "dspark", "draft_path": DATA / "draft"} if settings.get("k") else {}
    limits = {"threads": 1, "device": "cpu", "max_model_len": 512, "memory_limit_mb": 64}
    return LLM(EngineConfig(model=DATA / "target", **limits, **draft, **settings))


def run(records: list[dict[str, Any]], *, stop: bool, **settings: Any) -> list[Completion]:
    params = [
        SamplingParams(max_tokens=120, stop_token_ids=tuple(r["newline_stop"]["stop_ids"]) if stop else ())
        for r in records
    ]
    requests = [Request(id=str(r["id"]), prompt=r["prompt"], params=p) for r, p in zip(records, params, strict=True)]
    return llm(**settings).generate(requests)


def test_prompts_tokenise_to_the_recorded_ids(records: list[dict[str, Any]]) -> None:
    encoded = Tokenizer(DATA / "target").encode([r["prompt"] for r in records])
    assert encoded == [r["prompt_ids"] for r in records]


@pytest.mark.parametrize("stop", [False, True])
def test_plain_greedy_ids(records: list[dict[str, Any]], stop: bool) -> None:
    for r, out in zip(records, run(records, stop=stop), strict=True):
        want = r["newline_stop"] if stop else r
        assert list(out.token_ids) == want["greedy_ids"]
        assert all(s.k == 0 for s in out.steps)


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("width", ["k", "block"])
@pytest.mark.parametrize("k", [3, 5, 7])
def test_speculative_ids_and_steps(records: list[dict[str, Any]], k: int, width: str, stop: bool) -> None:
    mode = MODES[width]
    for r, out in zip(records, run(records, stop=stop, k=k, draft_width=width), strict=True):
        want = r["newline_stop"] if stop else r
        assert list(out.token_ids) == want["greedy_ids"]
        assert [s.accepted for s in out.steps] == want["steps"][mode][str(k)]
        assert [s.accepted_trimmed for s in out.steps] == want["steps_trimmed"][mode][str(k)]
        first = r["first_block"][mode][str(k)]
        assert out.steps[0].confidence == pytest.approx(first["confidence"], abs=1e-4)


def test_first_block_ids(records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafts themselves, seen through the proposals of the first decode tick at batch 1."""
    engine = llm(k=7, draft_width="k")
    assert engine.drafter is not None
    propose, seen = engine.drafter.propose, []

    def spy(*args: Any) -> Any:
        proposal = propose(*args)
        seen.append(proposal.tokens.tolist()[0])
        return proposal

    monkeypatch.setattr(engine.drafter, "propose", spy)
    for r in records:
        seen.clear()
        engine.generate([Request(id="x", prompt=r["prompt"], params=SamplingParams(max_tokens=2))])
        assert seen[0] == r["first_block"]["T=K"]["7"]["ids"]


def test_reuse_chunks_and_small_batches_change_nothing(records: list[dict[str, Any]]) -> None:
    want = [(r["greedy_ids"], r["steps"]["T=K"]["5"]) for r in records]
    several: list[dict[str, Any]] = [
        {"max_batch": 7, "max_batched_tokens": 40, "page_size": 8},
        {"max_batch": 64, "num_pages": 60, "prefix_cache": False},
    ]
    for settings in several:
        got = run(records, stop=False, k=5, **settings)
        assert [(list(o.token_ids), [s.accepted for s in o.steps]) for o in got] == want

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.mono.path as mono_path
import engine.runner
from engine import Request, SamplingParams
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.llm import LLM
from engine.mono.weights import Packed
from engine.quant.linear import QuantLinear
from tests.engine.tiny import Tiny, build, prompts, requests

REFERENCE = Path(__file__).resolve().parents[3] / "engine" / "reference"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return build(tmp_path_factory.mktemp("dense"), dense=True, num_key_value_heads=2)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The difference of the two paths in each step, as `compare` found it."""
    found: list[float] = []
    monkeypatch.setattr(engine.runner, "compare", lambda *args: found.append(mono_path.compare(*args)))
    yield found


def same_text(tiny: Tiny, *, k: int, max_batch: int, **settings: Any) -> tuple[LLM, LLM]:
    """Both paths, on prompts short and long; every text, accepted count and stored page has to be the same."""
    ask = requests(prompts(5, seed=3), max_tokens=20)
    plain = tiny.llm(k=k, max_batch=max_batch, mono="off", **settings)
    mono = tiny.llm(k=k, max_batch=max_batch, mono="require", mono_check=True, **settings)
    a, b = plain.generate(ask), mono.generate(ask)
    assert [x.token_ids for x in a] == [x.token_ids for x in b]
    assert [[s.accepted for s in x.steps] for x in a] == [[s.accepted for s in x.steps] for x in b]
    return plain, mono


@pytest.mark.parametrize(("k", "max_batch"), [(0, 1), (0, 5), (3, 3), (7, 1), (7, 2)])
def test_the_text_of_the_ordinary_path(tiny: Tiny, shares: list[float], k: int, max_batch: int) -> None:
    _, mono = same_text(tiny, k=k, max_batch=max_batch, quant="fp8")  # experts and block-sparse layers
    told = mono.counters
    assert told["mono_share"] == 1 and told["mono_steps"] == told["decode_ticks"] == len(shares)
    assert max(shares) < 1e-5


@pytest.mark.parametrize("quant", ["fp8", "w=ptpc_fp8 kv=fp8", "w=mxfp8 kv=fp8"])
def test_the_text_with_quantised_weights(dense: Tiny, shares: list[float], quant: str) -> None:
    online = {"quant": "fp8", "online_quant_config": '{"global_quant_config": "mxfp8", "exclude_layer": ["*.mlp"]}'}
    same_text(dense, k=3, max_batch=2, **(online if "mxfp8" in quant else {"quant": quant}))
    # an activation between two fp8 codes may fall to either side; without such roundings the sums agree to 1e-5
    assert max(shares) < (1e-5 if quant == "fp8" else 0.05)


def test_a_wrong_step_is_told_by_the_check(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mono_path, "FP8_SPREAD", 128.0)  # every key and value at half its size
    llm = tiny.llm(k=3, max_batch=2, quant="fp8", mono="auto", mono_check=True)
    with pytest.raises(EngineError, match="Mono and the ordinary path differ by"):
        llm.generate(requests(prompts(3), max_tokens=20))


def test_pages_hold_the_same_bytes(tiny: Tiny) -> None:
    plain, mono = (tiny.llm(k=0, max_batch=1, quant="fp8", mono=m, prefix_cache=False) for m in ("off", "require"))
    for llm in (plain, mono):
        llm.generate(requests(prompts(1), max_tokens=20))
    # the first layer's keys and values come before any sum of another order, but for the norms
    a, b = (llm.cache.pages(0)[0] for llm in (plain, mono))
    assert bool(a.any()) and float((a != b).float().mean()) < 1e-3


def test_the_embedded_model_says_the_same() -> None:
    def llm(mono: str) -> LLM:
        return LLM(EngineConfig(
            model=REFERENCE / "target", draft="dspark", draft_path=REFERENCE / "draft", k=7, max_batch=2,
            quant="m31flash-c1-4", mono=mono, threads=1, device="cpu",
        ))  # fmt: skip

    asked = "Question: Ana has {} apples and eats {}. How many are left?\nAnswer:"
    ask = [Request(id=str(i), prompt=asked.format(20 + i, i), params=SamplingParams(max_tokens=40)) for i in range(4)]
    plain, mono = llm("off"), llm("require")
    a, b = plain.generate(ask), mono.generate(ask)
    assert [x.token_ids for x in a] == [x.token_ids for x in b]
    assert mono.counters["mono_share"] == 1.0
    assert plain.counters["mono_refused"] == {"off": plain.counters["decode_ticks"]}


def test_sampling_draws_the_same_tokens(tiny: Tiny) -> None:
    ask = requests(prompts(3), max_tokens=16, temperature=1.0)
    a, b = (tiny.llm(k=3, max_batch=2, quant="fp8", mono=m).generate(ask) for m in ("off", "require"))
    assert [x.token_ids for x in a] == [x.token_ids for x in b]


def test_steps_that_are_too_wide_take_the_ordinary_path(tiny: Tiny) -> None:
    llm = tiny.llm(k=7, max_batch=4, quant="fp8", mono="auto")
    llm.generate(requests(prompts(5), max_tokens=12))
    told = llm.counters
    assert 0 < told["mono_share"] < 1 and told["mono_refused"] == {"rows": told["ordinary_steps"]}
    assert told["mono_steps"] + told["ordinary_steps"] == told["decode_ticks"]


@pytest.mark.parametrize(
    ("quant", "reason"),
    [("float32", "kv_format"), ("nvfp4", "kv_format"), ("kv=fp8 kv[1]=bf16", "kv_format"), ("w=bf16 kv=fp8", "dtype")],
)
def test_other_formats_are_refused(tiny: Tiny, quant: str, reason: str) -> None:
    llm = tiny.llm(k=0, quant=quant, mono="auto")
    llm.generate(requests(prompts(1), max_tokens=4))
    told = llm.counters
    assert told["mono_refused"] == {reason: told["decode_ticks"]} and "mono_share" not in told


def test_a_demand_that_the_target_cannot_meet(tiny: Tiny) -> None:
    with pytest.raises(EngineError, match=r"Mono can serve no step: Mono reads kv=fp8 .*; fix: use --mono auto"):
        tiny.llm(k=0, max_batch=1, quant="kv=fp8 kv[1]=bf16", mono="require")


@pytest.mark.parametrize("kind", ["", "ptpc_fp8", "mxfp8"])
def test_packed_weights_are_the_layer_after_its_norm(kind: str) -> None:
    torch.manual_seed(0)
    linear, scale, x = torch.nn.Linear(32, 64, bias=False), torch.rand(32) + 0.5, torch.randn(5, 32)
    made = QuantLinear(linear.weight, kind, act="" if kind == "mxfp8" else "fp8") if kind else linear
    with torch.inference_mode():
        torch.testing.assert_close(Packed(made, scale)(x), made(x * scale), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(Packed(made)(x), made(x), rtol=1e-5, atol=1e-6)

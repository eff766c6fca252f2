from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config import ModelConfig, MoEConfig
from engine.moe import MoE, reference_moe
from tests.engine.tiny import Tiny

HIDDEN, EXPERTS, CHOSEN = 16, 6, 2


def config(*, shared: int = 8, activation: str = "swigluoai", size: int = 12, hidden: int = HIDDEN) -> ModelConfig:
    moe = MoEConfig(
        layers=(True,), experts=EXPERTS, experts_per_token=CHOSEN, expert_size=size, shared_size=shared, scaling=2.0,
        routing_bias=True,
    )  # fmt: skip
    return ModelConfig(
        family="minimax_m3", vocab_size=32, hidden_size=hidden, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
        rotary_dim=4, rope_theta=1e4, intermediate_size=24, activation=activation, gemma_norm=True,
        tie_embeddings=False, max_positions=64, moe=moe,
    )  # fmt: skip


def make(*, shared: int = 8, activation: str = "swigluoai") -> MoE:
    torch.manual_seed(0)
    moe = MoE(config(shared=shared, activation=activation))
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return moe.eval()


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", (1, 2, 37))
@pytest.mark.parametrize(("shared", "activation"), ((8, "swigluoai"), (0, "swigluoai"), (8, "silu")))
def test_equals_its_slow_twin(count: int, shared: int, activation: str) -> None:
    moe, x = make(shared=shared, activation=activation), rows(count)
    torch.testing.assert_close(moe(x), reference_moe(moe, x), rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_company() -> None:
    moe, x = make(), rows(20)
    alone = torch.cat([moe(x[i : i + 1]) for i in range(20)])
    torch.testing.assert_close(moe(x), alone, rtol=1e-4, atol=1e-5)


def test_the_bias_chooses_but_does_not_weigh() -> None:
    moe, x = make(), rows(9)
    with torch.no_grad():
        moe.correction_bias.copy_(torch.tensor([5.0, 0, 0, 5.0, 0, 0]))
    ids, weights = moe.route(x)
    assert {frozenset(row) for row in ids.tolist()} == {frozenset((0, 3))}
    scores = (x @ moe.gate.weight.T).sigmoid()
    expected = scores.gather(1, ids) / scores.gather(1, ids).sum(1, keepdim=True)
    torch.testing.assert_close(weights, expected)


def test_dropping_the_bias_is_seen() -> None:
    moe, x = make(), rows(50)
    with torch.no_grad():
        moe.correction_bias.copy_(torch.linspace(-0.3, 0.3, EXPERTS))
        kept = moe(x)
        moe.correction_bias.zero_()
        assert ((moe(x) - kept).abs().amax(1) > 1e-3).float().mean() > 0.3


def test_ties_go_to_the_lowest_id() -> None:
    moe = make()
    with torch.no_grad():
        moe.gate.weight.zero_()
        moe.correction_bias.zero_()
    ids, weights = moe.route(rows(3))
    assert ids.tolist() == [[0, 1]] * 3
    assert weights.tolist() == [[0.5, 0.5]] * 3


def test_bf16_weights_keep_a_float32_bias() -> None:
    moe = make()
    bias = moe.correction_bias.clone()
    moe.to(torch.bfloat16)
    assert moe.gate_up.dtype == torch.bfloat16 and torch.equal(moe.correction_bias, bias)
    assert moe(rows(4).bfloat16()).dtype == torch.bfloat16


def test_shared_experts_are_not_scaled() -> None:
    moe, x = make(), rows(5)
    with torch.no_grad():
        routed = moe(x) - moe.shared(x)  # pyright: ignore[reportOptionalCall]
        moe.scaling = 0.0
        torch.testing.assert_close(moe(x), moe.shared(x))  # pyright: ignore[reportOptionalCall]
    assert routed.abs().max() > 0.1


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_both_ways_of_asking_experts_agree(tiny: Tiny, rows: int) -> None:
    moe = next(m for m in tiny.llm().target.modules() if isinstance(m, MoE)).eval()
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        ids, weights = moe.route(x)
        one, other = moe.gathered(x, ids, weights), moe.by_expert(x, ids, weights)
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(moe(x), reference_moe(moe, x))

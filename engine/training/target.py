"""Train the target: next-token loss on answers, the index's own loss, and the cache's format in the loop at the end.

The router's correction bias learns without a gradient: after each step it moves by a fixed amount towards
the experts that served fewer rows than the mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from engine.model import Target
from engine.quant import fake_nvfp4
from engine.training.attend import CausalAttend
from engine.training.checkpoint import TrainState
from engine.training.loop import train
from engine.training.text import Rows, Stream, pack
from engine.training.tilt import balance, experts_of, rebalance, tilt_routers


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """Schedule. Half of the steps have short rows of single problems, half long rows of joined ones."""

    steps: int = 4400
    short: tuple[int, int] = (8, 256)  # rows, length
    long: tuple[int, int] = (3, 640)
    muon_lr: float = 4e-3
    adam_lr: float = 3e-3
    warmup: float = 0.015
    hold: float = 0.40
    question_weight: float = 0.1
    quant_from: float = 0.40  # from this share of the steps on ...
    quant_share: float = 1.0  # ... this share of them sees K, V and index keys through NVFP4
    sparse_from: float = 0.55  # from this share on, block-sparse layers see their picked blocks alone
    index_weight: float = 1.0
    index_queries: float = 0.25  # share of the positions at which the index loss is taken
    balance: float = 0.01  # step of the router's correction bias, times the schedule
    save_every: int = 200
    seed: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlePlan(TargetPlan):
    """After the target is trained: how far the routers are tilted, and the steps with the routers held."""

    tilt: float = 4.0  # logits, from -tilt to tilt over the experts
    steps: int = 1200
    muon_lr: float = 1e-3
    adam_lr: float = 7.5e-4
    warmup: float = 0.05
    hold: float = 0.05
    quant_from: float = 0.0
    sparse_from: float = 0.0
    seed: int = 1500


def flat_positions(rows: int, length: int) -> Tensor:
    return torch.arange(length).repeat(rows)


def rows_of_step(step: int, plan: TargetPlan, stream: Stream, tok: Tokenizer) -> tuple[Rows, bool]:
    """The rows of a step, and whether it sees the quantised cache: a function of (seed, step)."""
    rng = random.Random(plan.seed * 1_000_003 + step)
    joined = rng.random() < 0.5
    quant = step >= plan.quant_from * plan.steps and rng.random() < plan.quant_share
    rows, length = plan.long if joined else plan.short
    problems = stream(rng.getrandbits(62))
    return pack(problems, tok, rows=rows, length=length, joined=joined, rng=rng), quant


def answer_loss(target: Target, rows: Rows, attend: CausalAttend, question_weight: float) -> tuple[Tensor, Tensor]:
    """Weighted loss of the step, and the plain mean over answer tokens (detached)."""
    n, length = rows.ids.shape
    hidden, _ = target(rows.ids.flatten(), flat_positions(n, length), attend)
    hidden = hidden.view(n, length, -1)[:, :-1].flatten(0, 1)
    ce = F.cross_entropy(target.logits(hidden), rows.ids[:, 1:].flatten(), reduction="none")
    is_answer = rows.answer[:, 1:].flatten()
    weight = torch.where(is_answer, 1.0, question_weight)
    return (ce * weight).sum() / weight.sum(), ce.detach()[is_answer].mean()


def make_attend(target: Target, plan: TargetPlan, step: int, length: int, quant: bool) -> CausalAttend:
    """The step's attention, with the positions of its index loss: a function of (seed, step)."""
    sparse, queries = target.cfg.sparse, None
    if sparse is not None:
        rng = random.Random(plan.seed * 7_000_003 + step)
        outside = range(sparse.block_size, length)  # those before have no other block
        queries = torch.tensor(sorted(rng.sample(outside, round(plan.index_queries * len(outside)))))
    pick = step >= plan.sparse_from * plan.steps
    return CausalAttend(length, quant=fake_nvfp4 if quant else None, sparse=sparse, pick=pick, queries=queries)


def train_target(
    target: Target, plan: TargetPlan, stream: Stream, tok: Tokenizer, state: TrainState, say: Callable[[str], None]
) -> None:
    """Run (or continue) the schedule."""
    experts = experts_of(target)
    target.train()

    def loss_of(step: int, factor: float) -> tuple[Tensor, dict[str, float]]:
        rows, quant = rows_of_step(step, plan, stream, tok)
        attend = make_attend(target, plan, step, rows.ids.shape[1], quant)
        loss, answer = answer_loss(target, rows, attend, plan.question_weight)
        index_loss = torch.stack(attend.index_losses).mean() if attend.index_losses else torch.zeros(())
        load = balance(experts, plan.balance * factor)  # the bias has no gradient: before or after the step is one
        values = {"answer_ce": float(answer), "index_kl": float(index_loss.detach()), "load": load}
        return loss + plan.index_weight * index_loss, values | {"quant": quant, "tokens": rows.ids.numel()}

    train(target, plan, state, say, "target", loss_of)


def settle_target(
    target: Target, plan: SettlePlan, stream: Stream, tok: Tokenizer, state: TrainState, say: Callable[[str], None]
) -> None:
    """Tilt the routers of a trained target, move the biases after it, and train on with the routers held."""
    target.train()

    def forward(step: int) -> Tensor:
        rows, quant = rows_of_step(10_000 + step, plan, stream, tok)
        return answer_loss(target, rows, make_attend(target, plan, step, rows.ids.shape[1], quant), 1.0)[1]

    if not state.file.exists():
        tilt_routers(target, plan.tilt, forward)
        say(f"routers tilted by {plan.tilt:g}; largest load after the biases moved: {rebalance(target, forward):.2f}")
    for moe in experts_of(target):
        moe.gate.weight.requires_grad_(False)
    train_target(target, plan, stream, tok, state, say)

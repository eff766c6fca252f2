"""Train the target: next-token loss on answers, with the KV cache's format in the loop at the end."""

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
from engine.training.checkpoint import TrainState
from engine.training.optim import lr_factor, make_optimizers
from engine.training.text import Rows, Stream, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """Schedule. Half of the steps have short rows of single problems, half long rows of joined ones."""

    steps: int = 4200
    short: tuple[int, int] = (8, 256)  # rows, length
    long: tuple[int, int] = (3, 640)
    muon_lr: float = 4e-3
    adam_lr: float = 3e-3
    warmup: float = 0.015
    hold: float = 0.40
    question_weight: float = 0.1
    quant_from: float = 0.40  # from this share of the steps on ...
    quant_share: float = 1.0  # ... this share of them sees K and V through NVFP4
    save_every: int = 200
    seed: int = 1000


class CausalAttend:
    """Plain causal attention over rows of one length, K and V optionally through the cache's format."""

    def __init__(self, length: int, quant: Callable[[Tensor], Tensor] | None = None) -> None:
        self.length, self.quant = length, quant

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.quant is not None:
            k, v = self.quant(k), self.quant(v)
        q, k, v = (x.view(-1, self.length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)


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


def train_target(
    target: Target, plan: TargetPlan, stream: Stream, tok: Tokenizer, state: TrainState, say: Callable[[str], None]
) -> None:
    """Run (or continue) the schedule; `state` keeps module, optimisers and step on disk."""
    optimizers = make_optimizers(target, muon_lr=plan.muon_lr, adam_lr=plan.adam_lr)
    base = [g["lr"] for o in optimizers for g in o.param_groups]
    start = state.restore(target, optimizers)
    for step in range(start, plan.steps):
        rows, quant = rows_of_step(step, plan, stream, tok)
        factor = lr_factor((step + 1) / plan.steps, warmup=plan.warmup, hold=plan.hold)
        for group, lr in zip((g for o in optimizers for g in o.param_groups), base, strict=True):
            group["lr"] = lr * factor
        attend = CausalAttend(rows.ids.shape[1], fake_nvfp4 if quant else None)
        loss, answer = answer_loss(target, rows, attend, plan.question_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(target.parameters(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        state.log(step, answer_ce=float(answer), quant=quant, tokens=rows.ids.numel())
        if (step + 1) % 50 == 0:
            say(f"target step {step + 1}/{plan.steps}  {state.recent()}")
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            state.save(target, optimizers, step + 1)

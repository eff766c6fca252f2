"""The one training loop: schedule, optimisers, log and state on disk. What a step's loss is, the caller says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.training.checkpoint import TrainState
from engine.training.optim import lr_factor, make_optimizers

SAY_EVERY = 50  # steps


class Schedule(Protocol):
    """What the loop asks of a plan. Rates are shares of the full ones by `lr_factor`."""

    @property
    def steps(self) -> int: ...
    @property
    def muon_lr(self) -> float: ...
    @property
    def adam_lr(self) -> float: ...
    @property
    def warmup(self) -> float: ...
    @property
    def hold(self) -> float: ...
    @property
    def save_every(self) -> int: ...


def train(
    module: nn.Module,
    plan: Schedule,
    state: TrainState,
    say: Callable[[str], None],
    name: str,
    loss_of: Callable[[int, float], tuple[Tensor, dict[str, float]]],
) -> None:
    """Run (or continue) the schedule; `state` keeps module, optimisers and step on disk.

    loss_of(step, share of the full rates) gives the loss to follow and what is logged of the step.
    """
    optimizers = make_optimizers(module, muon_lr=plan.muon_lr, adam_lr=plan.adam_lr)
    groups = [g for o in optimizers for g in o.param_groups]
    base = [g["lr"] for g in groups]
    start = state.restore(module, optimizers)
    groups = [g for o in optimizers for g in o.param_groups]  # restoring replaces them
    for step in range(start, plan.steps):
        factor = lr_factor((step + 1) / plan.steps, warmup=plan.warmup, hold=plan.hold)
        for group, lr in zip(groups, base, strict=True):
            group["lr"] = lr * factor
        loss, values = loss_of(step, factor)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        state.log(step, **values)
        if (step + 1) % SAY_EVERY == 0:
            say(f"{name} step {step + 1}/{plan.steps}  {state.recent()}")
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            state.save(module, optimizers, step + 1)

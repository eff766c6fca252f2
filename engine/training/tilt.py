"""Tilt the routers of a trained target and let the correction bias take the tilt back.

By the end of training a router is balanced by itself and its correction bias says next to nothing, so that an
engine that forgets the bias would go unseen. In the published model the bias does carry the balance. Therefore
some experts' logits are raised and others' lowered once, and the biases are moved by forward passes alone until
the load is even again. Training then goes on with the routers held (a router that could learn would take the tilt
back itself), so that the experts get used to the choices that the biases make.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.model import Target
from engine.moe import MoE

RIDGE = 1e-4  # of the mean variance

Forward = Callable[[int], object]  # one forward pass of the target over the rows of a step


def experts_of(target: Target) -> list[MoE]:
    return [m for m in target.modules() if isinstance(m, MoE)]


@torch.no_grad()
def tilt_routers(target: Target, amount: float, forward: Forward) -> None:
    """Add -amount .. amount to the experts' logits, by a direction in which all router inputs are nearly alike.

    The direction v has mean x . v = 1 over the inputs x of one forward pass and the least variance: S^-1 m, scaled,
    of their mean m and covariance S. Each layer's tilts are another rotation of the same list.
    """
    experts = experts_of(target)
    inputs: dict[MoE, Tensor] = {}
    hooks = [m.register_forward_pre_hook(lambda moe, args: inputs.update({moe: args[0]})) for m in experts]
    forward(0)
    for hook in hooks:
        hook.remove()
    for i, moe in enumerate(experts):
        x = inputs[moe].double()
        mean, spread = x.mean(0), torch.cov(x.T)
        ridge = RIDGE * spread.diagonal().mean() * torch.eye(x.shape[1], dtype=x.dtype)
        v = torch.linalg.solve(spread + ridge, mean)
        tilts = torch.linspace(-amount, amount, moe.experts, dtype=x.dtype).roll(3 * i)
        moe.gate.weight += torch.outer(tilts, v / (mean @ v)).to(moe.gate.weight.dtype)


@torch.no_grad()
def balance(experts: list[MoE], amount: float) -> float:
    """Move each correction bias by `amount` towards even load; the largest load relative to the mean."""
    worst = 0.0
    for moe in experts:
        if moe.load is None:
            continue
        load = moe.load.float()
        moe.correction_bias.add_((load.mean() - load).sign(), alpha=amount)
        worst = max(worst, float(load.max() / load.mean()))
    return worst


@torch.no_grad()
def rebalance(target: Target, forward: Forward, passes: int = 80, first: float = 0.04, last: float = 0.002) -> float:
    """Move the biases alone, by steps that shrink from `first` to `last`; the last pass's largest relative load."""
    experts, worst = experts_of(target), 0.0
    for i in range(passes):
        forward(i)
        worst = balance(experts, first * (last / first) ** (i / (passes - 1)))
    return worst

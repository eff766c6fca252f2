"""Muon for matrices, AdamW for the rest, in float32.

Muon (Jordan et al. 2024): momentum, then the update is replaced by the nearest semi-orthogonal matrix,
found with five steps of a quintic Newton-Schulz iteration. torch's own runs it in bf16, which is slow
on a CPU; here matrices of one shape share one batched float32 iteration.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from engine.layers import packed_rows

_NS = (3.4445, -4.7750, 2.0315)  # coefficients of the published iteration


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """The batch g [n, rows, cols] with its singular values driven to about 1."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _NS
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """`params` are matrices or stacks of them; `splits` gives, by id(param), the row counts of those packed."""

    def __init__(self, params: list[nn.Parameter], *, lr: float, splits: dict[int, list[int]], momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.splits = splits

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                buf = state.setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buf, group["momentum"]).flatten(0, -2)
                flat = p.flatten(0, -2)
                sizes = self.splits.get(id(p), [flat.shape[0]])
                for piece, target in zip(update.split(sizes), flat.split(sizes), strict=True):
                    by_shape[tuple(piece.shape)].append((piece, target))
            for shape, pairs in by_shape.items():
                scale = 0.2 * max(shape) ** 0.5
                stacked = orthogonalise(torch.stack([u for u, _ in pairs]))
                for u, (_, target) in zip(stacked, pairs, strict=True):
                    target.add_(u, alpha=-group["lr"] * scale)


def make_optimizers(module: nn.Module, *, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of decoder layers, AdamW for embeddings, heads, routers, norms and biases."""
    matrices, rest, splits = [], [], {}
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        router = name.endswith(".mlp.gate.weight")
        if p.ndim >= 2 and not router and (name.startswith(("layers.", "midlayer.")) or name == "fc.weight"):
            matrices.append(p)
            splits[id(p)] = packed_rows(module, name)
        else:
            rest.append(p)
    return [
        Muon(matrices, lr=muon_lr, splits=splits),
        torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def lr_factor(done: float, *, warmup: float, hold: float) -> float:
    """Share of the full rate at `done` in 0..1: linear rise to `warmup`, flat to `hold`, linear to 0."""
    if done < warmup:
        return done / warmup
    return 1.0 if done < hold else max(0.0, (1.0 - done) / (1.0 - hold))

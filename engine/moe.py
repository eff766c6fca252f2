"""Mixture of experts in MiniMax-M3's form: sigmoid routing, a correction bias, shared experts.

    s = sigmoid(gate x);  ids = the largest s + bias;  weights = s[ids] / sum(s[ids])
    y = scaling * sum_i weights_i * expert_i(x) + shared(x)

The bias decides which experts serve a row and is left out of their weights. Ties go to the lowest id, so
that ranks and back-ends agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.kernels.groups import Groups, tile_height
from engine.layers import MLP, gated
from engine.quant.experts import QuantExperts

FEW = 8  # places (rows x chosen experts) up to which gathering weights is faster than sorting rows


class MoE(nn.Module):
    """Experts of one layer: [gate; up] and down of all of them in two stacked parameters.

    Once quantised, a stack is a list of linear layers instead, one an expert.
    """

    gate_up: nn.Parameter | nn.ModuleList
    down: nn.Parameter | nn.ModuleList

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        moe = cfg.moe
        if moe is None:
            raise ValueError("the configuration has no experts")
        self.cfg, self.experts, self.chosen, self.scaling = cfg, moe.experts, moe.experts_per_token, moe.scaling
        self.gate = nn.Linear(cfg.hidden_size, moe.experts, bias=False)
        # stays float32; without use_routing_bias no checkpoint fills it, so it is made where it has memory
        made = torch.zeros(moe.experts, device=None if moe.routing_bias else "cpu")
        self.correction_bias = nn.Parameter(made, requires_grad=False)
        self.gate_up = nn.Parameter(torch.empty(moe.experts, 2 * moe.expert_size, cfg.hidden_size))
        self.down = nn.Parameter(torch.empty(moe.experts, cfg.hidden_size, moe.expert_size))
        self.shared = MLP(cfg, moe.shared_size) if moe.shared_size else None
        self.load: Tensor | None = None  # rows of each expert in the last forward, kept in training only

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ids int64 and weights float32, both [rows, chosen], of x [rows, hidden]; computed in float32."""
        scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        order = (scores + self.correction_bias).sort(dim=-1, descending=True, stable=True).indices
        ids = order[:, : self.chosen]
        weights = scores.gather(1, ids)
        return ids, weights / weights.sum(-1, keepdim=True)

    def expert(self, index: int, x: Tensor) -> Tensor:
        """One expert's output [rows, hidden]."""
        return _product(self.down, index, gated(_product(self.gate_up, index, x), self.cfg))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, hidden], by the way that is faster for so many rows."""
        y = self.routed(x, *self.route(x))
        return y if self.shared is None else y + self.shared(x)

    def routed(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The routed sum [rows, hidden]."""
        if (stacks := self._stacks()) is not None:
            return self.grouped(x, ids, weights, *stacks)
        plain = isinstance(self.gate_up, Tensor) and isinstance(self.down, Tensor)
        few = ids.numel() <= FEW and plain and not self.training
        return self.gathered(x, ids, weights) if few else self.by_expert(x, ids, weights)

    def _stacks(self) -> tuple[QuantExperts, QuantExperts] | None:
        """Both stacks where each is in a format that a kernel multiplies whole; notes who does."""
        gate_up, down = self.gate_up, self.down
        if not (isinstance(gate_up, QuantExperts) and isinstance(down, QuantExperts) and gate_up.op and down.op):
            return None
        able = gate_up.fused and down.fused
        taken = [gate_up.kernels.takes(op, able) for op in sorted({gate_up.op, down.op})]
        return (gate_up, down) if all(taken) else None

    @property
    def counts_on_host(self) -> bool:
        """Whether a step waits for the device to say how many rows each expert has."""
        return not all(isinstance(stack, QuantExperts) and stack.fused for stack in (self.gate_up, self.down))

    def grouped(
        self, x: Tensor, ids: Tensor, weights: Tensor, gate_up: QuantExperts, down: QuantExperts
    ) -> Tensor:  # fmt: skip
        """The routed sum by kernels, one launch for each stack, whichever experts there are rows for.

        Counts stay on the device.
        """
        least = max(gate_up.least, down.least)
        groups = Groups.of(ids.flatten(), self.experts, tile_height(ids.numel(), self.experts, least))
        inner = gated(gate_up.grouped(x, groups), self.cfg)
        return self._weighted(x, weights, down.grouped(inner, groups))

    def _weighted(self, x: Tensor, weights: Tensor, done: Tensor) -> Tensor:
        """[rows, hidden]: the sum over each row's experts of their outputs `done` [rows * chosen, hidden]."""
        scale = (self.scaling * weights).to(x.dtype).unsqueeze(1)
        return torch.bmm(scale, done.view(x.shape[0], self.chosen, -1)).squeeze(1)

    def gathered(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The routed sum, each row's experts' weights copied side by side: no sort, but as many copies as places.

        Of stacked parameters alone.
        """
        assert isinstance(self.gate_up, Tensor) and isinstance(self.down, Tensor)
        rows, flat = x.shape[0], ids.flatten()
        wide = x.unsqueeze(1).expand(-1, self.chosen, -1).reshape(rows * self.chosen, -1, 1)
        inner = gated(torch.bmm(self.gate_up.index_select(0, flat), wide).squeeze(-1), self.cfg)
        return self._weighted(x, weights, torch.bmm(self.down.index_select(0, flat), inner.unsqueeze(-1)))

    def by_expert(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The routed sum, rows sorted by expert, so that each expert is one matrix product."""
        flat, order = ids.flatten().sort(stable=True)
        counts = torch.bincount(flat, minlength=self.experts)
        if self.training:
            self.load = counts
        row = order // self.chosen
        parts = x[row].split(counts.tolist())
        done = torch.cat([self.expert(i, part) for i, part in enumerate(parts) if part.shape[0]])
        scale = (self.scaling * weights.flatten()[order]).to(x.dtype).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, row, done * scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MoE:
        """As nn.Module's, but the correction bias keeps its float32: rounded to bf16 it would change choices."""
        bias = self.correction_bias.detach().clone()
        super()._apply(fn, recurse)
        moved: Any = self.correction_bias
        moved.data = bias.to(moved.device)
        return self


def _product(stack: nn.Parameter | nn.ModuleList, index: int, x: Tensor) -> Tensor:
    """x times the matrix of one expert."""
    return F.linear(x, stack[index]) if isinstance(stack, Tensor) else stack[index](x)


def reference_moe(moe: MoE, x: Tensor) -> Tensor:
    """Slow twin of MoE.forward: row by row, every expert asked, in float64."""
    out = torch.zeros_like(x)
    for r, row in enumerate(x):
        score = (moe.gate.weight.double() @ row.double()).sigmoid()
        biased = (score + moe.correction_bias.double()).tolist()
        best = sorted(range(moe.experts), key=lambda e: (-biased[e], e))[: moe.chosen]
        total = sum((score[e] for e in best), torch.zeros((), dtype=torch.float64))
        y = torch.zeros(x.shape[1], dtype=torch.float64)
        for e in best:
            y += moe.scaling * score[e] / total * moe.expert(e, row[None])[0].double()
        out[r] = (y if moe.shared is None else y + moe.shared(row[None])[0].double()).to(x.dtype)
    return out

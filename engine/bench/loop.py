"""A plain torch loop over a target's weights: one sequence, one token a forward, its own K/V tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers import Index
from engine.model import Target


class PlainAttend:
    """Causal attention that keeps the K and V of one sequence in growing tensors."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        if layer in self.kept:
            k, v = torch.cat((self.kept[layer][0], k)), torch.cat((self.kept[layer][1], v))
        self.kept[layer] = (k, v)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)


@torch.inference_mode()
def plain_loop(target: Target, ids: list[int], max_tokens: int) -> list[int]:
    """Greedy continuation of `ids` by max_tokens tokens; stop tokens stop nothing."""
    attend, out, position = PlainAttend(), [], 0
    rows = torch.tensor(ids)
    while len(out) < max_tokens:
        hidden, _ = target(rows, torch.arange(position, position + len(rows)), attend)
        token = int(target.logits(hidden[-1:]).argmax())
        position += len(rows)
        out.append(token)
        rows = torch.tensor([token])
    return out

"""Logits to probabilities to tokens, and the random numbers of each request.

Every draw is a function of (request key, position, purpose) alone: a counter, not a stream. So batch,
order, chunks and preemption never change a sample. Numbers of drafts and accept tests also depend on where
their step begins: block verification and a scheduled block look at more places than they keep, and a place that a
later step drafts again with numbers already looked at would not have the target's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from engine.api import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a draw is for. Draws of one position and two purposes are independent."""

    TARGET = 1  # the target's own token: plain, bonus or residual, of which a position has exactly one
    DRAFT = 2  # the proposed token
    ACCEPT = 3  # the uniform of the accept test
    FORCED = 4  # how many drafts a step keeps where acceptance is drawn

    @property
    def of_a_step(self) -> bool:
        """Whether another step at the same position draws anew."""
        return self in (Purpose.DRAFT, Purpose.ACCEPT)


def request_key(run_seed: int, request_seed: int) -> int:
    """The 64-bit key of a request's random numbers."""
    return _mix_int(_mix_int(run_seed & _MASK) + (request_seed & _MASK))


def _mix_int(x: int) -> int:
    return int(_mix(np.array([x & _MASK], dtype=np.uint64))[0])


def _mix(x: np.ndarray) -> np.ndarray:
    """One output of SplitMix64 (Steele, Lea, Flood 2014) for each uint64 state."""
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(keys: np.ndarray, starts: np.ndarray, width: int, purpose: Purpose) -> Tensor:
    """float64 [n, width] in [0, 1): the draws for positions start..start+width-1 of each request.

    keys: uint64 [n]; starts: int64 [n], absolute positions in the request's text.
    """
    stream = _mix(keys ^ _mix(np.full_like(keys, int(purpose))))
    if purpose.of_a_step:
        stream = _mix(stream ^ _mix(starts.astype(np.uint64)))
    steps = (starts[:, None] + np.arange(width)).astype(np.uint64)
    bits = _mix(stream[:, None] + steps * np.uint64(_GOLDEN))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass(frozen=True, slots=True)
class Laws:
    """How each of n sequences turns logits into probabilities. A batch of greedy ones has no Laws."""

    keys: np.ndarray  # uint64 [n]
    temperature: Tensor  # float32 [n], 0 is greedy
    top_k: Tensor | None  # int64 [n], 0 is off; None: off for all
    top_p: Tensor | None  # float32 [n], 1 is off; None: off for all
    any_greedy: bool

    @classmethod
    def of(cls, params: list[SamplingParams], keys: list[int], device: torch.device) -> Laws | None:
        """The laws of these requests, or None when all of them are greedy."""
        if all(p.temperature == 0.0 for p in params):
            return None
        ks, ps = [p.top_k for p in params], [p.top_p for p in params]
        return cls(
            keys=np.array(keys, dtype=np.uint64),
            temperature=torch.tensor([p.temperature for p in params], device=device),
            top_k=torch.tensor(ks, device=device) if any(ks) else None,
            top_p=torch.tensor(ps, device=device) if min(ps) < 1.0 else None,
            any_greedy=any(p.temperature == 0.0 for p in params),
        )

    def select(self, rows: list[int]) -> Laws:
        """The laws of some of the sequences, in this order."""
        index = torch.tensor(rows, device=self.temperature.device)
        return Laws(
            keys=self.keys[rows],
            temperature=self.temperature[index],
            top_k=None if self.top_k is None else self.top_k[index],
            top_p=None if self.top_p is None else self.top_p[index],
            any_greedy=self.any_greedy,
        )


def probabilities(logits: Tensor, laws: Laws) -> Tensor:
    """float32 probabilities [n, ..., vocab] of logits [n, ..., vocab]: temperature, then top-k, then top-p.

    Top-k keeps exactly k tokens, top-p the smallest set that reaches p; ties go to the lowest id. A
    greedy sequence gets all its mass on the argmax.
    """
    per_row = (-1, *[1] * (logits.dim() - 1))
    t = laws.temperature.view(per_row)
    x = (logits - logits.amax(-1, keepdim=True)) / torch.where(t == 0.0, torch.ones_like(t), t)
    probs = x.softmax(-1)
    if laws.top_k is not None or laws.top_p is not None:
        probs, order = probs.sort(dim=-1, descending=True, stable=True)
        if laws.top_k is not None:
            k = laws.top_k.view(per_row)
            rank = torch.arange(probs.shape[-1], device=probs.device)
            probs = probs.masked_fill((rank >= k) & (k > 0), 0.0)
        if laws.top_p is not None:
            before = (probs / probs.sum(-1, keepdim=True)).cumsum(-1).roll(1, -1)
            before[..., 0] = 0.0
            p = laws.top_p.view(per_row)
            probs = probs.masked_fill((before >= p) & (p < 1.0), 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, order, probs / probs.sum(-1, keepdim=True))
    if laws.any_greedy:
        probs = torch.where(t == 0.0, one_hot(logits.argmax(-1), logits.shape[-1]), probs)
    return probs


def one_hot(ids: Tensor, vocab: int) -> Tensor:
    """float32 [..., vocab] with all mass on `ids` [...]."""
    return torch.zeros((*ids.shape, vocab), device=ids.device).scatter_(-1, ids.unsqueeze(-1), 1.0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """int64 [...]: the token whose share of the cumulative weight holds `u`.

    weights: [..., vocab], not negative, not all 0, need not sum to 1; u: float64 [...] in [0, 1). A
    token of weight 0 is never drawn.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1]
    mark = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))  # u * total may round up
    return (cumulative <= mark.unsqueeze(-1)).sum(-1)

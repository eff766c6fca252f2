"""Per-position temperatures of the confidence head, fitted on the draft's own verify steps.

Sequential temperature scaling, as the DSpark paper has it: c_k becomes sigmoid(logit(c_k) / T_k), with T_k
found from left to right by a grid search that minimises the expected calibration error of the product
c_1 * ... * c_k against "the first k drafts were kept", earlier temperatures fixed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.api import Completion, Cut

GRID = torch.logspace(-0.6, 0.9, 76, dtype=torch.float64)  # 0.25 .. 7.9
BINS = 20


def expected_calibration_error(predicted: Tensor, happened: Tensor) -> float:
    """Mean over equal bins, weighted by their counts, of |mean prediction - share that happened|.

    predicted: float64 [n] in 0..1; happened: bool [n]. ValueError for none.
    """
    if not len(predicted):
        raise ValueError("no prediction")
    bins = (predicted * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, predicted - happened.double())
    return float(gap.abs().sum() / len(predicted))


def fit_temperatures(confidence: Tensor, accepted: Tensor, length: Tensor) -> list[float]:
    """One temperature a position.

    confidence: float64 [n, K], unscaled; accepted: int64 [n], drafts kept; length: int64 [n], the positions
    that count: drafts past a stop were never needed, so whether they were kept says nothing.
    """
    logits = torch.logit(confidence, eps=1e-9)
    product = torch.ones(len(accepted), dtype=torch.float64)
    temperatures = []
    for k in range(confidence.shape[1]):
        counts, happened = length > k, accepted > k
        scaled = [product * torch.sigmoid(logits[:, k] / t) for t in GRID]
        errors = [expected_calibration_error(s[counts], happened[counts]) for s in scaled]
        best = min(range(len(GRID)), key=errors.__getitem__)
        product = scaled[best]
        temperatures.append(round(float(GRID[best]), 4))
    return temperatures


def steps_of(completions: list[Completion], k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(confidence [n, K], accepted [n], length [n]) of the verify steps with all K drafts."""
    steps = [s for c in completions for s in c.steps if s.k == k and len(s.confidence) == k]
    return (
        torch.tensor([s.confidence for s in steps], dtype=torch.float64).view(-1, k),
        torch.tensor([s.accepted for s in steps], dtype=torch.int64),
        torch.tensor([s.accepted_trimmed if s.cut is Cut.STOP else k for s in steps], dtype=torch.int64),
    )

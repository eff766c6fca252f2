"""Signs that acceptance was drawn to hit a number ("synthetic acceptance") and not verified by the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

FORCED_MIN_STEPS = 200  # fewer steps cannot show that acceptance was drawn
CONSTANT_MIN_STEPS = 1000
NEAR_GOLDEN = 0.002  # tokens: a mean this near a golden number is hardly chance


def looks_forced(histogram: Sequence[int] | np.ndarray) -> bool:
    """True when only one value or two adjacent values ever occur over at least 200 steps, as when an engine
    draws acceptance to hit a mean (two-point histogram) or a fixed number.

    Not called forced: K=1, where two values are all there is; a draft that is never accepted; and 0-or-1 with
    fewer than 100 ones, which a very weak real draft can give. A draft that is the target itself, always
    accepted, is called forced: its run shows nothing about speculation either.
    """
    counts = [int(x) for x in histogram]
    if len(counts) <= 2 or sum(counts) < FORCED_MIN_STEPS:
        return False
    seen = [i for i, count in enumerate(counts) if count]
    if seen[-1] - seen[0] > 1 or seen == [0]:
        return False
    return not (seen[0] == 0 and counts[1] < FORCED_MIN_STEPS // 2)


def constant_conditional(histogram: Sequence[int] | np.ndarray, design_effect: float | None) -> bool:
    """True when every position has the same conditional rate within chance and documents do not differ, as when
    an engine draws each draft with one fixed rate (geometric spread).

    Asked: 1000 steps, K of at least 3, three positions that 100 steps reached, no evidence (chi-square, p > 0.05)
    against one rate, rates within 6 points of each other, and a design effect under 1.3: real prompts differ, draws
    do not. A real draft may look like this, so alone it proves nothing.
    """
    counts = np.array([int(x) for x in histogram], dtype=np.float64)
    if len(counts) < 4 or counts.sum() < CONSTANT_MIN_STEPS or design_effect is None or design_effect > 1.3:
        return False
    reached = counts[::-1].cumsum()[::-1]
    before, after = reached[:-1], reached[1:]
    many = before >= 100
    if many.sum() < 3:
        return False
    before, after = before[many], after[many]
    rate = float(after.sum() / before.sum())
    if not 0 < rate < 1 or float(np.ptp(after / before)) > 0.06:
        return False
    statistic = float(((after - rate * before) ** 2 / (before * rate * (1 - rate))).sum())
    return float(special.chdtrc(len(before) - 1, statistic)) > 0.05


def near_golden(accepted_length: float | None, golden_lengths: Sequence[float]) -> float | None:
    """The golden number that a mean lies within 0.002 tokens of; None when there is none."""
    if accepted_length is None:
        return None
    near = [g for g in golden_lengths if abs(accepted_length - g) <= NEAR_GOLDEN]
    return min(near, key=lambda g: abs(accepted_length - g)) if near else None


def forced_signs(
    histogram: Sequence[int],
    *,
    accepted_length: float | None,
    design_effect: float | None,
    golden_lengths: Sequence[float] = (),
) -> tuple[str, ...]:
    """Every sign there is, in words. The two-point histogram alone is proof enough; so are a constant conditional
    rate and a mean on a golden number together; each of these two alone is only worth a remark."""
    signs = []
    if looks_forced(histogram):
        values = [a for a, count in enumerate(histogram) if count]
        signs.append(f"only {' or '.join(map(str, values))} accepted drafts in all {sum(histogram)} steps")
    if constant_conditional(histogram, design_effect):
        signs.append("one conditional rate at every position and no difference between documents")
    near = near_golden(accepted_length, golden_lengths)
    if near is not None:
        signs.append(f"accepted length {accepted_length:.4f} is within {NEAR_GOLDEN} of the golden number {near:g}")
    return tuple(signs)

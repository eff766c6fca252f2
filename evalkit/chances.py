"""p-values in words that can't be read as more than they say. Standard library only."""

from __future__ import annotations

from evalkit.records import Outcome

SMALLEST = 1e-300  # a float has smaller ones as 0 or with few digits, and no p-value is 0


def p_value(p: float, digits: int = 2) -> str:
    """`p 0.031`; `p < 1e-300` for one that is smaller."""
    return f"p < {SMALLEST:g}" if p < SMALLEST else f"p {p:.{digits}g}"


def loss_words(outcome: Outcome, p: float, p_worse: float, margin: str) -> str:
    """What a check's two one-sided tests say of a loss: `p` is of "no smaller than the margin", `p_worse` of "no
    larger". Where neither is refused it is said that there is no evidence: a p near 1 supports nothing."""
    if outcome is Outcome.PASS:
        return f"{p_value(p)} for a loss under {margin}"
    if outcome is Outcome.FAIL:
        return f"{p_value(p_worse)} for a loss over {margin}"
    return f"no evidence that the loss is under {margin}, {p_value(p)}"

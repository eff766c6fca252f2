"""How many drafts of a block are worth a row of the target: decided by the draft's own confidences alone.

The choice must not look at a draft that it leaves out, or the output no longer has the target's law (DSpark paper:
"non-anticipating"). A confidence c_i says how likely draft i is kept given that all before it were; it is made from
the drafts before i and never from draft i. So a rule is sound that walks along a block and stops before draft i by what
c_1..c_i say. Both rules here do, and the target has not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence


def verified(
    confidence: Sequence[Sequence[float]], counts: Sequence[int], *, threshold: float = 0.0, rows: int = 0
) -> list[int]:
    """Drafts to verify of each block, 0..counts[i].

    confidence: of each draft in 0..1, at least counts[i] a block. `threshold`: a block ends before its first draft
    whose confidence is lower. `rows`: target rows of all blocks together, each block's anchor among them; the drafts
    most likely to survive (the product of their confidences so far) get what the anchors leave. 0 is no limit.
    """
    kept = [_until(c[:n], threshold) for c, n in zip(confidence, counts, strict=True)]
    room = rows - len(kept)
    if not rows or sum(kept) <= room:
        return kept
    ranked = []
    for block, (c, n) in enumerate(zip(confidence, kept, strict=True)):
        survival = 1.0
        for place in range(n):
            survival *= c[place]
            ranked.append((-survival, place, block))
    ranked.sort()  # survival never rises along a block, and on a tie the earlier place goes first: prefixes
    out = [0] * len(kept)
    for _, _, block in ranked[:room]:
        out[block] += 1
    return out


def _until(confidence: Sequence[float], threshold: float) -> int:
    return next((i for i, c in enumerate(confidence) if c < threshold), len(confidence))

"""Batch sizes that decode steps are padded to, so that a graph of each can be captured. Standard library only."""

from __future__ import annotations

from engine.errors import EngineError

ATOM_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)  # ATOM's default list, in sequences
WORDS = "off, atom, dense or sizes such as 1,2,4,8"


def graph_sizes(word: str, *, max_batch: int, max_batched_tokens: int, k: int) -> tuple[int, ...]:
    """Ascending sizes of "off" (none), "atom" (its list), "dense" (every size) or a list such as "1,2,4".

    Sizes above min(max_batch, max_batched_tokens // (K+1)) are dropped, as ATOM does. Raises EngineError for another
    word.
    """
    bound = max(1, min(max_batch, max_batched_tokens // (k + 1)))
    if word == "off":
        return ()
    if word == "dense":
        return tuple(range(1, bound + 1))
    if word == "atom":
        found = set(ATOM_SIZES)
    else:
        parts = [part.strip() for part in word.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise EngineError(f"graphs is {word!r}", f"use {WORDS}")
        found = {int(part) for part in parts}
    return tuple(sorted(size for size in found if size <= bound))

"""Batch sizes that decode steps are padded to, so that a graph of each can be captured. Standard library only."""

from __future__ import annotations

from engine.errors import EngineError

ATOM_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)  # ATOM's default list, in sequences
WORDS = "off, atom, dense or sizes such as 1,2,4,8"


def graph_sizes(word: str, *, max_batch: int, max_batched_tokens: int, k: int) -> tuple[int, ...]:
    """Ascending sizes of "off" (none), "atom" (its list), "dense" (every size) or a list such as "1,2,4".

    Sizes above min(max_batch, max_batched_tokens // (K+1)) are dropped, as ATOM does. Raises EngineError for another
    word, and for a list of which nothing is left.
    """
    bound = max(1, min(max_batch, max_batched_tokens // (k + 1)))
    if word == "off":
        return ()
    if word == "dense":
        return tuple(range(1, bound + 1))
    found = ATOM_SIZES if word == "atom" else _listed(word)
    if found[0] > bound:
        raise EngineError(f"graphs is {word!r}, and no decode batch has more than {bound} sequences",
                          f"give a size of at most {bound}, a larger batch, or off")  # fmt: skip
    return tuple(size for size in found if size <= bound)


def canonical(word: str) -> str:
    """The one spelling of a setting: sizes ascending and each once. Raises EngineError for another word."""
    return word if word in ("off", "atom", "dense") else ",".join(map(str, _listed(word)))


def _listed(word: str) -> tuple[int, ...]:
    parts = [part.strip() for part in word.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0 for part in parts):
        raise EngineError(f"graphs is {word!r}", f"use {WORDS}")
    return tuple(sorted({int(part) for part in parts}))

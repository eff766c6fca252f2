"""Prompt lookup: propose what followed the same few tokens the last time they occurred. No weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch import Tensor

from engine.draft import Drafter, Proposal, pack
from engine.request import Sequence
from engine.sampling import Laws


@dataclass(slots=True)
class _Seen:
    """Where each n-gram of one text last ended, for all that end before its last token."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    upto: int = 1  # tokens[:i] is indexed for all i < upto


@dataclass(eq=False)
class NgramDrafter(Drafter):
    """The longest suffix of `longest` to `shortest` tokens that occurred before decides; its latest place wins.

    It proposes fewer than K tokens, or none, where the text gives no more.
    """

    longest: int = 4
    shortest: int = 2
    _seen: WeakKeyDictionary[Sequence, _Seen] = field(default_factory=WeakKeyDictionary)

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        blocks = [self._lookup(s, k) if k > 0 else [] for s, k in zip(seqs, counts, strict=True)]
        return pack(blocks, page_table.device)

    def _lookup(self, seq: Sequence, k: int) -> list[int]:
        tokens, seen = seq.tokens, self._seen.setdefault(seq, _Seen())
        sizes = range(self.longest, self.shortest - 1, -1)
        for end in range(seen.upto, len(tokens)):
            for n in sizes:
                if n <= end:
                    seen.ends[tuple(tokens[end - n : end])] = end
        seen.upto = len(tokens)
        for n in sizes:
            end = seen.ends.get(tuple(tokens[-n:])) if n <= len(tokens) else None
            if end is not None:
                return tokens[end : end + k]
        return []

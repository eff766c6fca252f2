"""A draft whose tokens a function chooses: tests decide what is accepted."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.draft import Drafter, Proposal, pack
from engine.request import Sequence
from engine.sampling import Laws

Script = Callable[[str, list[int], int], list[int]]
"""(request id, prompt and committed output, most drafts to give) -> drafts."""


class ScriptedDrafter(Drafter):
    """Asks `script` once for each sequence and step. More drafts than asked for are dropped."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        blocks = [list(self._script(s.request.id, s.tokens, k))[:k] for s, k in zip(seqs, counts, strict=True)]
        return pack(blocks, page_table.device)

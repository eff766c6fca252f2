"""Methods that propose tokens. One file each; `DRAFTERS` is the table of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from engine.batch import Batch
from engine.config import EngineConfig, ModelConfig

if TYPE_CHECKING:  # these modules import this one, or cost more than a name is worth
    from engine.draft.block import BlockDraft
    from engine.draft.eagle3_model import Eagle3Draft
    from engine.kv_cache import KVCache
    from engine.model import Target
    from engine.request import Sequence
    from engine.sampling import Laws
    from engine.shard import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Blocks for n sequences, padded to the longest. Place i of a row past its count means nothing."""

    tokens: Tensor  # int64 [n, K]
    counts: list[int]  # drafts of each sequence, 0..K
    probs: Tensor | None = None  # float32 [n, K, vocab], the law each draft was drawn from; None: it was certain
    confidence: Tensor | None = None  # float32 [n, K], the draft's own estimate that it is kept


class Drafter(Protocol):
    """What the runner asks of a draft. Only `propose` has no default."""

    capture: tuple[int, ...] = ()  # target layers whose output it wants to see
    kv: ModelConfig | None = None  # shape of the KV layers it keeps beside the target's; None: it keeps none
    notes: tuple[str, ...] = ()  # what a reader of a run with it might not expect, a sentence each
    kept_size: int = 0  # numbers it keeps of a token beside K and V, in its first layer's index place

    def weights(self) -> BlockDraft | Eagle3Draft | None:
        """Its module, where it has weights."""
        return None

    def bind(self, cache: KVCache, layer_offset: int) -> None:
        """Called once, with the cache and the index of the draft's first layer in it."""

    def observe(self, batch: Batch, features: Tensor) -> None:
        """Called after every target forward. features: [n * width, len(capture) * hidden], of all rows."""

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        """At most counts[i] >= 0 drafts to follow the last committed token of seqs[i].

        page_table: int64 [n, pages]; laws: how to sample, None where all are greedy.
        """
        ...


def pack(blocks: list[list[int]], device: torch.device) -> Proposal:
    """A Proposal of certain drafts, from a list for each sequence."""
    width = max(map(len, blocks))
    rows = [b + [0] * (width - len(b)) for b in blocks]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device).view(len(blocks), width)
    return Proposal(tokens=tokens, counts=[len(b) for b in blocks])


def _dspark(config: EngineConfig, target: Target, share: Share) -> Drafter:
    from engine.draft.dspark import DSparkDrafter

    return DSparkDrafter.load(config, target, share)


def _eagle3(config: EngineConfig, target: Target, share: Share) -> Drafter:
    from engine.draft.eagle3 import Eagle3Drafter

    return Eagle3Drafter.load(config, target, share)


def _ngram(config: EngineConfig, target: Target, share: Share) -> Drafter:
    from engine.draft.ngram import NgramDrafter

    return NgramDrafter()


# "scripted" is not here: it takes a function, so it is handed to LLM as an object
# Each gives a rank its share.
DRAFTERS: dict[str, Callable[[EngineConfig, Target, Share], Drafter]] = {
    "dspark": _dspark,
    "eagle3": _eagle3,
    "ngram": _ngram,
}

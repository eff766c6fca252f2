"""The EAGLE3 draft at work: K passes of one layer from each anchor, each on the token that the last one drew.

Context K and V and the fused features live in the target's pages at the slot of their token, as one more layer.
What stands at position p comes from tokens up to p and target features up to p - 1 (K, V) or p (feature), so a
page means the same to every sequence that shares it, and prefix reuse, chunks and preemption leave drafts alone.

All of it is written after each target forward, for all its rows: after a verification the pairs of accepted
drafts are thus made from the target's features, not from the draft's own hidden states, which never reach a
page. Rows of rejected drafts hold nothing anybody reads: the next step writes them again before it drafts.
Position 0 has no token before it, hence no pair, and is never attended to.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.attention import PagedChain
from engine.batch import Batch
from engine.config import EngineConfig
from engine.draft import Drafter, Proposal
from engine.draft.eagle3_model import Eagle3Draft
from engine.draft.eagle3_weights import load_eagle3
from engine.errors import EngineError
from engine.kv_cache import KVCache
from engine.model import Target
from engine.request import Sequence
from engine.sampling import Laws, Purpose, probabilities, uniforms
from engine.shard import WHOLE, Share


class Eagle3Drafter(Drafter):
    """Drafts K tokens one after another. It has no confidence head."""

    def __init__(self, draft: Eagle3Draft) -> None:
        self.draft, self.capture, self.kv = draft, draft.capture, draft.cfg.model
        self.kept_size = draft.cfg.model.hidden_size

    @classmethod
    def load(cls, config: EngineConfig, target: Target, share: Share = WHOLE) -> Eagle3Drafter:
        """The draft of config.draft_path. Raises EngineError where it is missing or does not fit."""
        if config.draft_path is None:
            raise EngineError("the draft eagle3 has no checkpoint", "give draft_path")
        weight = target.embed.weight
        device = str(weight.device)
        return cls(load_eagle3(config.draft_path, target, dtype=weight.dtype, device=device, share=share))

    def weights(self) -> Eagle3Draft:
        return self.draft

    def bind(self, cache: KVCache, layer_offset: int) -> None:
        self.cache, self.layer = cache, layer_offset

    def observe(self, batch: Batch, features: Tensor) -> None:
        fused = self.draft.fuse(features)
        first = self._fused_before(batch.positions[:, 0], batch.page_table).to(fused.dtype)
        rows = fused.view(*batch.ids.shape, -1)
        before = torch.cat((first.unsqueeze(1), rows[:, :-1]), dim=1).flatten(0, 1)
        slots = batch.slots.flatten()
        k, v = self.draft.context_kv(batch.ids.flatten(), before, batch.positions.flatten())
        self.cache.store(self.layer, slots, k, v)
        self.cache.store_index(self.layer, slots, fused)

    def _fused_before(self, positions: Tensor, page_table: Tensor) -> Tensor:
        """Fused features [n, hidden] of the places before `positions` [n]; any finite ones for position 0."""
        size, at = self.cache.page_size, (positions - 1).clamp(min=0).unsqueeze(1)
        slots = page_table.gather(1, at // size) * size + at % size
        return self.cache.index_at(self.layer, slots.squeeze(1))

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        starts = np.array([s.stored for s in seqs])
        at = torch.from_numpy(starts).to(page_table.device)
        token = torch.tensor([s.tokens[-1] for s in seqs], device=page_table.device)
        before = self._fused_before(at, page_table).to(self.cache.dtype)
        attend = PagedChain(self.cache, self.layer, page_table, at, int(starts.max()))
        width = max(counts)  # a row whose count is less is drafted past it, and nobody reads that
        at = at.unsqueeze(1) + torch.arange(width, device=at.device)
        at = at.clamp(max=self.draft.cfg.model.max_positions - 1)
        u = None if laws is None else uniforms(laws.keys, starts + 1, width, Purpose.DRAFT).to(at.device)

        tokens, probs = [], []
        for i in range(width):
            normed, before = self.draft.step(token, before, at[:, i], attend)
            logits = self.draft.logits(normed)
            if laws is None or u is None:
                token = logits.argmax(-1)
            else:
                probs.append(probabilities(logits, laws))
                token = self.cache.kernels.draw(probs[-1], u[:, i])
            tokens.append(token)
        laws_used = torch.stack(probs, dim=1) if probs else None
        return Proposal(tokens=torch.stack(tokens, dim=1), counts=counts, probs=laws_used)


def reference_drafts(draft: Eagle3Draft, features: Tensor, tokens: list[int], k: int) -> list[int]:
    """Slow twin of observe and propose: k greedy drafts after `tokens`, all pairs computed anew at each pass.

    features: [len(tokens) - 1, captured * target hidden] of all tokens but the anchor. No cache, no batch: the
    pairs of the context and of the passes so far go through the layer as one causal sequence.
    """
    fused = draft.fuse(features)
    hidden, ids = list(fused), list(tokens)
    for _ in range(k):
        rows = torch.arange(1, len(ids), device=fused.device)
        n = len(rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, index: object = None, n: int = n) -> Tensor:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k).double() * q.shape[-1] ** -0.5
            later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            weights = scores.masked_fill(later, -torch.inf).softmax(-1).to(v.dtype)
            return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

        normed, after = draft.step(torch.tensor(ids[1:], device=fused.device), torch.stack(hidden), rows, attend)
        ids.append(int(draft.logits(normed[-1:]).argmax()))
        hidden.append(after[-1])
    return ids[len(tokens) :]

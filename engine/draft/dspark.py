"""The DSpark draft at work: context K and V after each target forward, one block from each anchor.

Context K and V live in the target's pages, as extra layers, so prefix reuse covers them. They are made
for all rows of a target forward. Those of rejected drafts hold nothing anybody reads: the next step
writes the same positions again before it drafts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.attention import BlockAttend, store_context
from engine.batch import Batch
from engine.config import EngineConfig
from engine.draft import Drafter, Proposal
from engine.draft.block import BlockDraft, DraftBlock
from engine.dspark_config import ships_draft
from engine.errors import EngineError
from engine.kernels import markov_greedy, markov_logits
from engine.kv_cache import KVCache
from engine.model import Target
from engine.request import Sequence
from engine.sampling import Laws, Purpose, probabilities, uniforms
from engine.shard import WHOLE, Share
from engine.weights import load_draft


class DSparkDrafter(Drafter):
    """Drafts K slots ("k") or the trained block size ("block") and keeps the first K."""

    def __init__(self, draft: BlockDraft, *, max_model_len: int, block_width: bool = False) -> None:
        self.draft, self.capture, self.kv = draft, draft.cfg.target_layer_ids, draft.cfg.model
        self._max_len, self._block = max_model_len, draft.cfg.block_size if block_width else 0

    @classmethod
    def load(cls, config: EngineConfig, target: Target, share: Share = WHOLE) -> DSparkDrafter:
        """The draft of config.draft_path, or the one that the target's checkpoint ships.

        Raises EngineError where there is none or it does not fit.
        """
        folder = config.draft_path or config.model
        if config.draft_path is None and not ships_draft(folder):
            raise EngineError("the draft dspark has no checkpoint, and the target's has none inside", "give draft_path")
        weight = target.embed.weight
        draft = load_draft(folder, target, dtype=weight.dtype, device=str(weight.device), share=share)
        block = draft.cfg.block_size
        if config.draft_width == "block" and config.k > block:
            raise EngineError(f"K is {config.k} but the draft's block has {block} slots",
                              f"use K={block} at most, or draft_width k")  # fmt: skip
        longest = min(target.cfg.max_positions, draft.cfg.model.max_positions)
        made = cls(draft, max_model_len=config.max_model_len or longest, block_width=config.draft_width == "block")
        if config.k > block:
            made.notes = (f"K is {config.k} and the draft was trained on blocks of {block}: it never saw the slots "
                          f"after them, use K={block} at most to judge it",)  # fmt: skip
        return made

    def weights(self) -> BlockDraft:
        return self.draft

    def bind(self, cache: KVCache, layer_offset: int) -> None:
        self.cache, self.offset = cache, layer_offset

    def observe(self, batch: Batch, features: Tensor) -> None:
        kv = self.draft.context_kv(features, batch.positions.flatten())
        store_context(self.cache, self.offset, batch.slots.flatten(), kv)

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        widths = [self._width(s, k) for s, k in zip(seqs, counts, strict=True)]
        if min(widths) == max(widths):
            block = self._blocks(seqs, widths[0], max(counts), page_table, laws)
        else:
            block = self._ragged(seqs, counts, widths, page_table, laws)
        return Proposal(tokens=block.tokens, counts=counts, probs=block.probs, confidence=block.confidence)

    def _width(self, seq: Sequence, k: int) -> int:
        """Slots to draft: the width decides the tokens, since slots see each other. 0 where k is 0."""
        if not k or not self._block:
            return k
        return min(self._block, self._max_len - len(seq.tokens) + 1)

    def _ragged(
        self, seqs: list[Sequence], counts: list[int], widths: list[int], page_table: Tensor, laws: Laws | None
    ) -> DraftBlock:
        """Blocks of several widths: those of one width are drafted together. Near the end of a context only."""
        n, k, device = len(seqs), max(counts), page_table.device
        tokens = torch.zeros(n, k, dtype=torch.int64, device=device)
        probs = None if laws is None else torch.zeros(n, k, self.draft.cfg.model.vocab_size, device=device)
        confidence = None if self.draft.confidence is None else torch.zeros(n, k, device=device)
        for width in sorted(set(widths) - {0}):
            rows = [i for i, w in enumerate(widths) if w == width]
            keep = max(counts[i] for i in rows)
            picked = laws.select(rows) if laws else None
            part = self._blocks([seqs[i] for i in rows], width, keep, page_table[rows], picked)
            for whole, piece in ((tokens, part.tokens), (probs, part.probs), (confidence, part.confidence)):
                if whole is not None and piece is not None:
                    whole[rows, :keep] = piece
        return DraftBlock(tokens, probs, confidence)

    def _blocks(self, seqs: list[Sequence], width: int, keep: int, page_table: Tensor, laws: Laws | None) -> DraftBlock:
        """The first `keep` drafts of blocks of `width` slots, one for each sequence."""
        draft, device = self.draft, page_table.device
        starts = np.array([s.stored for s in seqs])
        starts_t = torch.from_numpy(starts).to(device)
        anchors = torch.tensor([s.tokens[-1] for s in seqs], device=device)
        positions = starts_t[:, None] + torch.arange(width, device=device)
        attend = BlockAttend(self.cache, self.offset, page_table, starts_t, draft.cfg.window)
        ids = draft.block_ids(anchors, width)
        hidden = draft.hidden(ids.flatten(), positions.flatten(), attend)
        hidden = hidden.view(len(seqs), width, -1)[:, :keep]
        base = draft.base_logits(hidden)
        u = None if laws is None else uniforms(laws.keys, starts + 1, keep, Purpose.DRAFT).to(device)

        tokens, laws_used = self._chain(base, hidden, anchors, laws, u)
        confidence = None
        if draft.confidence is not None:
            confidence = draft.confidences(hidden, tokens[:, :-1])
        return DraftBlock(tokens[:, 1:], torch.stack(laws_used, dim=1) if laws_used else None, confidence)

    def _chain(
        self, base: Tensor, hidden: Tensor, anchors: Tensor, laws: Laws | None, u: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """int64 [n, 1 + slots]: the anchors, and the token of each slot after the one before it; and the drafts' laws.

        base, hidden: [n, slots, vocab or hidden]; u: float64 [n, slots], None where the best token is taken.
        """
        draft, kernels = self.draft, self.cache.kernels
        vanilla = draft.cfg.markov_head == "vanilla"
        fused = bool(draft.cfg.markov_rank) and kernels.takes("markov")
        chain, laws_used, state = [anchors], [], None
        if fused and vanilla and u is None:
            chain += markov_greedy(base, anchors, draft.markov_in.weight, draft.markov_out.weight).unbind(1)
        for i in range(base.shape[1] if len(chain) == 1 else 0):
            if fused:
                table, at = draft.markov_in.weight, chain[-1]
                if not vanilla:  # what a gated or recurrent head multiplies takes the place of the embedding
                    table, state = draft.markov_latent(hidden[:, i], at, state)
                    at = torch.arange(len(at), device=at.device)
                if u is None:
                    chain.append(markov_greedy(base[:, i : i + 1], at, table, draft.markov_out.weight).squeeze(1))
                    continue
                logits = markov_logits(base[:, i], at, table, draft.markov_out.weight)
            else:
                logits, state = draft.markov_step(base[:, i], hidden[:, i], chain[-1], state)
            if laws is None or u is None:
                chain.append(logits.argmax(-1))
            else:
                laws_used.append(probabilities(logits, laws))
                chain.append(kernels.draw(laws_used[-1], u[:, i]))
        return torch.stack(chain, dim=1), laws_used

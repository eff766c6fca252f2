"""One tick: rows -> propose -> target forward -> verify -> commit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.attention import PagedAttend, picks_blocks
from engine.batch import Batch
from engine.confidence import verified
from engine.config import EngineConfig
from engine.draft import Drafter, Proposal
from engine.errors import EngineError
from engine.graphs import Graphs
from engine.kv_cache import KVCache
from engine.model import Target
from engine.mono.path import MonoPath, compare
from engine.mono.router import Router
from engine.prefix_cache import PageTable
from engine.request import Gaps, Sequence
from engine.sampling import Laws, Purpose, probabilities, uniforms
from engine.scheduler import Chunk, Plan
from engine.verify import Decision, accept_forced


class Runner:
    """Runs plans on a target with a draft, and commits what they give to the sequences.

    router: which decode steps `mono` serves, none where it is None. The other ones go through `graphs`, where there are
    any. config.mono_check computes Mono's steps on the ordinary path too and compares.
    """

    def __init__(
        self, target: Target, drafter: Drafter | None, cache: KVCache, config: EngineConfig, *,
        router: Router | None = None, mono: MonoPath | None = None,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.cache, self.k = target, drafter, cache, config.k
        self.config, self.drafts_left_out = config, 0
        self.router, self.mono, self.check = router or Router(config.k, why_not="off"), mono, config.mono_check
        self.graphs: Graphs | None = None
        self.kernels = cache.kernels
        self.kernels_steps = 0  # decode steps in which a kernel ran whatever has one
        self.fused_topk_steps = 0  # verify steps whose K+1 rows were given their blocks by one reading of the index
        self.prefill_tokens = self.prefill_ticks = 0
        self.decode_ticks = self.decode_rows = self.verify_steps = 0

    def tick(self, plan: Plan) -> None:
        """Run one plan. Raises EngineError where the model's logits are not numbers."""
        if plan.prefill:
            self._prefill(plan.prefill)
        else:
            self._decode(plan.decode)

    def forward(self, ids: Tensor, starts: np.ndarray, counts: np.ndarray, tables: np.ndarray) -> Tensor:
        """Final hidden [n * width, hidden] of rows start..start+count-1 of n sequences; their K and V are stored.

        ids: int64 [n, width]; starts, counts: int64 [n]; tables: int64 [n, pages], see `page_tables`.
        """
        batch = _batch(ids, starts, counts, tables, self.cache.page_size)
        return self._observed(batch, self.ordinary(batch))

    def ordinary(self, batch: Batch, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """Final hidden [rows, hidden] and captured features of a batch; see PagedAttend of `longest`."""
        attend = PagedAttend(batch, self.cache, sparse=self.target.cfg.sparse, longest=longest)
        return self.target(batch.ids.flatten(), batch.positions.flatten(), attend, self._capture)

    @property
    def _capture(self) -> tuple[int, ...]:
        return self.drafter.capture if self.drafter else ()

    def _observed(self, batch: Batch, found: tuple[Tensor, Tensor]) -> Tensor:
        if self.drafter:
            self.drafter.observe(batch, found[1])
        return found[0]

    def _step(self, batch: Batch) -> Tensor:
        """Final hidden of a decode step, by the path that serves it."""
        if self.router.route(batch.positions.shape[0]) and self.mono is not None:
            if not self.check:
                return self._observed(batch, self.mono.forward(batch, self._capture))
            plain = self.ordinary(batch)
            found = self.mono.forward(batch, self._capture)
            compare(self.target, batch, found, plain)
            return self._observed(batch, found)
        return self._observed(batch, self.graphs.run(batch) if self.graphs else self.ordinary(batch))

    def _prefill(self, chunks: list[Chunk]) -> None:
        starts = np.array([c.start for c in chunks])
        counts = np.array([c.count for c in chunks])
        width = int(counts.max())
        ids = np.zeros((len(chunks), width), dtype=np.int64)
        for row, c in zip(ids, chunks, strict=True):
            row[: c.count] = c.seq.tokens[c.start : c.start + c.count]
        tables = page_tables([c.seq.table for c in chunks], int((starts + counts).max()))
        hidden = self.forward(self._to_device(ids), starts, counts, tables)
        self.prefill_ticks += 1
        self.prefill_tokens += int(counts.sum())
        for c in chunks:
            c.seq.stored = c.start + c.count

        ends = [i for i, c in enumerate(chunks) if c.last]
        if not ends:
            return
        last = torch.tensor([i * width + chunks[i].count - 1 for i in ends], device=hidden.device)
        seqs = [chunks[i].seq for i in ends]
        anchors = np.array([s.stored - 1 for s in seqs])  # the last prompt token stands where an anchor would
        logits = self.target.logits(hidden[last]).unsqueeze(1)
        token = self._decide(logits, None, seqs, anchors, self._laws(seqs)).token
        for seq, t, gaps in zip(seqs, token.tolist(), self._gaps(logits), strict=True):
            seq.commit_first(t, gaps)

    def _decode(self, seqs: list[Sequence]) -> None:
        laws, mono, twins = self._laws(seqs), self.router.mono_steps, self.kernels.twin_calls
        starts = np.array([s.stored for s in seqs])  # each anchor's position
        wanted = [s.draft_room(self.k) for s in seqs]
        tables = page_tables([s.table for s in seqs], int(starts.max()) + 1 + max(wanted))
        proposal = None
        if self.drafter and any(wanted):
            proposal = self.drafter.propose(seqs, wanted, self._to_device(tables), laws)
            proposal = self._chosen(proposal) if self.config.scheduled else proposal
            proposal = proposal if any(proposal.counts) else None

        ids = self._to_device(np.array([[s.tokens[-1]] for s in seqs]))
        counts = np.ones_like(starts)
        if proposal:
            ids = torch.cat((ids, proposal.tokens), dim=1)
            counts += np.array(proposal.counts)
        hidden = self._step(_batch(ids, starts, counts, tables, self.cache.page_size))
        logits = self.target.logits(hidden).view(len(seqs), ids.shape[1], -1)
        decision = self._decide(logits, proposal, seqs, starts, laws)
        self.decode_ticks += 1
        self.decode_rows += int(counts.sum())
        ordinary = mono == self.router.mono_steps
        self.kernels_steps += self.kernels.triton and ordinary and twins == self.kernels.twin_calls
        asked = picks_blocks(self.target.cfg.sparse, int((starts + counts).max()))
        self.fused_topk_steps += ordinary and asked and proposal is not None
        self._commit(seqs, ids, proposal, decision, self._gaps(logits))

    def _chosen(self, proposal: Proposal) -> Proposal:
        """The drafts that their confidences let the target see, no wider than the longest block of them."""
        if proposal.confidence is None:
            raise EngineError("this draft gives no confidences to choose drafts by",
                              "leave confidence_threshold and verify_rows at 0")  # fmt: skip
        how = self.config
        found = proposal.confidence.tolist()
        counts = verified(found, proposal.counts, threshold=how.confidence_threshold, rows=how.verify_rows)
        self.drafts_left_out += sum(proposal.counts) - sum(counts)
        width = max(counts)
        probs = None if proposal.probs is None else proposal.probs[:, :width]
        return Proposal(
            tokens=proposal.tokens[:, :width], counts=counts, probs=probs, confidence=proposal.confidence[:, :width]
        )

    def _gaps(self, logits: Tensor) -> list[Gaps]:
        """Best less second logit of each row of each sequence, or nothing where it is not asked for."""
        if not self.config.gaps:
            return [()] * logits.shape[0]
        best = logits.topk(2, dim=-1).values
        return (best[..., 0] - best[..., 1]).tolist()

    def _decide(
        self, logits: Tensor, proposal: Proposal | None, seqs: list[Sequence], starts: np.ndarray, laws: Laws | None
    ) -> Decision:
        """What the target makes of a proposal. logits: [n, width, vocab]; starts: [n], the anchors' positions."""
        top, targets = logits.max(-1)
        if not bool(torch.isfinite(top.sum())):
            raise EngineError("the target's logits hold a NaN or an infinity", "check the weights and the KV format")
        if proposal is None:
            none = targets.new_zeros(targets.shape[0])
            if laws is None:
                return Decision(none, targets[:, 0])
            u = uniforms(laws.keys, starts + 1, 1, Purpose.TARGET).to(logits.device)
            return Decision(none, self.kernels.draw(probabilities(logits, laws)[:, 0], u[:, 0]))
        k = proposal.tokens.shape[1]
        counts = None
        if min(proposal.counts) < k:
            counts = torch.tensor(proposal.counts, device=logits.device)
        if self.config.verify == "forced":
            keys = np.array([s.key for s in seqs], dtype=np.uint64)
            u = uniforms(keys, starts + 1, 1, Purpose.FORCED).to(logits.device)
            return accept_forced(targets, proposal.tokens, u[:, 0], self.config.forced_length, counts)
        if laws is None:
            return self.kernels.accept_greedy(targets, proposal.tokens, counts)
        u_accept = uniforms(laws.keys, starts + 1, k, Purpose.ACCEPT).to(logits.device)
        u_token = uniforms(laws.keys, starts + 1, k + 1, Purpose.TARGET).to(logits.device)
        p = probabilities(logits, laws)
        accept = self.kernels.accept_block if self.config.verify == "block" else self.kernels.accept_sampled
        return accept(p, proposal.probs, proposal.tokens, u_accept, u_token, counts)

    def _commit(
        self, seqs: list[Sequence], ids: Tensor, proposal: Proposal | None, decision: Decision, gaps: list[Gaps]
    ) -> None:
        if proposal is None:
            for seq, token, g in zip(seqs, decision.token.tolist(), gaps, strict=True):
                seq.commit_step([token], 0, gaps=g)
            return
        rows = torch.cat((decision.accepted[:, None], decision.token[:, None], ids[:, 1:]), dim=1).tolist()
        confidence = [()] * len(seqs) if proposal.confidence is None else proposal.confidence.tolist()
        parts = zip(seqs, proposal.counts, rows, confidence, gaps, strict=True)
        for seq, k, (accepted, token, *drafts), c, g in parts:
            seq.commit_step([*drafts[:accepted], token], k, tuple(c[:k]), tuple(drafts[accepted:k]), g)
            self.verify_steps += k > 0

    def _laws(self, seqs: list[Sequence]) -> Laws | None:
        return Laws.of([s.params for s in seqs], [s.key for s in seqs], self.cache.device)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.cache.device)


def page_tables(tables: list[PageTable], length: int) -> np.ndarray:
    """int64 [n, pages]: the pages that cover `length` tokens of each sequence, padded with 0."""
    count = tables[0].pool.pages_for(length)
    out = np.zeros((len(tables), count), dtype=np.int64)
    for row, table in zip(out, tables, strict=True):
        pages = table.pages[:count]
        row[: len(pages)] = pages
    return out


def _batch(ids: Tensor, starts: np.ndarray, counts: np.ndarray, tables: np.ndarray, page_size: int) -> Batch:
    """The Batch of rows start..start+count-1 of each sequence; places past a count are padding."""
    n, width = ids.shape
    positions = starts[:, None] + np.arange(width)
    padded = int(counts.min()) < width
    if padded:
        positions = np.where(np.arange(width) < counts[:, None], positions, -1)
    page, offset = np.divmod(positions, page_size)
    slots = tables[np.arange(n)[:, None], page] * page_size + offset
    if padded:
        slots[positions < 0] = -1
    parts = (torch.from_numpy(a).to(ids.device) for a in (positions, slots, tables, starts + counts))
    positions_t, slots_t, tables_t, lengths_t = parts
    return Batch(ids=ids, positions=positions_t, slots=slots_t, page_table=tables_t, lengths=lengths_t)

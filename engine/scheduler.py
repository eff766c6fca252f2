"""Who runs next: prefill, decode, preempt. Decides about sequences and pages and touches no tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter

from engine.prefix_cache import OutOfPages, PagePool
from engine.request import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part of a sequence's prefill: tokens start..start+count-1."""

    seq: Sequence
    start: int
    count: int

    @property
    def last(self) -> bool:
        """True where this chunk ends the prefill of a new prompt, so that its last row gives a token."""
        return self.start + self.count == self.seq.to_store and self.seq.emitted == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One tick: either chunks to prefill or sequences to decode, never both."""

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)


class Scheduler:
    """First come, first served; prefill goes before decode; out of pages, the youngest gives way.

    A preempted sequence returns to the front of the queue with what it generated. Its prompt and output
    are stored again, but for the anchor, and it goes on as if nothing had happened.
    """

    def __init__(self, pool: PagePool, *, max_batch: int, max_batched_tokens: int, k: int) -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self.preemptions = 0
        self.cached_tokens = 0
        self.peak_pages = 0
        self._max_batch, self._budget, self._k = max_batch, max_batched_tokens, k

    def add(self, seqs: Iterable[Sequence]) -> None:
        """Queue sequences whose prompts have been checked."""
        self.waiting.extend(seqs)

    def next(self) -> Plan | None:
        """What to do in this tick, with pages for it taken; None when every sequence has finished."""
        plan = Plan(prefill=self._prefill())
        if not plan.prefill and self.running:
            plan = Plan(decode=self._decode())
        self.peak_pages = max(self.peak_pages, self.pool.in_use)
        return plan if plan.prefill or plan.decode else None

    def settle(self, plan: Plan) -> list[Sequence]:
        """After a tick: publish full pages, give back those of rejected drafts, and drop finished sequences.

        Returns the finished ones, in order of admission.
        """
        for seq in plan.decode or [c.seq for c in plan.prefill]:
            seq.table.publish(seq.tokens, seq.stored)
            if plan.decode:
                seq.table.truncate(seq.stored)
        finished = [s for s in self.running if s.finish_reason is not None]
        if finished:
            self.running = [s for s in self.running if s.finish_reason is None]
            for seq in finished:
                seq.table.release()
        return finished

    @property
    def idle(self) -> bool:
        """True when no sequence waits or runs."""
        return not self.waiting and not self.running

    def remove(self, seq: Sequence) -> None:
        """Drop one sequence, waiting or running, between two ticks, and give back its pages."""
        if seq in self.running:
            self.running.remove(seq)
        else:
            self.waiting.remove(seq)
        seq.table.release()

    def abort(self) -> None:
        """Drop every sequence and give back its pages."""
        for seq in self.running:
            seq.table.release()
        self.running.clear()
        self.waiting.clear()

    def _prefill(self) -> list[Chunk]:
        """Chunks of unfinished prefills, then of new sequences.

        A tick computes sequences x longest chunk rows, padding included, at most the budget. Only the
        first chunk of a tick may be cut.
        """
        chunks: list[Chunk] = []
        width = 0
        pending = (s for s in list(self.running) if s.stored < s.to_store)
        while (seq := next(pending, None)) is not None or (seq := self._admit(len(chunks), width)) is not None:
            left = seq.to_store - seq.stored
            if not left:
                continue  # the prefix cache had all of it
            if not chunks:
                left = min(left, self._budget)
            elif (len(chunks) + 1) * max(width, left) > self._budget:
                break
            width = max(width, left)
            chunks.append(Chunk(seq=seq, start=seq.stored, count=left))
        return chunks

    def _admit(self, chunks: int, width: int) -> Sequence | None:
        """Move the head of the queue to `running`, if the batch, the rows left and the pages allow it."""
        if not self.waiting or len(self.running) >= self._max_batch or (chunks + 1) * width > self._budget:
            return None
        seq = self.waiting[0]
        room = seq.to_store + 1 + seq.draft_room(self._k)
        if self.running:  # leave each running sequence the pages of its next step
            spare = len(self.running) * self.pool.pages_for(self._k + 1)
            if self.pool.pages_for(room) + spare > self.pool.available:
                return None
        try:
            seq.stored = seq.table.reuse(seq.tokens, room)
        except OutOfPages:
            return None
        self.waiting.popleft()
        self.running.append(seq)
        self.cached_tokens += seq.stored
        if seq.admitted_at is None:
            seq.admitted_at = perf_counter()
            seq.cached_tokens = seq.stored
        return seq

    def _decode(self) -> list[Sequence]:
        """Every running sequence that can have pages for its next step."""
        ready: list[Sequence] = []
        while len(ready) < len(self.running):
            seq = self.running[len(ready)]
            try:
                seq.table.grow(seq.stored + 1 + seq.draft_room(self._k))
                ready.append(seq)
            except OutOfPages:
                self._preempt(self.running.pop())
        return ready

    def _preempt(self, seq: Sequence) -> None:
        seq.table.release()
        seq.stored = 0
        self.waiting.appendleft(seq)
        self.preemptions += 1

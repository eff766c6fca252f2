"""Who runs next: prefill, decode, preempt. Decides about sequences and pages and touches no tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter

from engine.delayer import Delayer, Load
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
    """First come, first served; prefill goes before decode, unless a delayer says that it waits; out of pages, the
    youngest gives way.

    A preempted sequence returns to the front of the queue with what it generated. Its prompt and output
    are stored again, but for the anchor, and it goes on as if nothing had happened.
    """

    def __init__(
        self, pool: PagePool, *, max_batch: int, max_batched_tokens: int, k: int, delayer: Delayer | None = None
    ) -> None:  # fmt: skip
        self.pool, self.delayer = pool, delayer
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
        free = self.delayer is None or self.delayer.allow(self._load())
        plan = Plan(prefill=self._prefill() if free else [])
        if not plan.prefill and self.running:
            plan = Plan(decode=self._decode())
        if not free and not plan.decode:  # what decoded was preempted for a prompt that is half done
            plan = Plan(prefill=self._prefill())
        if self.delayer is not None and plan.prefill:
            self.delayer.ran(ended=any(c.start + c.count == c.seq.to_store for c in plan.prefill))
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

    def _load(self) -> Load:
        """What the delayer goes by."""
        assert self.delayer is not None
        left = [s.to_store - s.stored for s in self.running]
        pending, partial = sum(left), any(left)
        for seq in self.waiting:
            if pending >= self._budget:
                break
            pending += seq.to_store  # whatever of it the prefix cache may have
        return Load(
            prefillable=partial or self._prefillable(), pending=min(pending, self._budget), decoding=left.count(0),
            partial=partial, kv_used=self.pool.in_use / self.pool.num_pages,
        )  # fmt: skip

    def _prefillable(self) -> bool:
        """Whether the head of the queue could start, in the sense that the delayer's configuration chooses."""
        assert self.delayer is not None
        sense = self.delayer.config.prefillable
        if not self.waiting or sense == "queued":
            return bool(self.waiting)
        return self._has_pages(self.waiting[0]) and (sense == "allocatable" or len(self.running) < self._max_batch)

    def _room(self, seq: Sequence) -> int:
        return seq.to_store + 1 + seq.draft_room(self._k)

    def _has_pages(self, seq: Sequence) -> bool:
        """Whether the pool holds a new sequence and leaves each running one the pages of its next step."""
        spare = len(self.running) * self.pool.pages_for(self._k + 1)
        return not self.running or self.pool.pages_for(self._room(seq)) + spare <= self.pool.available

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
        if not self._has_pages(seq):
            return None
        try:
            seq.stored = seq.table.reuse(seq.tokens, self._room(seq))
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
        """Every running sequence that can have pages for its next step, but those that are held half prefilled."""
        ready: list[Sequence] = []
        at = 0
        while at < len(self.running):
            seq = self.running[at]
            if seq.stored < seq.to_store:
                at += 1
                continue
            try:
                seq.table.grow(seq.stored + 1 + seq.draft_room(self._k))
                ready.append(seq)
                at += 1
            except OutOfPages:
                self._preempt(self.running.pop())
        return ready

    def _preempt(self, seq: Sequence) -> None:
        seq.table.release()
        seq.stored = 0
        self.waiting.appendleft(seq)
        self.preemptions += 1

"""Decode steps in padded batches of few sizes: captured as a CUDA or HIP graph on a GPU, run as they are elsewhere.

The eager run is the twin of the captured one: the same padded batch through the same function. On a CPU only that
one exists, so sizes, padding and counts are tested without a GPU. The capture itself has not been run on one yet.

A padding row has position -1 and slot -1: it is stored nowhere, no statistic counts it, and its result is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch
from engine.mono.router import padded_size

Result = tuple[Tensor, Tensor]  # final hidden [rows, hidden] and features [rows, any]
Forward = Callable[[Batch, int | None], Result]  # the second argument: the longest context, None to look


@dataclass(frozen=True, slots=True)
class _Captured:
    batch: Batch  # what the graph reads
    graph: torch.cuda.CUDAGraph
    result: Result  # where it writes


class Graphs:
    """Pads decode batches to `sizes` (ascending) sequences of `width` rows and runs `forward` on them.

    pages: columns of a page table that covers max_length tokens; a graph reads a table of this width always, since
    what it captured cannot change. Counts: `hits` steps of a listed size, `misses` steps above the largest, which run
    unpadded, `padding_rows`.
    """

    def __init__(
        self, forward: Forward, *, sizes: Sequence[int], width: int, pages: int, max_length: int, device: torch.device
    ) -> None:
        self.forward, self.sizes, self.width = forward, tuple(sizes), width
        self.pages, self.max_length, self.device = pages, max_length, device
        self.hits = self.misses = self.padding_rows = 0
        self._captured: dict[int, _Captured] = {}
        self._pool = None

    def run(self, batch: Batch) -> Result:
        """What forward(batch) gives, for the rows of `batch` alone."""
        n, width = batch.positions.shape
        size = padded_size(n, self.sizes)
        if size not in self.sizes or width > self.width:
            self.misses += 1
            return self.forward(batch, None)
        self.hits += 1
        self.padding_rows += size * self.width - int((batch.positions >= 0).sum())
        padded = pad(batch, size, self.width)
        hidden, features = self._replay(padded) if self.device.type == "cuda" else self.forward(padded, None)
        return _cut(hidden, size, self.width, n, width), _cut(features, size, self.width, n, width)

    def capture(self) -> None:
        """Capture every size, largest first, so that the smaller ones reuse its memory. On a GPU only."""
        for size in reversed(self.sizes):
            self._capture(size)

    def _replay(self, batch: Batch) -> Result:
        size = batch.positions.shape[0]
        if size not in self._captured:
            self._capture(size)
        held = self._captured[size]
        held.batch.ids.copy_(batch.ids)
        held.batch.positions.copy_(batch.positions)
        held.batch.slots.copy_(batch.slots)
        held.batch.lengths.copy_(batch.lengths)
        held.batch.page_table.zero_()[:, : batch.page_table.shape[1]].copy_(batch.page_table)
        held.graph.replay()
        return held.result

    def _capture(self, size: int) -> None:
        """Two runs to compile kernels and settle memory, then the recorded one. All rows are padding."""
        batch = empty(size, self.width, self.pages, self.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.forward(batch, self.max_length)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self.forward(batch, self.max_length)
        self._pool = self._pool or graph.pool()
        self._captured[size] = _Captured(batch, graph, result)

    def counters(self) -> dict[str, int]:
        if not self.sizes:
            return {}
        return {"graph_hits": self.hits, "graph_misses": self.misses, "graph_padding_rows": self.padding_rows}


def empty(size: int, width: int, pages: int, device: torch.device) -> Batch:
    """A Batch of padding rows."""
    ids = torch.zeros(size, width, dtype=torch.int64, device=device)
    return Batch(
        ids=ids, positions=ids - 1, slots=ids - 1,
        page_table=torch.zeros(size, pages, dtype=torch.int64, device=device),
        lengths=torch.zeros(size, dtype=torch.int64, device=device),
    )  # fmt: skip


def pad(batch: Batch, size: int, width: int) -> Batch:
    """The batch with padding rows up to `size` sequences of `width` rows."""
    n, own = batch.positions.shape
    if (n, own) == (size, width):
        return batch
    more, wider = size - n, width - own
    return Batch(
        ids=F.pad(batch.ids, (0, wider, 0, more)),
        positions=F.pad(batch.positions, (0, wider, 0, more), value=-1),
        slots=F.pad(batch.slots, (0, wider, 0, more), value=-1),
        page_table=F.pad(batch.page_table, (0, 0, 0, more)),
        lengths=F.pad(batch.lengths, (0, more)),
    )


def _cut(rows: Tensor, size: int, width: int, n: int, own: int) -> Tensor:
    """The first `own` rows of the first n sequences, of rows [size * width, any]."""
    return rows.view(size, width, -1)[:n, :own].reshape(n * own, -1)

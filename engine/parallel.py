"""Ranks that share one model: how their parts become whole again, and the proof that they do the same.

Every rank runs the same scheduler, runner and draws on the same requests; a draw depends on (seed, request, place,
purpose) alone, so tokens need not be sent around. What is exchanged are the partial sums of row-parallel layers and,
before each tick, a checksum of what was committed. One collective serves both, an all-gather: a sum is then taken in
the order of ranks, in float32, on every rank alike. An all-reduce would move half the bytes at four ranks, but its
order is the library's, changes with a row's place in the batch, and would be another one on every backend.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from engine.errors import EngineError
from engine.request import Sequence

dist: Any = torch.distributed  # groups outside the default one are made by classes that its stubs leave out


class RankLost(Exception):
    """A collective came to nothing: another rank ended, or kept silent for too long."""


class Stopped(Exception):
    """Rank 0 gives up the requests that run; the other ranks leave them too and wait for the next call."""


class Parallel:
    """One rank's place among `size`. With size 1 nothing is exchanged and all of it is free."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.checksum, self.ticks = 0, 0
        self.timeout = 300.0  # seconds that one exchange may take
        self._group: Any = None
        self._device = torch.device("cpu")

    def connect(self, meeting: str, device: torch.device, timeout: float) -> None:
        """Meet the others by a file of this machine: gloo on a CPU, NCCL (RCCL on ROCm) on an accelerator.

        The group is this object's own and not torch's default one, so that a process may hold more than one.
        Raises RankLost after `timeout` seconds.
        """
        try:
            self._group = _group(dist.FileStore(meeting, self.size), self.rank, self.size, device, timeout)
        except RuntimeError as e:
            raise RankLost(str(e)) from None
        self._device = device

    def gather(self, x: Tensor) -> Tensor:
        """[size, *x.shape]: x of every rank, the bytes of each as it has them. Raises RankLost."""
        whole = torch.empty(self.size, *x.shape, dtype=x.dtype, device=x.device)
        into, mine = ([t.view(torch.uint8) for t in whole.unbind(0)], x.contiguous().view(torch.uint8))
        options = dist.distributed_c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=self.timeout)
        try:
            self._group.allgather([into], [mine], options).wait()
        except RuntimeError as e:
            raise RankLost(str(e)) from None
        return whole

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks of x, in its dtype: added in the order of ranks in float32, rounded once."""
        if self.size == 1:
            return x
        first, *others = self.gather(x).unbind(0)
        total = first.float()
        for part in others:
            total = total + part
        return total.to(x.dtype)

    def note(self, seqs: Iterable[Sequence], last: int) -> None:
        """Take what a tick committed into the checksum: of each sequence its length and its last tokens."""
        if self.size == 1:
            return
        self.ticks += 1
        for seq in seqs:
            told = [len(seq.tokens), len(seq.steps), *seq.tokens[-last:]]
            self.checksum = zlib.crc32(np.array(told, dtype=np.int64).tobytes(), self.checksum)

    def in_step(self, *, stop: bool = False) -> None:
        """Before each tick, and once after the last: all ranks compare checksums, and rank 0 may end it.

        Raises Stopped on the others where rank 0 stops, and EngineError on all where one committed something else.
        """
        if self.size == 1:
            return
        found = self.gather(torch.tensor([stop, self.checksum], device=self._device)).tolist()
        parted = [rank for rank, (_, checksum) in enumerate(found) if checksum != found[0][1]]
        if parted:
            raise EngineError(f"rank {parted[0]} of {self.size} did not commit what rank 0 did in tick {self.ticks}",
                              "run it again with tp 1; if it stays, report it as a bug")  # fmt: skip
        if found[0][0] and self.rank:
            raise Stopped


def _group(store: Any, rank: int, size: int, device: torch.device, timeout: float) -> Any:
    """A process group of this machine's ranks. gloo is told the loopback address: what a host's name stands for may
    be another machine, or open to others."""
    wait = timedelta(seconds=timeout)
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout, options._devices = wait, [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, size, options)

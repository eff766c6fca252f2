"""What the server has counted since its start. Filled by the engine's thread, read by the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.api import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The counts at one moment, all of the same moment.

    `by_accepted[j]` are verify steps that kept j drafts, before any trimming at a stop; `drafts` are the draft
    tokens proposed in them. Prefill's token belongs to no step, and steps without a draft are not counted.
    `engine` are the engine's own counters.
    """

    k: int
    by_accepted: tuple[int, ...]
    drafts: int
    emitted: int
    prompt_tokens: int  # of finished requests
    requests: dict[str, int]  # by how they ended: stop, length, cancelled, failed, refused
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def verify_steps(self) -> int:
        return sum(self.by_accepted)

    @property
    def accepted(self) -> int:
        return sum(j * n for j, n in enumerate(self.by_accepted))

    @property
    def per_position(self) -> tuple[int, ...]:
        """Steps whose first i+1 drafts were all kept, for i = 0..K-1; their sum is `accepted`."""
        return tuple(sum(self.by_accepted[i + 1 :]) for i in range(self.k))


class Stats:
    """The counts, under one lock."""

    def __init__(self, k: int) -> None:
        self.k = k
        self._lock = threading.Lock()
        self._by_accepted = [0] * (k + 1)
        self._drafts = self._emitted = self._prompt_tokens = 0
        self._requests: Counter[str] = Counter()

    def take(self, updates: Sequence[Update]) -> None:
        """Counts one tick, before anyone is told of it."""
        with self._lock:
            for update in updates:
                self._emitted += len(update.token_ids)
                if update.step is not None and update.step.k:
                    self._by_accepted[update.step.accepted] += 1
                    self._drafts += update.step.k
                if update.completion is not None:
                    self._requests[str(update.completion.finish_reason)] += 1
                    self._prompt_tokens += update.completion.prompt_tokens

    def ended(self, how: str) -> None:
        """Counts a request that did not finish: cancelled, failed or refused."""
        with self._lock:
            self._requests[how] += 1

    def snapshot(self, engine: dict[str, int] | None = None) -> Snapshot:
        with self._lock:
            return Snapshot(
                k=self.k,
                by_accepted=tuple(self._by_accepted),
                drafts=self._drafts,
                emitted=self._emitted,
                prompt_tokens=self._prompt_tokens,
                requests=dict(self._requests),
                engine=engine or {},
            )


def mtp_stats(s: Snapshot) -> dict[str, Any]:
    """The counts as ATOM's /debug/mtp_stats has them: `distribution_percent` holds fractions, and each step counts
    K draft tokens, whatever width was verified (`vllm:spec_decode_num_draft_tokens` counts those proposed)."""
    steps, drafts = s.verify_steps, s.verify_steps * s.k
    shares = {str(j): n / steps if steps else 0.0 for j, n in enumerate(s.by_accepted)}
    return {
        "enabled": s.k > 0,
        "total_draft_tokens": drafts,
        "total_accepted_tokens": s.accepted,
        "acceptance_rate": s.accepted / drafts if drafts else 0.0,
        "average_tokens_per_forward": 1 + s.accepted / steps if steps else 0.0,
        "distribution": {str(j): n for j, n in enumerate(s.by_accepted)},
        "distribution_percent": shares,
    }

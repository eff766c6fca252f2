"""Pages that are JSON: ATOM's /debug/mtp_stats, SGLang's /server_info, TensorRT-LLM's iteration statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalkit.servers.counters import HISTOGRAM, Snapshot

TRT_FIELDS = ("numRequestsWithDraftTokens", "numAcceptedTokens", "numDraftTokens")  # steps, accepted, drafts


def atom_stats(page: Mapping[str, Any], *, at: float) -> Snapshot | None:
    """Counts of ATOM's /debug/mtp_stats: lifetime, one rank. None where speculation is off.

    Its "distribution" counts steps by accepted drafts, so its sum is the steps; "distribution_percent" holds
    fractions and is not used.
    """
    if not page.get("enabled"):
        return None
    counts: dict[str, float] = {}
    problems = []
    for name, key in (("accepted", "total_accepted_tokens"), ("drafts", "total_draft_tokens")):
        value = _number(page.get(key))
        if value is None:
            problems.append(f"/debug/mtp_stats has {key} {page.get(key)!r}")
        else:
            counts[name] = value
    spread = page.get("distribution")
    if isinstance(spread, Mapping):
        for key, value in spread.items():
            counts[f"{HISTOGRAM}:{int(key)}"] = _number(value) or 0.0
        counts["steps"] = sum(v for n, v in counts.items() if n.startswith(HISTOGRAM))
    else:
        problems.append("/debug/mtp_stats has no distribution")
    return Snapshot(at=at, ranks={"": counts}, problems=tuple(problems))


def sglang_info(page: Mapping[str, Any], *, at: float) -> Snapshot | None:
    """Accepted length by rank of SGLang's /server_info. The value counts the target's token: 1 is not added.

    There are no counts on this page, and the last steps may not be in it yet (it is flushed at log ticks).
    """
    states = page.get("internal_states")
    if not isinstance(states, Sequence):
        return None
    found = [_number(s.get("avg_spec_accept_length")) if isinstance(s, Mapping) else None for s in states]
    if all(x is None for x in found):
        return None
    return Snapshot(at=at, ranks={}, lengths=tuple(found))


@dataclass(slots=True)
class TrtIterations:
    """TensorRT-LLM's /metrics gives iterations once, and drops them: they are added up as they are read.

    With attention data parallelism one iteration comes once a rank and rank 0's twice: a record that is equal to one
    of the same iteration and rank is dropped. The per-iteration acceptanceLength is never averaged.
    """

    counts: dict[str, float] = field(default_factory=lambda: {"steps": 0.0, "accepted": 0.0, "drafts": 0.0})
    problems: list[str] = field(default_factory=list)
    _seen: set[tuple[Any, ...]] = field(default_factory=set)
    _last: int | None = None

    def take(self, page: Sequence[Any], *, at: float) -> Snapshot:
        """Adds a page's iterations to what was read before."""
        for record in page:
            if not isinstance(record, Mapping):
                continue
            self._gap(record.get("iter"))
            spec = record.get("specDecodingStats")
            if not isinstance(spec, Mapping):
                continue
            numbers = [_number(spec.get(name)) for name in TRT_FIELDS]
            key = (record.get("iter"), record.get("attentionDpRank", record.get("rank")), *numbers)
            if record.get("iter") is not None and key in self._seen:
                continue
            self._seen.add(key)
            if None in numbers:
                self.problems.append("an iteration has specDecodingStats without counts")
                continue
            for name, value in zip(("steps", "accepted", "drafts"), numbers, strict=True):
                self.counts[name] += value or 0.0
        return Snapshot(at=at, ranks={"": dict(self.counts)}, problems=tuple(dict.fromkeys(self.problems)))

    def _gap(self, number: Any) -> None:
        if type(number) is not int:
            return
        if self._last is not None and number > self._last + 1:
            self.problems.append("iterations are missing between two reads: the server dropped them")
        self._last = max(number, self._last or 0)


def _number(value: Any) -> float | None:
    """A count or length, or None for anything else (NaN and negative numbers among it)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)

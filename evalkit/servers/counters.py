"""Counters of a server: two snapshots become one Reading of the work between them, with all that is wrong with it.

A Snapshot holds cumulative counts by rank (a label set of a Prometheus page, a DP rank, or "" for a server that has
one). Fields: steps (verify steps), accepted, drafts, requests, prompt_tokens, output_tokens, `survival:i` (steps that
kept a draft at position i, from 0) and `histogram:j` (steps that kept exactly j). Units are counts of tokens, steps or
requests.

| engine | steps | accepted length | first token | after a stop |
|---|---|---|---|---|
| ATOM | sum of the histogram | 1 + accepted / steps | not counted | counted |
| vLLM, llama.cpp | num_drafts (steps that had a draft) | 1 + accepted / steps | not counted | counted |
| TensorRT-LLM | sum of numRequestsWithDraftTokens | 1 + accepted / steps | not counted | not known |
| SGLang server_info | not told | the value itself, which counts the target's token | not counted | by version |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from evalkit.servers.slices import Piece, grouped

SURVIVAL, HISTOGRAM = "survival", "histogram"
COUNTED, LIFETIME, ESTIMATE = "counters", "lifetime", "estimate"
SLACK = 0.02  # share of our tokens that counters may miss where every step is a verify step
SILENT_REQUESTS = 8  # requests a rank, from which a rank that counted nothing is no chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Cumulative counts at one moment. `at` is our clock, `refreshed` and `started` the server's, in seconds."""

    at: float
    ranks: Mapping[str, Mapping[str, float]]
    refreshed: float | None = None
    started: float | None = None
    problems: tuple[str, ...] = ()
    lengths: tuple[float | None, ...] = ()  # accepted length by rank since the start, where that is all there is

    def total(self, name: str) -> float:
        return sum(rank.get(name, 0.0) for rank in self.ranks.values())

    def has(self, name: str) -> bool:
        return any(name in rank for rank in self.ranks.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the client knows of the work: requests that came back, tokens by the server's own usage, attempts that
    were given up (a server counts what it did for them too), and how long 9 of 10 requests took at most, in seconds."""

    requests: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    given_up: int = 0
    request_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Acceptance over a piece of work. `survival[i]` counts steps that kept at least i + 1 drafts; () is not told.

    `slices` are (steps, accepted) of successive pieces of time, for the spread, and `overlap` what requests that lie in
    two of them take off its variance (see `servers.slices`). `problems` say why the counts are not evidence; with any
    no gate passes. `length` is set where only an accepted length is told.
    """

    kind: str  # counters | lifetime | estimate
    source: str
    k: int
    steps: int = 0
    accepted: int = 0
    drafts: int = 0
    survival: tuple[int, ...] = ()
    slices: tuple[tuple[int, int], ...] = ()
    overlap: float = 1.0
    requests: int = 0  # ours that it covers
    output_tokens: int = 0  # of those
    ranks: int = 1
    length: float | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        names = self.__dataclass_fields__
        return {n: _plain(getattr(self, n)) for n in names if getattr(self, n) not in ((), None)}


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def from_json(values: Mapping[str, Any]) -> Reading:
    """The Reading that `to_json` stored."""
    tuples = {"survival", "problems", "notes"}
    known: dict[str, Any] = {n: v for n, v in values.items() if n in Reading.__dataclass_fields__}
    known |= {n: tuple(known[n]) for n in tuples & known.keys()}
    if "slices" in known:
        known["slices"] = tuple((int(s), int(a)) for s, a in known["slices"])
    return Reading(**known)


@dataclass(slots=True)
class Delta:
    """Counts of one rank between two snapshots, and whether it was started anew in between."""

    counts: dict[str, float] = field(default_factory=dict)
    reset: bool = False


def difference(before: Snapshot, after: Snapshot) -> tuple[dict[str, Delta], list[str]]:
    """Counts by rank between two snapshots, with what makes them incomplete.

    After a reset only what was counted since is known: it is kept, and said.
    """
    problems = [*before.problems, *after.problems]
    out: dict[str, Delta] = {}
    restarted = None not in (before.started, after.started) and before.started != after.started
    for rank, new in after.ranks.items():
        old = before.ranks.get(rank, {})
        reset = restarted or any(value < old.get(name, 0.0) for name, value in new.items())
        out[rank] = Delta(
            counts={name: value - (0.0 if reset else old.get(name, 0.0)) for name, value in new.items()}, reset=reset
        )
    if gone := sorted(rank for rank in before.ranks if rank not in after.ranks):
        problems.append(f"{len(gone)} of {len(before.ranks)} engines are gone from the page ({', '.join(gone[:4])})")
    if resets := sum(d.reset for d in out.values()):
        problems.append(f"the counters of {resets} of {len(out)} engines started anew: the server was restarted")
    return out, problems


def read(
    snapshots: Sequence[Snapshot], *, k: int, source: str, sent: Sent, always_drafts: bool = True
) -> Reading | None:
    """The Reading of the work between the first and the last snapshot; those between give slices of time.

    None where the server counts no acceptance at all. Nothing is repaired: what does not add up is a problem.
    """
    if len(snapshots) < 2:
        return None
    first, last = snapshots[0], snapshots[-1]
    if not last.has("accepted") or not last.has("steps"):
        return _lifetime(last, k=k, source=source, sent=sent) if last.lengths else None
    parts = [difference(a, b) for a, b in pairwise(snapshots)]
    problems = list(dict.fromkeys(p for _, told in parts for p in told))
    total: dict[str, dict[str, float]] = {}
    pieces = []
    for (deltas, _), (a, b) in zip(parts, pairwise(snapshots), strict=True):
        for rank, delta in deltas.items():
            mine = total.setdefault(rank, {})
            for name, value in delta.counts.items():
                mine[name] = mine.get(name, 0.0) + value
        steps, accepted = (round(sum(d.counts.get(n, 0.0) for d in deltas.values())) for n in ("steps", "accepted"))
        pieces.append(Piece(b.at - a.at, steps, accepted))
    slices, overlap = grouped(pieces, sent.request_seconds)
    sums = {n: round(sum(r.get(n, 0.0) for r in total.values())) for n in {n for r in total.values() for n in r}}
    survival = _survival(sums, k, problems)
    steps, accepted = sums.get("steps", 0), sums.get("accepted", 0)
    drafts = sums.get("drafts", k * steps)
    problems += _identities(steps, accepted, drafts, k, survival, expects=first.has("accepted"))
    problems += _ranks(total, sent)
    problems += _tokens(steps, accepted, k, sums, sent, always_drafts)
    return Reading(
        kind=COUNTED, source=source, k=k, steps=steps, accepted=accepted, drafts=drafts, survival=survival,
        slices=slices, overlap=overlap, requests=sent.requests, output_tokens=sent.output_tokens, ranks=len(total),
        problems=tuple(problems),
    )  # fmt: skip


def _lifetime(last: Snapshot, *, k: int, source: str, sent: Sent) -> Reading:
    """A server that only tells an accepted length by rank since its start: no counts, so ranks can't be weighted."""
    known = [x for x in last.lengths if x is not None]
    problems = ["only an accepted length since the server's start is told, without counts: it is not of this run alone"]
    if len(known) < len(last.lengths):
        problems.append(f"{len(last.lengths) - len(known)} of {len(last.lengths)} ranks tell none")
    if len(known) > 1:
        problems.append(f"the lengths of {len(known)} ranks can't be weighted without their steps")
    length = known[0] if len(known) == 1 and len(last.lengths) == 1 else None
    if length is not None and not 1 <= length <= k + 1:
        problems.append(f"an accepted length of {length:g} is outside 1..{k + 1}")
        length = None
    return Reading(
        kind=LIFETIME, source=source, k=k, length=length, requests=sent.requests, output_tokens=sent.output_tokens,
        ranks=len(last.lengths), problems=tuple(problems),
    )  # fmt: skip


def _survival(sums: Mapping[str, int], k: int, problems: list[str]) -> tuple[int, ...]:
    """Steps that kept at least 1, 2, ..., K drafts, from either series."""
    exact = {int(n.split(":")[1]): v for n, v in sums.items() if n.startswith(HISTOGRAM) and n.split(":")[1].isdigit()}
    if exact:
        if max(exact) > k and any(v for j, v in exact.items() if j > k):
            problems.append(f"the server counts steps with {max(exact)} accepted drafts, the run is at K={k}")
        return tuple(sum(v for j, v in exact.items() if j >= i) for i in range(1, k + 1))
    told = {int(n.split(":")[1]): v for n, v in sums.items() if n.startswith(SURVIVAL) and n.split(":")[1].isdigit()}
    if not told:
        return ()
    if any(v for i, v in told.items() if i >= k):
        problems.append(f"the server counts drafts at position {max(told) + 1}, the run is at K={k}")
    return tuple(told.get(i, 0) for i in range(k))


def _identities(
    steps: int, accepted: int, drafts: int, k: int, survival: tuple[int, ...], *, expects: bool
) -> list[str]:
    """0 <= A <= D <= K * S; survival falls, starts at S at most and sums to A."""
    out = []
    if not 0 <= accepted <= drafts <= k * steps:
        out.append(f"expected 0 <= accepted <= drafts <= K * steps, found {accepted}, {drafts}, {k} * {steps}")
    if survival:
        falls = all(a >= b for a, b in zip((steps, *survival), survival, strict=False))
        if not falls or sum(survival) != accepted:
            out.append(f"the counts by position {list(survival)} do not add up to {accepted} accepted in {steps} steps")
    if k and not steps and expects:
        out.append("no verify step was counted")
    return out


def _ranks(total: Mapping[str, Mapping[str, float]], sent: Sent) -> list[str]:
    counting = {rank: r.get("steps", 0.0) for rank, r in total.items() if "steps" in r or "requests" in r}
    silent = sorted(rank for rank, steps in counting.items() if not steps)
    if not silent or len(silent) == len(counting) or sent.requests < SILENT_REQUESTS * len(counting):
        return []
    return [f"{len(silent)} of {len(counting)} engines counted no verify step ({', '.join(silent[:4])})"]


def _tokens(steps: int, accepted: int, k: int, sums: Mapping[str, int], sent: Sent, always_drafts: bool) -> list[str]:
    """The server's counts against what we sent. Every verify step gives its accepted drafts and one token more."""
    if not sent.requests:
        return []
    out = []
    spare = (k + 1) * sent.requests  # drafts past a stop are counted, and not in a text
    waste = sent.given_up * max(1, sent.output_tokens // sent.requests) * 2 + spare
    made, ours = steps + accepted, sent.output_tokens
    if made > ours + waste:
        out.append(f"{made} tokens in verify steps, {ours} in our answers: the server also works for others")
    elif always_drafts and made < (1 - SLACK) * (ours - sent.requests):
        out.append(f"{made} tokens in verify steps, {ours} in our answers: some engines do not count or do not draft")
    if "requests" in sums and sums["requests"] > sent.requests + sent.given_up:
        out.append(f"the server finished {sums['requests']} requests, {sent.requests} are ours: it works for others")
    if "output_tokens" in sums and sums["output_tokens"] > ours + waste:  # vLLM counts the tokens of a stop string too
        out.append(f"the server made {sums['output_tokens']} tokens, {ours} are ours: it works for others too")
    return list(dict.fromkeys(out))


def merge(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The Reading (as JSON) of two sessions of one run."""
    if not old or not new:
        return dict(new or old or {}) or None
    a, b = from_json(old), from_json(new)
    same = (a.kind, a.source, a.k) == (b.kind, b.source, b.k)
    both = len(a.survival) == len(b.survival)
    mixed = [] if same else ["sessions were counted in different ways"]
    problems: dict[str, None] = dict.fromkeys([*a.problems, *b.problems, *mixed])
    return Reading(
        kind=b.kind, source=b.source, k=b.k, steps=a.steps + b.steps, accepted=a.accepted + b.accepted,
        drafts=a.drafts + b.drafts, requests=a.requests + b.requests, output_tokens=a.output_tokens + b.output_tokens,
        survival=tuple(x + y for x, y in zip(a.survival, b.survival, strict=True)) if both else (),
        slices=a.slices + b.slices, overlap=min(a.overlap, b.overlap), ranks=max(a.ranks, b.ranks),
        length=b.length if a.length == b.length else None,
        problems=tuple(problems), notes=tuple(dict.fromkeys(a.notes + b.notes)),
    ).to_json()  # fmt: skip


def join(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The counters of two sessions of one run: faults are added, acceptance is merged."""
    out = {**old, **new}
    if "client" in old and "client" in new:
        a, b = old["client"], new["client"]
        out["client"] = {n: a[n] + b[n] for n in ("requests", "attempts")}
        for name in ("repaired", "lost"):
            keys = dict.fromkeys([*a[name], *b[name]])
            out["client"][name] = {key: a[name].get(key, 0) + b[name].get(key, 0) for key in keys}
    if "drafted" in old and "drafted" in new:
        a, b = old["drafted"], new["drafted"]
        out["drafted"] = {name: a.get(name, 0) + b.get(name, 0) for name in dict.fromkeys([*a, *b])}
    if merged := merge(old.get("acceptance"), new.get("acceptance")):
        out["acceptance"] = merged
    return out

"""Acceptance of a run from the best that it has: steps, else totals of each request, else a server's counters.

Steps and totals by request are clustered by document. Counters have no documents: their spread is that of pieces of
time, and only the totals that they hold become figures; what they do not tell stays None or empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from evalkit import stats
from evalkit.acceptance.curves import useful_k
from evalkit.acceptance.forced import looks_forced
from evalkit.acceptance.model import AcceptanceStats, nothing
from evalkit.acceptance.summary import summarize
from evalkit.errors import EvalkitError
from evalkit.records import Run, Sample
from evalkit.servers.counters import COUNTED, Reading, from_json


def of_run(run: Run) -> AcceptanceStats:
    """The run's acceptance; `source` says what it is made of. Raises EvalkitError for counts that contradict."""
    k = run.cell.get("k")
    found = summarize(run.samples, k)
    if not k:
        return found
    told = run.counters.get("acceptance")
    reading = read_counters(told) if told is not None and told != {} else None
    answered = [s for s in run.samples if not s.error and s.tokens > 1]
    if found.steps:
        without = sum(not s.steps and s.counts is None for s in answered)
        more = (f"{without} of {len(answered)} answers came without their acceptance",) if without else ()
        if "server" not in run.cell:
            return found
        return replace(found, problems=(*_of_replies(reading), *more, *_beside(reading, found, len(answered))))
    if any(s.counts and s.counts.steps for s in answered):
        return _totals(answered, k, found, reading)
    found = replace(found, longest_answer=max((s.tokens for s in answered), default=0))
    return _counted(reading, k, len(answered), found) if reading is not None else found


def read_counters(values: Mapping[str, Any]) -> Reading:
    """A stored Reading."""
    try:
        return from_json(values)
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise EvalkitError(f"the run's counters are no acceptance ({e})", "run it again") from None


def _of_replies(reading: Reading | None) -> tuple[str, ...]:
    """Problems that concern steps of single requests too."""
    return tuple(p for p in reading.problems if "replies:" in p) if reading is not None else ()


def _beside(reading: Reading | None, found: AcceptanceStats, answered: int) -> tuple[str, ...]:
    """Replies against the same server's counters, where those are sound and of all answers: they may hold more (steps
    behind a stop, work for others), never less."""
    if reading is None or reading.kind != COUNTED or reading.problems or reading.requests < answered:
        return ()
    if reading.steps >= found.steps and reading.accepted >= found.accepted:
        return ()
    told = f"{found.accepted} accepted drafts in {found.steps} verify steps"
    return (f"the replies tell {told}, {reading.source} only {reading.accepted} in {reading.steps}: one of them lies",)


def _totals(answered: Sequence[Sample], k: int, found: AcceptanceStats, reading: Reading | None) -> AcceptanceStats:
    rows = [(s.counts.steps, s.counts.accepted, s.counts.drafts) for s in answered if s.counts and s.counts.steps]
    steps, accepted, drafts = (sum(int(row[i] or 0) for row in rows) for i in range(3))
    without = sum(not s.counts for s in answered)
    problems = [*_of_replies(reading)]
    problems += [f"{without} of {len(answered)} answers came without their acceptance"] if without else []
    if any(s.counts and s.counts.trimmed for s in answered):
        problems.append("only accepted drafts that are in the text were counted: a little too few")
    _check(steps, accepted, drafts, k)
    ratio = stats.clustered_ratio([row[1] for row in rows], [row[0] or 0 for row in rows])
    return replace(
        found, requests=len(rows), steps=steps, drafts=drafts, accepted=accepted,
        accepted_length=1 + accepted / steps, acceptance_rate=accepted / drafts if drafts else None, se=ratio.se,
        interval=None if ratio.interval is None else _shift(ratio.interval), clusters=ratio.clusters,
        mean_of_requests=sum(1 + row[1] / (row[0] or 1) for row in rows) / len(rows),
        longest_answer=max(s.tokens for s in answered), uncertainty=ratio.estimate(offset=1.0),
        source="totals of each request", unit="documents", problems=tuple(problems),
    )  # fmt: skip


def _counted(reading: Reading, k: int, answered: int, found: AcceptanceStats) -> AcceptanceStats:
    problems = list(reading.problems)
    if reading.k != k:
        problems.append(f"counters of K={reading.k} in a run at K={k}")
    if reading.requests < answered:
        problems.append(f"the counters cover {reading.requests} of {answered} answers")
    label = f"{'counters' if reading.kind == COUNTED else reading.kind} of {reading.source}"
    known = replace(nothing(k, 0, found.forced), source=label, unit="pieces of time", problems=tuple(problems))
    if not reading.steps:
        return replace(known, accepted_length=reading.length)
    sound = 0 <= reading.accepted <= reading.drafts <= k * reading.steps
    if not sound:
        return known
    steps, accepted = reading.steps, reading.accepted
    survival = tuple(x / steps for x in reading.survival)
    adds_up = sum(reading.survival) == accepted
    histogram = _histogram(steps, reading.survival) if survival and adds_up else ()
    out = replace(
        known, requests=reading.requests, steps=steps, drafts=reading.drafts, accepted=accepted,
        accepted_length=1 + accepted / steps, acceptance_rate=accepted / reading.drafts if reading.drafts else None,
        survival=survival if histogram else (), histogram=histogram,
        conditional=_conditional(reading.survival, steps) if histogram else (),
        looks_forced=looks_forced(histogram), useful_k=useful_k(survival) if histogram else 0,
        longest_answer=found.longest_answer,
    )  # fmt: skip
    return _with_spread(out, reading)


def _with_spread(out: AcceptanceStats, reading: Reading) -> AcceptanceStats:
    if len(reading.slices) < 2:
        return out
    ratio = stats.clustered_ratio([a for _, a in reading.slices], [s for s, _ in reading.slices])
    plain = ratio.estimate(offset=1.0)
    if plain is None:
        return out
    widened = replace(plain, value=out.accepted_length or plain.value, se=plain.se / math.sqrt(reading.overlap))
    return replace(out, se=widened.se, interval=widened.interval(), clusters=ratio.clusters, uncertainty=widened)


def _histogram(steps: int, survival: Sequence[int]) -> tuple[int, ...]:
    reached = (steps, *survival, 0)
    return tuple(a - b for a, b in pairwise(reached))


def _conditional(survival: Sequence[int], steps: int) -> tuple[float | None, ...]:
    return tuple(s / b if b else None for s, b in zip(survival, (steps, *survival), strict=False))


def _check(steps: int, accepted: int, drafts: int, k: int) -> None:
    if not 0 <= accepted <= drafts <= k * steps:
        raise EvalkitError(
            f"expected 0 <= accepted <= drafts <= K * steps, found {accepted}, {drafts}, {k} * {steps}",
            "the server that counted it is wrong: do not use this run",
        )


def _shift(interval: stats.Interval) -> stats.Interval:
    return stats.Interval(1 + interval.low, 1 + interval.high)

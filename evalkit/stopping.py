"""When a run may stop early: the order it asks in, the rule it feeds, and whether a stored stop was one.

A run with `--stop-early` asks its questions in an order drawn from its seed before the first answer, and feeds
`stats.SequentialPaired` in that order, whatever finishes first: a long answer is more often wrong, so the order of
finishing would not be exchangeable. What is stored is what the rule saw, no more. Pure: no files, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalkit import stats
from evalkit.baseline import BASELINE_MARKS, HASH_CHARS, STRICT, Baseline, score_bit
from evalkit.errors import EvalkitError
from evalkit.records import Outcome, Run, Sample, Stopping

if TYPE_CHECKING:
    from evalkit.harness import Prompt

FULL = "run without --stop-early"


def drawn_order(seed: int, doc_ids: Iterable[int]) -> list[int]:
    """The documents in the order that a run with this seed asks them in: a permutation, the same at every call."""
    return sorted(doc_ids, key=lambda i: hashlib.sha256(f"order:{seed}:{i}".encode()).digest())


def baseline_sha(baseline: Baseline) -> str:
    """sha256 of what the rule is fed with: every question, its prompt and its score."""
    rows = sorted(f"{doc} {row.prompt_hash} {row.strict}\n" for doc, row in baseline.rows.items())
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def plan(
    prompts: Sequence[Prompt], marks: Mapping[str, object], baseline: Baseline | None, *, seed: int, margin: float,
    alpha: float,
) -> Stopper:  # fmt: skip
    """The rule for these prompts against this baseline. Raises EvalkitError where they can't be paired."""
    if baseline is None:
        raise EvalkitError("--stop-early has no baseline to compare with", f"record a K=0 run first, or {FULL}")
    differ = [m for m in BASELINE_MARKS if baseline.fingerprint.get(m) != marks.get(m)]
    same = {
        p.doc_id: row.strict
        for p in prompts
        if (row := baseline.rows.get(p.doc_hash[:HASH_CHARS])) and row.prompt_hash == p.prompt_hash[:HASH_CHARS]
    }
    if differ or len(same) < len(prompts):
        why = f" and another {', '.join(differ)}" if differ else ""
        raise EvalkitError(
            f"--stop-early can't pair this run with baseline {baseline.source}: {len(same)} of {len(prompts)} prompts "
            f"are the same{why}",
            f"give the baseline of this target, task and shots with --baseline, or {FULL}",
        )
    if baseline.variation and baseline.variation.excess_sd > 0:
        raise EvalkitError(
            f"baseline {baseline.source} varies from run to run by {100 * baseline.variation.excess_sd:.2g} pt beyond "
            "single answers, which a rule over single answers can't allow for", FULL,
        )  # fmt: skip
    rule = stats.SequentialPaired(margin, alpha, pairs=len(prompts))
    told = Stopping(
        margin=margin, alpha=alpha, beta=rule.beta, final_share=rule.final_share, planned=len(prompts), seed=seed,
        baseline=baseline.run_id, baseline_sha=baseline_sha(baseline),
    )  # fmt: skip
    return Stopper(told, same)


def rule_of(told: Stopping, *, margin: float | None = None, alpha: float | None = None) -> stats.SequentialPaired:
    """The rule of a run; the gate may ask it at another margin and alpha, since it holds at any stop."""
    return stats.SequentialPaired(
        told.margin if margin is None else margin, told.alpha if alpha is None else alpha,
        pairs=told.planned, final_share=told.final_share, beta=told.beta,
    )  # fmt: skip


class Stopper:
    """The rule at work on one run. Samples are taken in `order` only."""

    def __init__(self, told: Stopping, strict: Mapping[int, int]) -> None:
        self.order = drawn_order(told.seed, strict)
        self._told, self._strict, self._rule = told, strict, rule_of(told)
        self._taken = 0
        self._held: dict[int, Sample] = {}

    @property
    def stopped(self) -> bool:
        """Whether the rule ended the run before its last sample."""
        return self._rule.state.stop is not stats.Stop.GO_ON and self._taken < len(self.order)

    @property
    def seen(self) -> list[int]:
        return self.order[: self._taken]

    def ready(self, sample: Sample) -> list[Sample]:
        """The samples whose turn has come with this one, in order; those that finished before theirs are held."""
        self._held[sample.doc_id] = sample
        out = []
        for doc_id in self.order[self._taken :]:
            if doc_id not in self._held:
                break
            out.append(self._held.pop(doc_id))
        return out

    def take(self, sample: Sample) -> bool:
        """Feeds the next sample; whether the run stops here. A failed request has no score and is not fed."""
        assert sample.doc_id == self.order[self._taken]
        self._taken += 1
        if not sample.error and self._rule.state.stop is stats.Stop.GO_ON:
            self._rule.update(score_bit(sample, STRICT), self._strict[sample.doc_id])
        return self.stopped

    def told(self) -> Stopping:
        """The rule and how it stands."""
        s = self._rule.state
        return replace(self._told, state=s.stop.value, seen=self._taken, up=s.up, down=s.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a rule says of pairs in their order. `p` and `p_worse` are at most alpha exactly where it says success
    and failure: the early looks' and the final test's p-values, each over its part of alpha."""

    stop: stats.Stop
    seen: int
    up: int
    down: int
    p: float
    p_worse: float
    interval: stats.Interval
    level: float


def follow(rule: stats.SequentialPaired, pairs: Sequence[tuple[int, int]]) -> Followed:
    """Feeds (candidate, baseline) pairs until the rule stops or they end."""
    state = rule.state
    for y, r in pairs:
        if state.stop is not stats.Stop.GO_ON:
            break
        state = rule.update(y, r)
    early, n = 1 - rule.final_share, state.pairs
    p, p_worse = 1 / (early * state.evidence_above), 1 / (early * state.evidence_below)
    level = 1 - 2 * rule.alpha * early
    interval = rule.interval(level)
    if rule.final_share and n == rule.pairs:  # all of them: the final test speaks too
        test = stats.tango_test(state.up, state.down, n, -rule.margin)
        p, p_worse = min(p, test.p_above / rule.final_share), min(p_worse, test.p_below / rule.final_share)
        level = 1 - 2 * rule.alpha * rule.final_share
        interval = stats.tango_interval(state.up, state.down, n, level)
    return Followed(stop=state.stop, seen=n, up=state.up, down=state.down, p=min(1.0, p), p_worse=min(1.0, p_worse),
                    interval=interval, level=level)  # fmt: skip


def in_order(told: Stopping, samples: Sequence[Sample]) -> list[Sample]:
    """Samples in the order they were asked in."""
    place = {doc_id: i for i, doc_id in enumerate(drawn_order(told.seed, (s.doc_id for s in samples)))}
    return sorted(samples, key=lambda s: place[s.doc_id])


def check_stop(run: Run, baseline: Baseline | None) -> tuple[Outcome, str]:
    """Whether a run that says it was stopped early was, by its own rule and at that sample: (outcome, why)."""
    told, n = run.stopping, len(run.samples)
    if told is None:
        return Outcome.FAIL, "it says it was stopped early and names no rule"
    if sorted(s.doc_id for s in run.samples) != sorted(drawn_order(told.seed, range(run.task_size))[:n]):
        return Outcome.FAIL, f"they are not the first {n} of the order drawn: what was seen is no fair draw"
    if baseline is None or baseline_sha(baseline) != told.baseline_sha:
        return Outcome.INCONCLUSIVE, f"stopped early against baseline {told.baseline}, which is not the one given here"
    pairs = []
    for s in in_order(told, run.samples):
        row = baseline.rows.get(s.doc_hash[:HASH_CHARS])
        if not s.error and row is not None:
            pairs.append((score_bit(s, STRICT), row.strict))
    found = follow(rule_of(told), pairs)
    if found.stop.value != told.state or found.stop is stats.Stop.GO_ON or found.seen != len(pairs):
        return Outcome.FAIL, f"its rule says {found.stop.value} after {found.seen}, the run {told.state}"
    return Outcome.PASS, (
        f"stopped early by a valid rule ({told.state} after {n} of {run.expected}, always-valid at alpha "
        f"{told.alpha:g}, in an order drawn beforehand)"
    )

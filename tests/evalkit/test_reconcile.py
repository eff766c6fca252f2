"""Stored steps are those that made the answers: by their tokens, and by the engine's own count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from evalkit.acceptance import reconcile
from evalkit.errors import EvalkitError
from evalkit.golden import record_curve
from evalkit.records import Check, Outcome, RequestCounts, Run, StepRecord
from tests.evalkit import test_golden
from tests.evalkit.test_gate import K, N, make_run, make_sample, named, swap, verdict, verify_steps
from tests.evalkit.test_gate_checks import plain_of


def check(run: Run) -> Check:
    return named(verdict(run), "step counts")


def step(accepted: int, trimmed: int | None = None, cut: str = "", k: int = K) -> StepRecord:
    return StepRecord(k=k, accepted=accepted, accepted_trimmed=accepted if trimmed is None else trimmed, cut=cut)


def counted(run: Run, by: int = 0) -> Run:
    return dataclasses.replace(run, counters={"verify_steps": verify_steps(run.samples) + by})


def with_steps(*made: StepRecord, tokens: int) -> Run:
    return counted(swap(make_run(), 0, steps=made, tokens=tokens))


def test_steps_that_give_the_tokens_pass_and_both_counts_are_said() -> None:
    found = check(make_run())
    assert found.outcome is Outcome.PASS and found.numbers["steps"] == found.numbers["counted"] == 6 * N
    assert "2400 verify steps give the" in found.message and "the engine counted 2400" in found.message


@pytest.mark.parametrize(("made", "tokens"), [
    ((), 1),  # prefill's token was the last
    ((step(3), step(0)), 6),
    ((step(5, 3, "stop"),), 4),  # the target's token is gone first
    ((step(4, 4, "limit"),), 5),
    ((step(2), step(0, k=0)), 5),  # no room for a draft at the context's end
], ids=["none", "whole", "stop", "limit", "plain step"])  # fmt: skip
def test_every_legitimate_end_fits(made: tuple[StepRecord, ...], tokens: int) -> None:
    assert check(with_steps(*made, tokens=tokens)).outcome is Outcome.PASS


BROKEN: dict[str, tuple[Callable[[], Run], str]] = {
    "a step lost": (lambda: counted(swap(make_run(), 3, steps=make_sample(3).steps[1:])), "document 3"),
    "a step too many": (
        lambda: counted(swap(make_run(), 3, steps=(*make_sample(3).steps, step(2)))),
        "1 of 400 answers do not fit their steps; first document 3",
    ),
    "one draft too many accepted": (
        lambda: swap(make_run(), 3, steps=(step(make_sample(3).steps[0].accepted + 1), *make_sample(3).steps[1:])),
        "do not fit",
    ),
    "all steps lost": (lambda: counted(make_run(change=lambda i: {"steps": (), "tokens": 9})), "400 of 400"),
    "trimmed and not cut": (lambda: with_steps(step(4, 2), tokens=4), "can't be"),
    "cut before the last": (lambda: with_steps(step(4, 2, "stop"), step(1), tokens=5), "can't be"),
    "the engine counted more": (lambda: counted(make_run(), 5), "2400 verify steps are stored, the engine counted"),
    "the engine counted less": (lambda: counted(make_run(), -5), "the engine counted 2395"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_steps_of_something_else_are_refused_by_name(name: str) -> None:
    broken, words = BROKEN[name]
    found = verdict(broken())
    assert found.outcome is Outcome.FAIL and named(found, "step counts").outcome is Outcome.FAIL
    assert words in named(found, "step counts").message


@pytest.mark.parametrize("value", [None, -1, True, "2400", 2400.0])
def test_a_counter_that_is_none_is_never_a_pass(value: Any) -> None:
    run = dataclasses.replace(make_run(), counters={} if value is None else {"verify_steps": value})
    assert check(run).outcome is Outcome.INCONCLUSIVE and "do not say how many" in check(run).message


def test_a_resumed_run_has_steps_of_sessions_that_the_counter_does_not_know() -> None:
    killed: dict[str, Any] = {"provenance": {"sessions": [{"kept": 0}, {"kept": 100}]}}
    less = check(dataclasses.replace(counted(make_run(), -600), **killed))
    assert less.outcome is Outcome.PASS and less.message.endswith("leave 100 answers out (one was killed)")
    assert "session" not in check(make_run()).message
    more = check(dataclasses.replace(counted(make_run(), 1), **killed))
    assert more.outcome is Outcome.FAIL, "a session that ended has no steps beside the stored ones"


def test_counters_of_all_sessions_hold_every_stored_step_and_those_given_up_at_an_interruption() -> None:
    stopped: dict[str, Any] = {"provenance": {"sessions": [{"kept": 0, "counted": True}, {"kept": 100}]}}
    more = check(dataclasses.replace(counted(make_run(), 12), **stopped))
    assert more.outcome is Outcome.PASS and "session" not in more.message
    whole: dict[str, Any] = {"provenance": {"sessions": [{"kept": 0, "counted": True}, {"kept": N}]}}
    assert check(dataclasses.replace(counted(make_run(), 12), **whole)).outcome is Outcome.PASS
    less = check(dataclasses.replace(counted(make_run(), -1), **stopped))
    assert less.outcome is Outcome.FAIL and "the engine counted 2399" in less.message


def test_a_run_that_stopped_early_gave_up_requests_whose_steps_were_counted() -> None:
    stopped = {"stopped": "success after 400 of 400 questions"}
    assert not reconcile(dataclasses.replace(counted(make_run(), 40), **stopped)).wrong
    assert reconcile(dataclasses.replace(counted(make_run(), -1), **stopped)).wrong


def test_a_plain_run_has_no_verify_step_and_is_judged_only_where_it_has() -> None:
    plain = plain_of(make_run())
    assert not any(c.name == "step counts" for c in verdict(plain).checks)
    assert check(dataclasses.replace(plain, counters={"verify_steps": 7})).outcome is Outcome.FAIL


def served(change: Callable[[int], dict[str, Any]]) -> Run:
    base = make_run(change=change)
    return dataclasses.replace(base, cell={**base.cell, "server": {}}, counters={})


def test_a_server_is_allowed_a_few_tokens_and_more_of_them_are_no_pass() -> None:
    exact = served(lambda i: {})
    assert not reconcile(exact).unknown and check(exact).outcome is Outcome.PASS
    some = served(lambda i: {"tokens": make_sample(i).tokens + (i % 20 == 0)})
    assert reconcile(some).unexplained == 20 and check(some).outcome is Outcome.PASS
    many = check(served(lambda i: {"tokens": make_sample(i).tokens + 3}))
    assert many.outcome is Outcome.INCONCLUSIVE and "differ by 1200 of" in many.message


@pytest.mark.parametrize(("tokens", "off"), [(21, 0), (20, 0), (13, 0), (12, 1), (22, 1)])
def test_totals_may_give_a_last_step_past_the_end_and_no_more(tokens: int, off: int) -> None:
    counts = RequestCounts(steps=5, accepted=15, drafts=35)
    run = served(lambda i: {"steps": (), "tokens": tokens, "counts": counts})
    assert reconcile(run).unexplained == off * N


def test_no_golden_is_recorded_from_steps_of_something_else(tmp_path: Any) -> None:
    run = test_golden.make_run()
    lost = dataclasses.replace(run.samples[5], steps=run.samples[5].steps[1:])
    broken = dataclasses.replace(run, samples=(*run.samples[:5], lost, *run.samples[6:]))
    record_curve([run], tmp_path / "g.yaml", write=False)
    with pytest.raises(EvalkitError, match="steps that are not its own"):
        record_curve([broken], tmp_path / "g.yaml")

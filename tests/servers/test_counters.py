"""Counters of servers: recorded pages in each server's form, deltas, and everything that makes them no evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalkit.errors import EvalkitError
from evalkit.servers import atom, llamacpp, vllm
from evalkit.servers.counters import Reading, Sent, Snapshot, from_json, join, merge, read
from evalkit.servers.json_pages import TrtIterations, atom_stats, sglang_info
from evalkit.servers.prometheus import parse, read_page
from evalkit.servers.slices import Piece, grouped

VLLM_PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m,\\"x\\""} 4.0e+01
vllm:spec_decode_num_drafts_total{engine="1",model_name="m,\\"x\\""} 60
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m,\\"x\\""} 1.756736798e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m,\\"x\\""} 120
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m,\\"x\\""} 180
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m,\\"x\\""} 70
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m,\\"x\\""} 1.1e+02
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m,\\"x\\"",position="0"} 35
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m,\\"x\\"",position="1"} 25
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m,\\"x\\"",position="2"} 10
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m,\\"x\\"",position="0"} 50
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m,\\"x\\"",position="1"} 40
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m,\\"x\\"",position="2"} 20
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m,\\"x\\""} 3
vllm:request_success_total{engine="0",finished_reason="length",model_name="m,\\"x\\""} 1
process_start_time_seconds 1.7567e+09
"""

ATOM_PAGE = """\
# TYPE atom:metrics_snapshot_available gauge
atom:metrics_snapshot_available 1.0
# TYPE atom:metrics_last_refresh_timestamp_seconds gauge
atom:metrics_last_refresh_timestamp_seconds 1.7567e+09
# TYPE atom:mtp_draft_tokens counter
atom:mtp_draft_tokens_total 7000.0
# TYPE atom:mtp_accepted_tokens counter
atom:mtp_accepted_tokens_total 3040.0
# TYPE atom:mtp_decode_steps counter
atom:mtp_decode_steps_total{accepted_tokens="0"} 0.0
atom:mtp_decode_steps_total{accepted_tokens="3"} 960.0
atom:mtp_decode_steps_total{accepted_tokens="4"} 40.0
# TYPE atom:mtp_acceptance_rate gauge
atom:mtp_acceptance_rate NaN
"""

LLAMA_PAGE = """\
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 10
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 31
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 20
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 8
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="3"} 2
"""


def page(text, profile=vllm.PROFILE):
    assert profile.page is not None
    found = read_page(text, profile.page, at=1.0)
    assert found is not None
    return found


def zero(snapshot):
    return replace(snapshot, at=0.0, ranks={r: dict.fromkeys(c, 0.0) for r, c in snapshot.ranks.items()})


def reading(after, k, *, before=None, sent=None, **words):
    found = read([before or zero(after), after], k=k, source="test", sent=sent or Sent(), **words)
    assert found is not None
    return found


def test_c48_c49_vllm_page_is_summed_over_engines_with_odd_labels_and_exponents():
    found = reading(page(VLLM_PAGE), 3)
    assert (found.steps, found.drafts, found.accepted, found.ranks) == (100, 300, 180, 2)
    assert found.survival == (85, 65, 30) and sum(found.survival) == found.accepted and found.problems == ()


def test_c48_created_samples_are_no_counts():
    snapshot = page(VLLM_PAGE)
    assert max(v for counts in snapshot.ranks.values() for v in counts.values()) < 1000
    assert snapshot.started == 1.7567e9 and snapshot.ranks["engine=0"]["requests"] == 4


def recorded(name, profile):
    """Pages of a real server before and after the work, as it sent them."""
    folder = Path(__file__).parent / "pages"
    return [page((folder / f"{name}_{when}.prom").read_text(), profile) for when in ("before", "after")]


def test_vllm_s_own_pages_over_20_questions_hold_more_tokens_than_its_answers_and_are_sound():
    """vLLM 0.32.0, n-gram drafts, K=4: 15 of 25 answers ended at a stop string, whose token only the counter has."""
    before, after = recorded("vllm_0.32.0_cpu", vllm.PROFILE)
    sent = Sent(requests=25, output_tokens=693)
    found = reading(after, 4, before=before, sent=sent, always_drafts=False)
    assert found.problems == () and after.total("output_tokens") - before.total("output_tokens") == 708
    assert (found.steps, found.accepted, found.drafts, found.survival) == (349, 229, 1391, (116, 57, 36, 20))
    foreign = reading(after, 4, before=before, sent=replace(sent, output_tokens=500), always_drafts=False)
    assert "works for others" in " ".join(foreign.problems)


def test_llama_cpp_s_own_pages_equal_what_its_replies_tell():
    """llama.cpp b11549, DSpark drafts, K=7, six answers: draft_n and draft_n_accepted of each, and their tokens."""
    told = [(70, 26, 37), (63, 28, 38), (84, 27, 40), (63, 25, 35), (70, 24, 35), (49, 31, 39)]
    drafts, accepted, tokens = (sum(row[i] for row in told) for i in range(3))
    before, after = recorded("llamacpp_11549", llamacpp.PROFILE)
    found = reading(after, 7, before=before, sent=Sent(requests=6, output_tokens=tokens))
    assert found.problems == () and sum(found.survival) == found.accepted
    assert (found.drafts, found.accepted, 7 * found.steps) == (drafts, accepted, drafts)


def test_c49_counts_by_position_that_do_not_add_up_are_a_problem():
    broken = VLLM_PAGE.replace('position="2"} 20', 'position="2"} 0')
    assert "do not add up" in " ".join(reading(page(broken), 3).problems)


def test_atom_page_and_json_give_the_same():
    from_page = reading(page(ATOM_PAGE, atom.PROFILE), 7)
    json_page = {"enabled": True, "total_draft_tokens": 7000, "total_accepted_tokens": 3040,
                 "acceptance_rate": 0.434286, "distribution": {"0": 0, "3": 960, "4": 40},
                 "distribution_percent": {"3": 0.96, "4": 0.04}}  # fmt: skip
    from_json_page = reading(atom_stats(json_page, at=1.0), 7)
    for found in (from_page, from_json_page):
        assert (found.steps, found.accepted, found.drafts) == (1000, 3040, 7000)
        assert found.survival == (1000, 1000, 1000, 40, 0, 0, 0) and found.problems == ()
    assert 1 + from_page.accepted / from_page.steps == 4.04
    assert atom_stats({"enabled": False}, at=0.0) is None


def test_atom_without_a_snapshot_tells_nothing():
    assert atom.PROFILE.page is not None
    text = ATOM_PAGE.replace("snapshot_available 1.0", "snapshot_available 0")
    assert read_page(text, atom.PROFILE.page, at=0) is None


def test_llamacpp_page_with_blocks_of_several_widths():
    found = reading(page(LLAMA_PAGE, llamacpp.PROFILE), 4)
    assert (found.steps, found.accepted, found.drafts) == (10, 20, 31) and found.problems == ()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_count_that_is_none_is_a_problem_and_never_a_number(value):
    text = VLLM_PAGE.replace('spec_decode_num_accepted_tokens_total{engine="0",model_name="m,\\"x\\""} 70',
                             f'spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {value}')  # fmt: skip
    assert text != VLLM_PAGE
    found = reading(page(text), 3)
    assert any("num_accepted_tokens_total is" in p for p in found.problems)


def test_a_page_that_is_none_is_an_error_in_words():
    with pytest.raises(EvalkitError, match="can't be read"):
        list(parse("vllm:x{a=} }} 1\n"))


def test_a_delta_is_of_the_work_alone():
    before = page(VLLM_PAGE)
    after = replace(before, at=9.0, ranks={r: {n: v * 3 for n, v in c.items()} for r, c in before.ranks.items()})
    found = reading(after, 3, before=before)
    assert (found.steps, found.accepted) == (200, 360) and found.problems == ()


def test_an_engine_that_vanished_or_started_anew_is_said():
    before = page(VLLM_PAGE)
    gone = replace(before, ranks={"engine=0": dict(before.ranks["engine=0"])})
    assert "1 of 2 engines are gone" in " ".join(reading(gone, 3, before=before).problems)
    assert "started anew" in " ".join(reading(zero(before), 3, before=before).problems)
    later = replace(before, started=1.8e9)
    assert "restarted" in " ".join(reading(later, 3, before=before).problems)


def test_silent_engines_and_tokens_that_are_not_ours():
    after = page(VLLM_PAGE)
    quiet = replace(after, ranks={**after.ranks, "engine=2": dict.fromkeys(after.ranks["engine=1"], 0.0)})
    ours = Sent(requests=100, output_tokens=380)
    assert "1 of 3 engines counted no verify step (engine=2)" in " ".join(reading(quiet, 3, sent=ours).problems)
    assert reading(after, 3, sent=replace(ours, requests=4, output_tokens=284)).problems == ()
    few = reading(after, 3, sent=replace(ours, requests=4, output_tokens=600)).problems
    assert any("do not count" in p for p in few)
    assert not reading(after, 3, sent=replace(ours, requests=4, output_tokens=600), always_drafts=False).problems
    many = reading(after, 3, sent=replace(ours, requests=2, output_tokens=100)).problems
    assert sum("works for others" in p for p in many) == 2


def test_c42_identities():
    low = page(VLLM_PAGE.replace("} 180", "} 18"))
    assert any(p.startswith("expected 0 <= accepted <= drafts") for p in reading(low, 3).problems)
    assert any("position 3" in p for p in reading(page(VLLM_PAGE), 2).problems)


def test_c44_ranks_with_lengths_alone_are_unknown():
    states = [None, None, 2.90, 3.67, None, 4.64]
    info = {"internal_states": [{"avg_spec_accept_length": x} for x in states]}
    found = reading(sglang_info(info, at=1.0), 7)
    assert found.length is None and found.steps == 0
    assert any("3 of 6 ranks tell none" in p for p in found.problems)
    one = reading(sglang_info({"internal_states": [{"avg_spec_accept_length": 4.04}]}, at=1.0), 7)
    assert one.length == 4.04, "the target's token is in it: 1 is not added"
    assert one.problems, "it is a mean since the server's start"
    assert reading(sglang_info({"internal_states": [{"avg_spec_accept_length": 0.43}]}, at=1.0), 7).length is None


def test_trt_iterations_are_added_and_not_averaged():
    def iteration(i, requests, accepted, rank=0):
        spec = {"numRequestsWithDraftTokens": requests, "numAcceptedTokens": accepted, "numDraftTokens": 3 * requests,
                "acceptanceLength": 99.0}  # fmt: skip
        return {"iter": i, "attentionDpRank": rank, "specDecodingStats": spec}

    source = TrtIterations()
    before = source.take([], at=0.0)
    source.take([iteration(1, 64, 102), iteration(1, 64, 102), iteration(1, 10, 5, rank=1)], at=1.0)
    after = source.take([{"iter": 2}, iteration(3, 1, 3)], at=2.0)
    found = reading(after, 3, before=before)
    assert (found.steps, found.accepted, found.drafts) == (75, 110, 225) and found.problems == ()
    source.take([iteration(9, 1, 3)], at=3.0)
    assert any("missing" in p for p in source.take([], at=3.0).problems)


def test_what_is_stored_is_what_is_read_and_sessions_add_up():
    found = reading(page(VLLM_PAGE), 3, sent=Sent(requests=4, output_tokens=284))
    assert from_json(found.to_json()) == found
    both = from_json(merge(found.to_json(), found.to_json()) or {})
    assert (both.steps, both.survival, both.requests) == (200, (170, 130, 60), 8)
    other = replace(found, k=5)
    assert "different ways" in " ".join(from_json(merge(other.to_json(), found.to_json()) or {}).problems)
    client = {"requests": 5, "attempts": 6, "repaired": {"HTTP 500": 1}, "lost": {}}
    joined = join({"client": client, "acceptance": found.to_json()}, {"client": client})
    assert joined["client"]["repaired"] == {"HTTP 500": 2} and joined["acceptance"]["steps"] == 100


def test_pieces_of_time_need_the_length_of_a_request():
    pieces = [Piece(1.0, 10, 20)] * 60
    slices, overlap = grouped(pieces, 5.0)
    assert len(slices) == 12 and slices[0] == (50, 100) and math.isclose(overlap, 2 / 3)
    assert grouped(pieces, 10.0) == ((), 1.0) and grouped([], 1.0) == ((), 1.0)
    assert sum(s for s, _ in grouped([Piece(1.0, 7, 1)] * 100, 3.0)[0]) == 700


@pytest.mark.stat
def test_the_interval_of_pieces_of_time_holds_the_truth():
    """100 runs of 600 requests at 32 at once, each with an acceptance of its own (seed 11). 95 % are asked for; below
    86 of 100 lies a true coverage of 0.95 with probability 2e-4."""
    from evalkit.acceptance.counted import _with_spread
    from evalkit.acceptance.model import nothing

    rng, k, held = np.random.default_rng(11), 4, 0
    for _ in range(100):
        rates = rng.beta(4, 2, 600)
        truth = 1 + float(k * (4 / 6))
        steps = rng.integers(20, 80, 600)
        free, counted = np.zeros(32), np.zeros((4000, 2))
        for rate, n in zip(rates, steps, strict=True):
            lane = int(free.argmin())
            at = int(free[lane])
            counted[at : at + n, 0] += 1
            counted[at : at + n, 1] += rng.binomial(k, rate, n)
            free[lane] = at + n
        pieces = [Piece(1.0, int(s), int(a)) for s, a in counted]
        slices, overlap = grouped(pieces, float(np.quantile(steps, 0.9)))
        total, accepted = int(counted[:, 0].sum()), int(counted[:, 1].sum())
        base = replace(nothing(k, 0, False), accepted_length=1 + accepted / total)
        told = Reading(kind="counters", source="s", k=k, slices=slices, overlap=overlap)
        found = _with_spread(base, told)
        assert found.interval is not None
        held += found.interval.low <= truth <= found.interval.high
    assert held >= 86, held


def test_nothing_counted_is_nothing_read():
    empty = Snapshot(at=0.0, ranks={"": {"requests": 1.0}})
    assert read([empty, empty], k=3, source="s", sent=Sent()) is None
    assert read([], k=3, source="s", sent=Sent()) is None

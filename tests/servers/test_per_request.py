"""Acceptance that a reply tells of its own request, in every form that is known."""

from __future__ import annotations

import pytest

from engine.api import Cut
from evalkit.records import RequestCounts
from evalkit.servers.per_request import read_reply

VLLM = {"mean_acceptance_length": 1.2325581395348837, "acceptance_histogram": {"0": 39, "1": 1, "3": 3},
        "num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129,
        "num_spec_tokens": 3}  # fmt: skip


def told(reply=None, choice=None, *, k=3, tokens=54, stopped=True):
    return read_reply(reply or {}, choice or {}, k=k, tokens=tokens, stopped=stopped)


@pytest.mark.parametrize("histogram", [{"0": 39, "1": 1, "3": 3}, [39, 1, 0, 3]])
def test_vllm_in_both_places(histogram):
    stats = {**VLLM, "acceptance_histogram": histogram}
    for found in (told(choice={"speculative_decoding_stats": stats}),
                  told({"metrics": {"speculative_decoding": stats}})):  # fmt: skip
        assert len(found.steps) == 43 and sum(s.accepted for s in found.steps) == 10 and not found.problem


def test_vllm_in_detail_and_with_short_blocks():
    stats = {**VLLM, "per_step_accepted": [2, 0, 3], "per_step_drafted": [3, 1, 3]}
    found = told(choice={"speculative_decoding_stats": stats}, tokens=9)
    assert [(s.k, s.accepted) for s in found.steps] == [(3, 2), (1, 0), (3, 3)]
    short = told(choice={"speculative_decoding_stats": {**VLLM, "num_draft_tokens": 100}})
    assert short.counts == RequestCounts(steps=43, accepted=10, drafts=100), "widths are not known: no steps"


def test_sglang_lengths_hold_the_targets_token():
    stats = {"num_verification_steps": 2, "num_verified_draft_tokens": 9, "num_accepted_draft_tokens": 5,
             "verify_lengths": [6, 5], "accept_lengths": [4, 3]}  # fmt: skip
    found = told({"meta_info": {"speculative_decoding_stats": stats}}, k=5, tokens=8)
    assert [(s.k, s.accepted) for s in found.steps] == [(5, 3), (4, 2)]
    summary = {n: v for n, v in stats.items() if n.startswith("num")}
    assert told({"meta_info": {"speculative_decoding_stats": summary}}, k=5).counts == RequestCounts(
        steps=2, accepted=5, drafts=9
    )


def test_sglang_first_token_is_not_of_a_step():
    found = told({"meta_info": {"spec_verify_ct": 10, "spec_accept_length": 4.1}}, k=7, tokens=41)
    assert found.counts == RequestCounts(steps=10, accepted=30, drafts=70, trimmed=True)
    named = told(
        {"meta_info": {"spec_verify_ct": 10, "spec_num_correct_drafts": 31, "spec_num_proposed_drafts": 70}}, k=7
    )
    assert named.counts == RequestCounts(steps=10, accepted=31, drafts=70)


def test_c41_the_end_of_a_text_is_trimmed_in_the_last_step_alone():
    meta = {"meta_info": {"spec_verify_ct": 3, "spec_accept_histogram": [0, 0, 1, 2]}}
    for tokens, kept, cut in ((12, 3, Cut.NONE), (11, 3, Cut.STOP), (10, 2, Cut.STOP), (8, 0, Cut.STOP)):
        found = told(meta, tokens=tokens)
        last = found.steps[-1]
        assert (last.accepted, last.accepted_trimmed, last.cut) == (3, kept, cut)
        assert all(s.accepted == s.accepted_trimmed for s in found.steps[:-1])


def test_llamacpp_tells_no_steps():
    found = told({"timings": {"draft_n": 12, "draft_n_accepted": 7}}, k=4)
    assert found.counts == RequestCounts(steps=None, accepted=7, drafts=12)
    assert told({"timings": {"predicted_n": 3}}) == told({}), "absent when nothing was drafted"


@pytest.mark.parametrize("reply", [
    {"meta_info": {"spec_verify_ct": 0, "spec_accept_histogram": [0, 0, 0, 0]}},
    {"meta_info": {"spec_verify_ct": 0}},
    {"metrics": {"speculative_decoding": {"num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0,
                                          "acceptance_histogram": [0, 0, 0, 0]}}},
])  # fmt: skip
def test_a_text_for_which_no_draft_was_found_has_no_step_and_no_problem(reply):
    found = told(reply, k=3, tokens=9)
    assert found.counts == RequestCounts(steps=0, accepted=0, drafts=0) and not found.problem and not found.steps


@pytest.mark.parametrize("meta", [
    {"spec_verify_ct": 3, "spec_accept_histogram": [0, 0, 0, 0, 0, 3]},
    {"spec_verify_ct": -1},
    {"spec_verify_ct": 3, "spec_accepted_drafts": 12, "spec_proposed_drafts": 10},
])  # fmt: skip
def test_c42_c50_what_contradicts_itself_is_a_problem(meta):
    found = told({"meta_info": meta}, k=3)
    assert found.problem and not found.steps and found.counts is None


def test_k_0_has_none():
    assert not told({"meta_info": {"spec_verify_ct": 3}}, k=0).counts

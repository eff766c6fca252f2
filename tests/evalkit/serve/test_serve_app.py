"""What requests get, against what LLM.generate gives; and what they are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine import Request, SamplingParams
from evalkit.serve.service import Service
from tests.engine.tiny import VOCAB, Tiny, prompts
from tests.evalkit.serve.serving import counters, events, serving

Served = tuple[TestClient, Service]


@pytest.fixture(scope="module")
def served(tiny: Tiny) -> Iterator[Served]:
    with serving(tiny.llm(k=5), tiny.target) as found:
        yield found


def post(served: Served, path: str = "/v1/completions", **body: Any) -> Any:
    return served[0].post(path, json={"temperature": 0, **body})


def error(response: Any, status: int) -> str:
    """The message of an error in OpenAI's form, on one line."""
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"} and "\n" not in found["message"]
    return found["message"]


# ------------------------------------------------------------------ answers


@pytest.mark.parametrize("stop", [[], ["b"], ["<eos>"]], ids=str)
def test_an_answer_is_the_engine_s_with_its_acceptance(tiny: Tiny, served: Served, stop: list[str]) -> None:
    (prompt,) = prompts(1)
    params = SamplingParams(max_tokens=30, stop=tuple(stop))
    (plain,) = tiny.llm(k=5).generate([Request(id="0", prompt=prompt, params=params)])
    body = post(served, prompt=list(prompt), max_tokens=30, stop=stop, return_steps=True, return_token_ids=True).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (plain.text, plain.finish_reason)
    assert tuple(choice["token_ids"]) == plain.token_ids
    steps = [[s.k, s.accepted, s.accepted_trimmed] for s in plain.steps]
    accepted = sum(s.accepted for s in plain.steps)
    told = choice["acceptance"]
    assert told["steps"] == steps and told["accepted_drafts"] == accepted and told["k"] == 5
    assert told["verify_steps"] == len([s for s in plain.steps if s.k])
    assert sum(j * n for j, n in enumerate(told["by_accepted"])) == accepted
    assert choice["meta_info"]["spec_verify_ct"] == told["verify_steps"]
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert body["usage"]["completion_tokens"] == len(plain.token_ids)
    assert body["model"] == "tiny" and body["object"] == "text_completion"


def test_texts_and_token_ids_one_and_many_are_the_same_prompts(served: Served) -> None:
    ids = [[40, 41, 42], [8, 9]]
    texts = [served[1].tokenizer.decode(i) for i in ids]
    assert asyncio.run(served[1].encode(texts)) == ids
    many = [post(served, prompt=p, max_tokens=9).json()["choices"] for p in (ids, texts)]
    singly = [[post(served, prompt=p, max_tokens=9).json()["choices"][0] for p in some] for some in (ids, texts)]
    answers = [[c["text"] for c in choices] for choices in [*many, *singly]]
    assert answers == [answers[0]] * 4
    assert [c["index"] for c in many[0]] == [0, 1]


@pytest.mark.parametrize("stop", [[], ["a"], ["q", "zb"]], ids=str)
def test_a_stream_has_a_chunk_a_step_and_joins_to_the_answer(served: Served, stop: list[str]) -> None:
    asked: dict[str, Any] = {"prompt": [40, 41, 42], "max_tokens": 30, "stop": stop, "return_steps": True}
    whole = post(served, **asked).json()
    response = post(served, **asked, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last, done = events(response.text)
    (choice,) = whole["choices"]
    assert done == "[DONE]" and last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    assert len(chunks) == 1 + len(choice["acceptance"]["steps"])  # prefill's token, then one a step
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [choice["finish_reason"]]
    assert chunks[-1]["choices"][0]["acceptance"] == choice["acceptance"]
    assert {c["id"] for c in [*chunks, last]} == {chunks[0]["id"]}


def test_usage_is_streamed_only_when_asked_for(served: Served) -> None:
    found = events(post(served, prompt=[40], max_tokens=4, stream=True).text)
    assert all(c["choices"] and "usage" not in c for c in found[:-1])


def test_several_prompts_stream_side_by_side(served: Served) -> None:
    asked: dict[str, Any] = {"prompt": [[40, 41], [8, 9], [20]], "max_tokens": 12}
    whole = [c["text"] for c in post(served, **asked).json()["choices"]]
    texts = ["", "", ""]
    for chunk in events(post(served, **asked, stream=True).text)[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == whole


def test_a_seed_repeats_a_sampled_answer_and_none_draws_anew(served: Served) -> None:
    def ask(**more: Any) -> str:
        return post(served, prompt=[40], max_tokens=20, **{"temperature": 1.0, **more}).json()["choices"][0]["text"]

    assert ask(seed=3) == ask(seed=3) != ask(seed=4)
    assert len({ask() for _ in range(4)}) > 1


# ------------------------------------------------------------------ log-probabilities


def test_echo_gives_the_engine_s_log_probabilities_in_the_shape_that_lm_eval_reads(tiny: Tiny, served: Served) -> None:
    context, continuation = [40, 41, 42], [8, 9]
    body = post(served, prompt=[context + continuation], max_tokens=1, echo=True, logprobs=1).json()
    from lm_eval.models import openai_completions

    client: Any = openai_completions.LocalCompletionsAPI
    ((total, greedy),) = client.parse_logprobs(body, ctxlens=[3])
    scores, top = tiny.llm().score(context, continuation)
    assert total == pytest.approx(sum(scores), abs=1e-5) and greedy == all(top)
    told = body["choices"][0]["logprobs"]
    assert told["token_logprobs"][0] is None and len(told["tokens"]) == 6
    assert body["choices"][0]["text"] == "".join(told["tokens"])
    assert [body["choices"][0]["text"][at] for at in told["text_offset"]] == [t[0] for t in told["tokens"]]


def test_log_probabilities_of_a_greedy_answer_are_the_likeliest(served: Served) -> None:
    choice = post(served, prompt=[40, 41], max_tokens=12, ignore_eos=True, logprobs=3, return_token_ids=True).json()
    choice = choice["choices"][0]
    told = choice["logprobs"]
    assert len(told["token_logprobs"]) == len(choice["token_ids"]) == 12
    for value, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert value == max(top.values()) and len(top) == 3


def test_a_prompt_can_be_scored_without_an_answer(served: Served) -> None:
    body = post(served, prompt=[40, 41], max_tokens=0, echo=True, logprobs=0).json()
    assert body["usage"] == {**body["usage"], "prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 2
    assert "max_tokens is 0" in error(post(served, prompt=[40], max_tokens=0), 400)


# ------------------------------------------------------------------ counters


def test_counters_are_those_of_the_answers_under_every_name(tiny: Tiny) -> None:
    with serving(tiny.llm(k=5), tiny.target) as (client, service):
        before = counters(client.get("/metrics").text)
        choices = post((client, service), prompt=[list(p) for p in prompts(8)], max_tokens=20).json()["choices"]
        after, mtp = counters(client.get("/metrics").text), client.get("/debug/mtp_stats").json()
    told = [c["acceptance"] for c in choices]
    steps, drafts, accepted = (sum(t[n] for t in told) for n in ("verify_steps", "drafts", "accepted_drafts"))
    by = [sum(t["by_accepted"][j] for t in told) for j in range(6)]
    assert steps > 0 and accepted > 0
    page = {name: after[name] - before.get(name, 0.0) for name in after}
    assert page["vllm:spec_decode_num_drafts_total"] == page["evalkit:verify_steps_total"] == steps
    assert page["vllm:spec_decode_num_draft_tokens_total"] == page["evalkit:drafts_total"] == drafts
    assert page["vllm:spec_decode_num_accepted_tokens_total"] == page["evalkit:accepted_drafts_total"] == accepted
    places = [page[f"vllm:spec_decode_num_accepted_tokens_per_pos_total[{i}]"] for i in range(5)]
    assert places == [sum(by[i + 1 :]) for i in range(5)] and sum(places) == accepted
    assert [page[f"evalkit:verify_steps_by_accepted_total[{j}]"] for j in range(6)] == by
    assert mtp["distribution"] == {str(j): n for j, n in enumerate(by)} and mtp["enabled"]
    assert mtp["total_accepted_tokens"] == accepted and mtp["total_draft_tokens"] == 5 * steps
    assert mtp["average_tokens_per_forward"] == 1 + accepted / steps
    assert mtp["acceptance_rate"] == accepted / (5 * steps)
    assert after["evalkit:pages_used"] == 0 and after["process_start_time_seconds"] > 0
    assert after["evalkit:requests_total[stop]"] + after["evalkit:requests_total[length]"] == 8


def test_what_the_prefill_delayer_decided_adds_up_to_its_ticks(tiny: Tiny) -> None:
    llm = tiny.llm(max_batch=2, prefill_decode_interval=20000)
    with serving(llm, tiny.target) as (client, service):
        post((client, service), prompt=[list(p) for p in prompts(6)], max_tokens=9)
        page = counters(client.get("/metrics").text)
    name = "evalkit:prefill_delayer_ticks_total"
    found = {n: v for n, v in page.items() if n.startswith(name)}
    assert sum(found.values()) == llm.counters["prefill_delayer"]["ticks"] > 0
    assert found[f"{name}[hold_decode_interval]"] == llm.counters["prefill_delayer"]["hold_decode_interval"]
    assert found[f"{name}[hold]"] == 0, "an interval that never ends leaves nothing for the coalescer"
    with serving(tiny.llm(), tiny.target) as (client, _):
        assert name not in client.get("/metrics").text


def test_without_a_draft_nothing_is_claimed(tiny: Tiny) -> None:
    with serving(tiny.llm(), tiny.target) as (client, service):
        choice = post((client, service), prompt=[40, 41], max_tokens=5).json()["choices"][0]
        mtp, page = client.get("/debug/mtp_stats").json(), counters(client.get("/metrics").text)
    assert choice["acceptance"]["accepted_length"] is None and choice["acceptance"]["verify_steps"] == 0
    assert mtp["enabled"] is False and mtp["average_tokens_per_forward"] == 0.0
    assert page["vllm:spec_decode_num_drafts_total"] == 0


# ------------------------------------------------------------------ information


def test_models_health_and_tokenizer(served: Served) -> None:
    client, _ = served
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["evalkit"]["k"]) == ("tiny", 128, 5)
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/tokenizer_info").json()["eos_token"] == "<eos>"
    ids = post(served, "/tokenize", prompt="the abc").json()["tokens"]
    assert served[0].post("/detokenize", json={"tokens": ids}).json()["prompt"] == "the abc"


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "n": 2}, "n is not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of is not supported"),
        ({"prompt": "a", "temprature": 1}, "did you mean temperature?"),
        ({"prompt": "a", "presence_penalty": 0.5}, "presence_penalty"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature is -1"),
        ({"prompt": "a", "top_p": 0}, "top_p is 0"),
        ({"prompt": "a", "stop": [""]}, "empty string"),
        ({"prompt": "a", "logprobs": 99}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "stream": True}, "logprobs are not streamed"),
        ({"prompt": "a" * 40, "max_tokens": 127}, "the context holds 128"),
        ({"prompt": [3] * 128, "max_tokens": 1}, "the context holds 128"),
        ({"prompt": ""}, "0 tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "0 tokens"),
        ({"prompt": [len(VOCAB)]}, f"the vocabulary has 0 to {len(VOCAB) - 1}"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_a_400_in_one_line(served: Served, body: dict[str, Any], said: str) -> None:
    assert said in error(served[0].post("/v1/completions", json=body), 400)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "prompt is missing"),
        ({"prompt": None}, "prompt is missing"),
        ({"prompt": []}, "prompt is an empty list; give a text, a list of texts, token ids"),
        ({"prompt": 3}, "prompt is a whole number; give a text"),
        ({"prompt": ["a", 3]}, "prompt is a list that holds a text and a whole number; give a text"),
        ({"prompt": [True]}, "prompt is a list that holds true or false; give"),
        ({"prompt": [[1], [2, 3.5]]}, "prompt holds a number in list 1; give"),
        ({"prompt": [-1]}, "the prompt holds the id -1, the vocabulary has 0 to"),
        ({"prompt": "a", "stop": 3}, "stop is a whole number; give a text or a list of texts"),
        ({"prompt": "a", "stop": ["a", 3]}, "stop holds a whole number; give a text or a list of texts"),
        ({"prompt": "a", "stop": ["a"] * 65}, "stop has 65 texts, at most 64 are taken"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens is a number, it must be a whole number"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens is too small, it must be at least 0"),
        ({"prompt": "a", "logprobs": 99}, "logprobs is too large, it must be at most 20"),
        ({"prompt": "a", "temperature": "hot"}, "temperature is a text, it must be a number"),
        ({"prompt": "a", "stream": "yes"}, "stream is a text, it must be true or false"),
        ({"prompt": "a", "model": 3}, "model is a whole number, it must be a text"),
        ({"prompt": "a", "stop_token_ids": [1] * 65}, "stop_token_ids has too many entries, at most 64 are taken"),
        ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids.0 is too small, it must be at least 0"),
        (
            {"prompt": "a", "stop_token_ids": [3, len(VOCAB)]},
            f"stop_token_ids has {len(VOCAB)}, the vocabulary",
        ),
        ({"prompt": "a", "stop": ["b", "\ud800"]}, "stop holds half of a surrogate pair"),
        ({"prompt": "a", "max_tokens": 10**4000}, "max_tokens is too large, it must be at most 2147483647"),
        ({"prompt": "a", "temperature": -1}, "temperature is -1"),
        ({"prompt": "a", "top_p": 0}, "top_p is 0"),
        ({"prompt": "a", "top_k": 2**40}, "top_k is"),
        ({"prompt": "a", "n": 2}, "n is not supported here; leave it away, or give 1"),
        ({"prompt": "a", "logit_bias": {"3": 1}}, "logit_bias is not supported here; leave it away, or give {}"),
        ({"prompt": "a", "stop_token_ids": 3}, "stop_token_ids is a whole number, it must be a list"),
        ({"prompt": "a", "stream_options": []}, "stream_options is a list, it must be an object"),
        ({"prompt": "a", "stream_options": {"usage": True}}, "stream_options.usage is unknown; leave it away"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_field_is_said_in_plain_words(served: Served, body: dict[str, Any], said: str) -> None:
    raw, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    response = served[0].post("/v1/completions", content=raw, headers=headers)
    assert error(response, 400).startswith(said)
    assert response.json()["error"]["param"] == said.removeprefix("the ").split()[0]


def test_what_cannot_be_detokenised_is_called_by_its_field(served: Served) -> None:
    for tokens, said in (([len(VOCAB)], f"tokens holds the id {len(VOCAB)}"), ([], "tokens is an empty list")):
        response = served[0].post("/detokenize", json={"tokens": tokens})
        assert error(response, 400).startswith(said) and response.json()["error"]["param"] == "tokens"


def test_an_unknown_field_is_the_param_of_its_error(served: Served) -> None:
    assert post(served, prompt="a", temprature=1).json()["error"]["param"] == "temprature"


def test_a_body_of_a_million_mistakes_is_refused_for_its_first(served: Served) -> None:
    said = error(served[0].post("/v1/chat/completions", json={"messages": [3] * 500_000}), 400)
    assert said == "messages.0 is a whole number, it must be an object"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b"[1]", "the body is not a JSON object"),
        (b"3", "the body is not a JSON object"),
        (b"\xff\xfe", "the body is not UTF-8: byte 0 is 0xff"),
        (b'{"prompt": "\xe9"}', "the body is not UTF-8: byte 12 is 0xe9"),
        (b"[" * 200_000, "the body has too many lists or objects inside each other"),
        (b'{"seed": %s}' % (b"1" * 5000), "the body has a number of too many digits"),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_body_that_cannot_be_read_is_told_why(served: Served, path: str, raw: bytes, said: str) -> None:
    response = served[0].post(path, content=raw, headers={"Content-Type": "application/json"})
    assert error(response, 400).startswith(said) and "set_int_max_str" not in response.text


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"a"', b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 100_000])
def test_bad_json_is_a_400(served: Served, raw: bytes) -> None:
    error(served[0].post("/v1/completions", content=raw, headers={"Content-Type": "application/json"}), 400)


def test_not_a_number_is_a_400(served: Served) -> None:
    raw = b'{"prompt": "a", "temperature": NaN}'
    response = served[0].post("/v1/completions", content=raw, headers={"Content-Type": "application/json"})
    assert "temperature is nan" in error(response, 400)


def test_a_form_is_a_415_so_that_no_web_page_can_send_one(served: Served) -> None:
    raw = json.dumps({"prompt": "a"})
    assert "application/json" in error(served[0].post("/v1/completions", content=raw), 415)


def test_another_model_is_a_404_and_so_is_another_path(served: Served) -> None:
    assert "use tiny" in error(post(served, prompt="a", model="gpt"), 404)
    assert post(served, prompt="a", model="tiny", max_tokens=2).status_code == 200
    assert "/v1/nothing" in error(served[0].get("/v1/nothing"), 404)
    error(served[0].get("/v1/completions"), 405)


def test_values_that_change_nothing_are_taken(served: Served) -> None:
    neutral = {"n": 1, "best_of": 1, "presence_penalty": 0.0, "logit_bias": {}, "user": "me", "suffix": None}
    assert post(served, prompt="a", max_tokens=2, top_k=-1, **neutral).status_code == 200


def test_a_prompt_that_alone_is_too_long_is_the_prompt_s_fault(served: Served) -> None:
    for body, param in (({"prompt": [3] * 128}, "prompt"), ({"prompt": [3] * 127, "max_tokens": 2}, "max_tokens")):
        response = served[0].post("/v1/completions", json=body)
        found = response.json()["error"]
        assert (response.status_code, found["param"], found["code"]) == (400, param, "context_length_exceeded")
    assert post(served, prompt=[3] * 128, max_tokens=0, echo=True, logprobs=0).status_code == 200


def test_what_the_engine_cannot_hold_is_a_400_after_the_queue(tiny: Tiny) -> None:
    with serving(tiny.llm(k=2, num_pages=4), tiny.target) as served:
        for stream in (False, True):
            assert "KV pages" in error(post(served, prompt=[40] * 20, max_tokens=20, stream=stream), 400)
        assert post(served, prompt=[40], max_tokens=2).status_code == 200

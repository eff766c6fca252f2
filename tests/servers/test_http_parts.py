"""The client's parts alone: bodies, replies, retries, times, keys."""

from __future__ import annotations

import asyncio
import os
import random
from email.utils import formatdate
from time import time

import pytest

from engine.api import Request, SamplingParams
from evalkit.backends.http.answer import Answer, Stream, read_json, read_reply
from evalkit.backends.http.body import body_of
from evalkit.backends.http.client import plain
from evalkit.backends.http.errors import Trouble, of_status, seconds_of
from evalkit.backends.http.probe import count_special
from evalkit.backends.http.retry import Faults, backoff, with_retries
from evalkit.backends.http.secret import Secret
from evalkit.backends.http.session import cut, estimate, split_thinking
from evalkit.errors import EvalkitError
from evalkit.servers.process import last_line, start, wait_ready

ASKED = Request(id="1", prompt="2 + 2?", params=SamplingParams(max_tokens=9, stop=("Q:",), seed=2**62 + 5))


def body(**words):
    known = {"endpoint": "completions", "model": "m", "stream": False, "send_stops": True, "extra": {}}
    return body_of(ASKED, **{**known, **words})


def test_c90_every_sampling_field_is_sent():
    sent = body()
    assert {n: sent[n] for n in ("temperature", "top_p", "n", "max_tokens", "stop", "stream")} == {
        "temperature": 0.0, "top_p": 1.0, "n": 1, "max_tokens": 9, "stop": ["Q:"], "stream": False,
    }  # fmt: skip
    assert sent["seed"] == 5 and sent["prompt"] == "2 + 2?"
    chat = body(endpoint="chat", stream=True, send_stops=False, extra={"x": 1})
    assert chat["messages"] == [{"role": "user", "content": "2 + 2?"}] and "stop" not in chat and chat["x"] == 1
    assert chat["stream_options"] == {"include_usage": True}
    sglang = body(endpoint="generate")
    assert sglang["sampling_params"]["temperature"] == 0.0 and sglang["sampling_params"]["stop"] == ["Q:"]


def chat_reply(**message):
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


@pytest.mark.parametrize("reply", [
    {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": None}]}, {"error": {"message": "x"}},
    {"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]},
    {"choices": [{"message": {"content": "x"}, "finish_reason": None}]},
    {"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]},
    {"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]},
])  # fmt: skip
def test_a_reply_that_is_none_is_trouble_and_never_an_empty_answer(reply):
    with pytest.raises(Trouble):
        read_reply(reply, "chat")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", b"\xff\xfe"])
def test_a_body_that_is_no_object_is_trouble(text):
    with pytest.raises(Trouble, match="bad reply"):
        read_json(text)


def test_c14_both_names_of_thinking_and_a_loud_end_where_neither_carries_it():
    for name in ("reasoning", "reasoning_content"):
        found = read_reply(chat_reply(content=None, **{name: "so"}), "chat")
        assert (found.text, found.reasoning, found.reasoning_field) == ("", "so", name)
    silent = chat_reply(content=None)
    silent["usage"]["completion_tokens_details"] = {"reasoning_tokens": 299}
    with pytest.raises(Trouble, match="299 reasoning tokens are counted and no field carries them") as e:
        read_reply(silent, "chat")
    assert not e.value.again


def stream_of(*lines, endpoint="completions"):
    found = Stream(endpoint)
    for i, line in enumerate(lines):
        found.take(line, float(i + 1))
    return found


def test_a_stream_is_put_together_and_a_cut_one_is_trouble():
    chunks = [b'{"choices": [{"text": "a"}]}', b'{"choices": [{"text": "b", "finish_reason": "length"}]}',
              b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}}']  # fmt: skip
    found = stream_of(*chunks, b"[DONE]").finish()
    assert (found.text, found.finish, found.tokens, found.chunks, found.first_at) == ("ab", "length", 7, 2, 1.0)
    assert stream_of(*chunks).finish().text == "ab", "some servers send no [DONE]"
    with pytest.raises(Trouble, match="stream cut"):
        stream_of(chunks[0], b"[DONE]").finish()
    with pytest.raises(Trouble, match="stream cut"):
        stream_of(chunks[0], b'{"error": "out of memory"}')


def test_retry_after_and_backoff():
    assert seconds_of("7") == 7.0 and seconds_of("soon") == 0.0 and seconds_of(None) == 0.0
    assert 5 < seconds_of(formatdate(time() + 10)) <= 10 and seconds_of(formatdate(0)) == 0.0
    rng = random.Random(1)
    waits = [backoff(n, rng) for n in range(1, 12)]
    assert waits[0] <= 0.5 and all(w <= 30 for w in waits) and waits[-1] >= 15 and backoff(1, rng, after=9) > 9
    assert not of_status(429, "", "3600").again and of_status(429, "", "3").after == 3


@pytest.mark.parametrize(("status", "again"), [(429, True), (500, True), (502, True), (503, True), (504, True),
                                               (400, False), (404, False), (413, False), (422, False)])  # fmt: skip
def test_only_what_may_pass_is_sent_again(status, again):
    assert of_status(status, "words", None).again is again
    with pytest.raises(EvalkitError, match="refuses the key"):
        of_status(401, "no", None)


def test_a_retry_is_a_whole_new_request_and_is_counted():
    faults, tried, asked_alive = Faults(), [], []

    async def attempt():
        tried.append(1)
        if len(tried) < 3:
            raise Trouble("connection refused", gone=True)
        return Answer(text="x", finish="stop")

    async def alive():
        asked_alive.append(1)

    async def run(retries):
        return await with_retries(attempt, retries=retries, seed=1, faults=faults, alive=alive, first=0.001)

    answer, number = asyncio.run(run(5))
    assert (answer.text, number, len(asked_alive)) == ("x", 3, 2) and faults.repaired["connection refused"] == 2
    tried.clear()
    with pytest.raises(Trouble):
        asyncio.run(run(1))
    assert faults.lost["connection refused"] == 1 and faults.requests == 2


def test_a_key_does_not_print():
    key = Secret("sk-abc\n")
    assert "sk" not in f"{key} {key!r}" and key.headers() == {"Authorization": "Bearer sk-abc"}
    assert key.hide("bad key sk-abc!") == "bad key ***!" and Secret("").hide("x") == "x"


def test_thinking_in_a_text_is_no_part_of_the_answer():
    assert split_thinking("<think>a #### 9</think> b #### 1") == ("a #### 9", " b #### 1")
    assert split_thinking("a</think>b") == ("a", "b") and split_thinking("plain") == ("", "plain")
    assert split_thinking("<think>never ends") == ("never ends", "")
    assert cut("a\n\nQ: b", ("Q:", "\n\n")) == ("a", "\n\n") and cut("a", ("b",)) == ("a", "")


def test_an_estimate_that_can_not_be_is_no_figure():
    good, bad = estimate(4, chunks=21, tokens=51, streams=1), estimate(4, chunks=3, tokens=51, streams=1)
    assert (good.steps, good.accepted) == (20, 30) and good.problems
    assert bad.steps == 0 and "can't be one step each" in bad.problems[1]


class Words:
    """A tokenizer of words that adds a BOS."""

    def encode(self, text, add_special_tokens):
        class Made:
            ids = [1] * add_special_tokens + [5] * len(text.split())

        return Made


@pytest.mark.parametrize(("counted", "policy", "problem"), [
    (3, "1 special tokens", ""), (2, "0 special tokens", ""), (4, "", "a BOS too many"), (9, "", "another tokenizer"),
])  # fmt: skip
def test_c19_c20_the_number_of_prompt_tokens_tells_the_bos(counted, policy, problem):
    found = count_special("two words", counted, Words(), "completions")
    assert found[0] == policy and problem in found[1]
    assert count_special("two words", counted, Words(), "chat") == ("", "")


def test_a_process_that_dies_or_is_not_there_is_told_in_a_line(tmp_path):
    with pytest.raises(EvalkitError, match="is not there to start x"):
        start(["/no/such/program"], name="x", log=tmp_path / "log", env={})
    log = tmp_path / "log2"
    command = ["sh", "-c", "echo loading; echo out of memory >&2; exit 7"]
    failed = pytest.raises(EvalkitError, match="ended with exit code 7: out of memory")
    with start(command, name="x", log=log, env={}) as process, failed:
        wait_ready(process, lambda: "not yet", timeout=20, name="x", say=print, every=0.05)
    assert last_line(tmp_path / "none") == "no log"


def test_the_whole_group_ends_and_a_slow_start_is_told(tmp_path):
    said: list[str] = []
    with start(["sh", "-c", "trap '' TERM; sleep 300 & wait; sleep 300"], name="x", log=tmp_path / "log", env={}) as p:
        with pytest.raises(EvalkitError, match=r"not ready after 0 s \(no model\)"):
            wait_ready(p, lambda: "no model", timeout=0.2, name="x", say=said.append, every=0.05)
        p.stop(drain=0.3)
    with pytest.raises(ProcessLookupError):
        os.killpg(p.popen.pid, 0)


def test_a_connection_that_fails_is_told_in_the_system_s_words():
    class Connector(Exception):
        os_error = ConnectionRefusedError(111, "Connection refused")

    assert plain(Connector("Cannot connect to host 127.0.0.1:1 ssl:default [...]")) == "Connection refused"
    assert plain(TimeoutError()) == "TimeoutError" and plain(OSError("no route")) == "no route"

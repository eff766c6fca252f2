"""Messages to prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalkit.errors import EvalkitError
from evalkit.serve.chat import ChatTemplate
from evalkit.serve.errors import ApiError
from tests.engine.tiny import Tiny
from tests.evalkit.serve.serving import events, serving

CHATML = """{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content }}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if think is defined and not think %}</think>{% endif %}{% endif %}"""
USER = [{"role": "user", "content": "ab"}]


def test_a_model_without_a_template_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ApiError) as e:
        ChatTemplate(tmp_path).prompt(USER, {})
    assert e.value.status == 400 and "--chat-template" in e.value.message and "\n" not in e.value.message


@pytest.mark.parametrize("text", ["{", "[" * 100_000], ids=["cut", "deep"])
def test_a_tokenizer_config_that_is_no_json_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(EvalkitError, match=r"tokenizer_config.json is not JSON \(.*fix: restore the file"):
        ChatTemplate(tmp_path)


def test_the_template_is_the_folder_s_or_the_one_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "config {{ eos_token }}", "eos_token": {"content": "<e>"}})
    )
    found = ChatTemplate(tmp_path)
    assert (found.source, found.prompt(USER, {})) == ("tokenizer_config.json", "config <e>")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert ChatTemplate(tmp_path).prompt(USER, {}) == "<|user|>ab\n<|assistant|>"
    assert ChatTemplate(tmp_path).prompt(USER, {"think": False}) == "<|user|>ab\n<|assistant|></think>"
    assert ChatTemplate(tmp_path).prompt(USER, {}, False) == "<|user|>ab\n"
    (tmp_path / "other.jinja").write_text("other")
    assert ChatTemplate(tmp_path, str(tmp_path / "other.jinja")).prompt(USER, {}) == "other"


def test_plain_joins_contents_and_parts_of_text(tmp_path: Path) -> None:
    parts = [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, *USER]
    assert ChatTemplate(tmp_path, "plain").prompt(parts, {}) == "ab\n\nab"


@pytest.mark.parametrize(
    "message", [{}, {"role": 3, "content": "a"}, {"role": "user", "content": 3},
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    ids=str,
)  # fmt: skip
def test_messages_that_are_none(tmp_path: Path, message: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=r"messages\.0"):
        ChatTemplate(tmp_path, "plain").prompt([message], {})


@pytest.mark.parametrize(
    ("message", "said", "param"),
    [
        ({"content": "a"}, "messages.0.role is missing; use one of system", "messages.0.role"),
        ({"role": "bogus", "content": "a"}, "messages.0.role is 'bogus'; use one of system", "messages.0.role"),
        ({"role": ["user"], "content": "a"}, "messages.0.role is a list; use one of system", "messages.0.role"),
        ({"role": "user"}, "messages.0.content is missing", "messages.0.content"),
        ({"role": "assistant", "content": None}, "messages.0.content is missing", "messages.0.content"),
        ({"role": "user", "content": 3}, "messages.0.content is a whole number, it must be", "messages.0.content"),
    ],
    ids=str,
)
def test_what_a_message_lacks_is_named(tmp_path: Path, message: dict[str, Any], said: str, param: str) -> None:
    with pytest.raises(ApiError) as e:
        ChatTemplate(tmp_path, "plain").prompt([message], {})
    assert e.value.message.startswith(said) and e.value.param == param


def test_a_call_of_tools_may_come_without_words(tmp_path: Path) -> None:
    said = [*USER, {"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "tool", "content": "c"}]
    assert ChatTemplate(tmp_path, "plain").prompt(said, {}) == "ab\n\n\n\nc"


@pytest.mark.parametrize(
    "text", ["{{ raise_exception('roles must alternate') }}", "{{ ''.__class__.__mro__ }}", "{{ messages + 3 }}"]
)
def test_a_template_that_refuses_is_a_400_and_reaches_nothing_of_python(tmp_path: Path, text: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(text)
    with pytest.raises(ApiError, match="the chat template refuses"):
        ChatTemplate(tmp_path).prompt(USER, {})


def test_a_template_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(EvalkitError, match="cannot be read"):
        ChatTemplate(tmp_path)


def test_a_chat_is_its_prompt_completed_whole_and_streamed(tiny: Tiny) -> None:
    with serving(tiny.llm(k=3), tiny.target, chat_template="plain") as (client, _):
        asked = {"temperature": 0, "max_tokens": 12}
        plain = client.post("/v1/completions", json={"prompt": "ab", **asked}).json()
        chat = client.post("/v1/chat/completions", json={"messages": USER, **asked}).json()
        stream = client.post("/v1/chat/completions", json={"messages": USER, **asked, "stream": True}).text
        newer = {"messages": USER, "temperature": 0, "max_completion_tokens": 12}
        again = client.post("/v1/chat/completions", json=newer).json()
        assert again["choices"][0]["message"] == chat["choices"][0]["message"] and again["usage"] == chat["usage"]
        free = client.post("/v1/chat/completions", json={"messages": USER, "temperature": 0, "ignore_eos": True}).json()
        for bad in ({"messages": []}, {"messages": USER, "logprobs": True}, {"messages": USER, "tools": [{}]}):
            assert client.post("/v1/chat/completions", json=bad).status_code == 400
        for field in ("max_tokens", "max_completion_tokens"):
            none = client.post("/v1/chat/completions", json={"messages": USER, field: 0})
            assert none.status_code == 400 and none.json()["error"]["param"] == field
        long = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "ab." * 200}]})
        assert long.status_code == 400 and long.json()["error"]["param"] == "messages"
    (one,), (two,) = plain["choices"], chat["choices"]
    assert two["message"] == {"role": "assistant", "content": one["text"]}
    assert two["acceptance"] == one["acceptance"] and chat["object"] == "chat.completion"
    *chunks, done = events(stream)
    assert done == "[DONE]" and chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == one["text"]
    assert free["usage"]["total_tokens"] == 128  # an answer without a limit may fill the context

"""Key, size of the body, address: what stands before the app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from evalkit.config import ROOT
from evalkit.errors import EvalkitError
from evalkit.serve.guard import Guard
from evalkit.serve.settings import ServeSettings, check_template, is_loopback, key_from
from tests.engine.tiny import Tiny
from tests.evalkit.serve.serving import serving

KEY = "sk-not-a-real-key-7"


@pytest.fixture(scope="module")
def locked(tiny: Tiny) -> Iterator[TestClient]:
    with serving(tiny.llm(k=2), tiny.target, api_key=KEY, max_body=2000) as (client, _):
        yield client


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \xff"]
)
def test_without_the_key_nothing_is_done_and_no_key_is_repeated(
    locked: TestClient, path: str, header: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    headers: Any = {} if header is None else {"Authorization": header.encode("latin-1")}
    response = locked.post(path, json={"prompt": "a"}, headers=headers)
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    said = response.text + "".join(capfd.readouterr())
    assert KEY not in said and 'wrong"' not in said


def test_the_key_opens_and_monitors_need_none(locked: TestClient) -> None:
    headers = {"Authorization": f"bearer {KEY}"}
    assert locked.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers=headers).status_code == 200
    assert locked.get("/v1/models").status_code == 401
    assert locked.get("/v1/models", headers=headers).status_code == 200
    for path in ("/health", "/metrics", "/debug/mtp_stats"):
        response = locked.get(path)
        assert response.status_code == 200 and KEY not in response.text


def test_a_key_comes_from_the_environment_and_is_never_shown() -> None:
    assert key_from(None) == ""
    assert key_from("MINE", {"MINE": f" {KEY}\n"}) == KEY
    with pytest.raises(EvalkitError, match="MINE, which is not set"):
        key_from("MINE", {})
    with pytest.raises(EvalkitError) as e:
        key_from("MINE", {"MINE": "secret\x00word"})
    assert "secret" not in str(e.value)
    assert KEY not in repr(ServeSettings(name="a", api_key=KEY))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_a_413_and_is_not_parsed(locked: TestClient, chunked: bool) -> None:
    raw = b'{"prompt": "' + b"a" * 3000 + b'"}'
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    content: Any = (raw[i : i + 100] for i in range(0, len(raw), 100)) if chunked else raw
    response = locked.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 413 and "2000 bytes" in response.json()["error"]["message"]


def test_a_body_of_exactly_the_limit_is_read(locked: TestClient) -> None:
    raw = b'{"prompt": "a", "max_tokens": 2}'.ljust(2000)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    assert locked.post("/v1/completions", content=raw, headers=headers).status_code == 200
    assert locked.post("/v1/completions", content=raw + b" ", headers=headers).status_code == 413


def test_a_mistake_of_ours_is_a_500_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("inside")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    guard = Guard(broken, api_key="", max_body=10, refuse=lambda: None)
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    asyncio.run(guard(scope, receive, send))
    assert sent[0]["status"] == 500 and b"inside" not in sent[1]["body"]
    err = capfd.readouterr().err
    assert "RuntimeError in /health" in err and "Traceback" not in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_other_machines_are_warned_of(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    settings = ServeSettings(name="a", host=host)
    assert (settings.warning == "") is loopback
    assert loopback or "without a key" in settings.warning
    assert "without a key" not in ServeSettings(name="a", host=host, api_key=KEY).warning


def test_settings_that_cannot_be(tmp_path: Any) -> None:
    wrong: list[dict[str, Any]] = [{"port": 65536}, {"port": -1}, {"max_queue": 0}, {"max_body": 0}]
    wrong.append({"drain_seconds": -1})
    for bad in wrong:
        with pytest.raises(EvalkitError):
            ServeSettings(name="a", **bad)
    for name in ("", " ", "a\nb"):
        with pytest.raises(EvalkitError, match="--served-model-name is"):
            ServeSettings(name=name)
    assert check_template("plain") == "plain" and check_template(None) is None
    with pytest.raises(EvalkitError, match="neither plain nor a file"):
        check_template(str(tmp_path / "none.jinja"))


def test_the_guide_gives_lm_eval_a_key_by_its_environment_alone() -> None:
    """lm-eval prints model_args and stores them in its results."""
    text = (ROOT / "docs" / "serve.md").read_text()
    args = [line for line in text.splitlines() if "--model_args" in line]
    assert len(args) >= 2 and not any("auth_token" in line or "header" in line for line in args)
    assert 'OPENAI_API_KEY="$MY_KEY" lm_eval' in text and "Never put a key there" in text

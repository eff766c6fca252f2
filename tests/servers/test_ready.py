"""Whether a server can be asked: what waiting mends is waited for, the rest ends at once with what was found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from evalkit.backends.http import told_name
from evalkit.config import ROOT, Cell
from evalkit.errors import EvalkitError
from evalkit.run import run_cell
from evalkit.servers import launch
from evalkit.servers.profile import profile_of
from evalkit.servers.spec import ServerSpec
from tests.servers.conftest import cell_of

MODELS, COMPLETIONS = "/v1/models", "/v1/completions"
HTML = "<!DOCTYPE html><style>p {}</style><h1>Not here</h1>\n<p>hello"


@pytest.mark.parametrize(("state", "found", "fix"), [
    ({"listing": "<!DOCTYPE html><p>hello"}, "not in OpenAI's form but an HTML page", "correct --base-url"),
    ({"listing": '{"models": []}'}, """not in OpenAI's form but '{"models": []}'""", "correct --base-url"),
    ({"status": 400, "listing": "no"}, "/v1/models gives HTTP 400", "refuses the request"),
    ({"status": 308, "location": "https://there:1/v1/models"}, "redirects to https://there:1/v1)", "that address"),
    ({"status": 307, "location": "/v1/models/"}, "/v1/models redirects to itself, http://127", "behind the proxy"),
    ({"status": 302, "location": "/login?next=x"}, "/v1/models redirects to http://127", "--api-key-env"),
    ({"replies": {COMPLETIONS: [307, f"https://there:1/x{COMPLETIONS}"]}}, "to https://there:1/x/v1)", "that address"),
    ({"replies": {COMPLETIONS: [301, ""]}}, f"{COMPLETIONS} redirects to nowhere", "behind the proxy"),
    ({"replies": {MODELS: [404, "no"], COMPLETIONS: [404, HTML]}},
     f"neither /v1/models nor {COMPLETIONS} (/v1/models gives HTTP 404, then HTTP 404: Not here hello)", "--base-url"),
    ({"replies": {MODELS: [404, "no"], COMPLETIONS: [404, '{"error": "The model `faulty` does not exist."}']}},
     "does not know faulty (HTTP 404", "--served-name"),
    ({"replies": {MODELS: [405, ""], COMPLETIONS: [400, "Invalid name"]}}, "HTTP 400: Invalid name", "--served-name"),
    ({"replies": {MODELS: [404, ""], COMPLETIONS: [200, HTML]}}, "the body is an HTML page", "correct --base-url"),
    ({"replies": {COMPLETIONS: [404, "{}"]}}, f"has no {COMPLETIONS} (HTTP 404", "give --endpoint chat"),
    ({"replies": {MODELS: [401, "{}"]}}, "refuses a request without a key, and $EVALKIT_API_KEY is not set (HTTP 401",
     "--api-key-env"),
    ({"replies": {MODELS: [403, "{}"], COMPLETIONS: [403, HTML]}}, "(HTTP 403: Not here hello)", "--api-key-file"),
])  # fmt: skip
def test_what_no_waiting_mends_ends_at_once(faulty, sums, tmp_path, state, found, fix):
    cell = cell_of(faulty(**state), sums(4), start_timeout=600.0)
    began = time.monotonic()
    with pytest.raises(EvalkitError) as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert found in e.value.what and fix in e.value.fix and "\n" not in e.value.what + e.value.fix
    assert time.monotonic() - began < 60, "not the 600 s that it might have been waited for"


def test_the_key_that_a_server_refuses_is_named_and_not_shown(faulty, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    cell = cell_of(faulty(key="sk-right"), sums(4), api_key_env="MY_KEY")
    with pytest.raises(EvalkitError, match=r"refuses the key of \$MY_KEY \(HTTP 401: .*Incorrect API key") as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert "sk-wrong" not in e.value.what


@pytest.mark.parametrize("status", [404, 405, 403])
def test_a_server_without_a_list_of_models_is_asked_for_the_name_that_was_given(faulty, sums, tmp_path, status):
    server = faulty(replies={MODELS: [status, HTML]})
    cell = cell_of(server, sums(6), model="some-org/faulty", engine="openai")
    run = run_cell(cell, runs_dir=tmp_path / "runs")
    assert run.complete and all(s.scores["strict-match"] == 1.0 for s in run.samples)
    (note,) = [n for n in run.provenance["notes"] if "names no models" in n]
    assert note == (f"the server names no models (/v1/models gives HTTP {status}): it is asked for some-org/faulty, "
                    "the given name")  # fmt: skip
    assert {b["model"] for b in server.tell()["bodies"]} == {"some-org/faulty"}


def test_a_server_without_a_list_of_models_needs_a_name(faulty, sums):
    server, data = faulty(replies={MODELS: [404, "no"]}), sums(4)
    words = ["run", "--engine", "openai", "--base-url", server.url, "--data", str(data), "--k", "4"]
    done = subprocess.run([sys.executable, "-m", "evalkit.cli", *words], capture_output=True, text=True, timeout=120,
                          cwd=data.parent, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{server.url} names no models (/v1/models gives HTTP 404), and no model was named" in done.stderr
    assert "--model or --served-name" in done.stderr and server.tell()["asked"] == 0
    told = Cell.make(k=4, draft="dspark", data=data, server=ServerSpec(base_url=server.url, served_name="faulty"))
    assert told_name(told) == "faulty" and not told_name(replace(told, server=ServerSpec(base_url=server.url)))


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_lack_v1_and_end_with_a_slash(faulty, sums, tmp_path, end):
    server = faulty()
    server.url = server.url.removesuffix("/v1") + end
    assert run_cell(cell_of(server, sums(2)), runs_dir=tmp_path / "runs").complete


@pytest.mark.parametrize(("url", "found", "fix"), [
    ("http://h:1/api/v1/chat/completions", "is one page of a server", "give http://h:1/api/v1"),
    ("http://h:1/v1/models/", "is one page of a server", "give http://h:1/v1"),
    ("http://h:1/v1#x", "a query", "--api-key-env"), ("http://h 1/v1", "is no address", "http://HOST:PORT/v1"),
])  # fmt: skip
def test_an_address_that_is_none_is_refused(url, found, fix):
    with pytest.raises(EvalkitError, match=found) as e:
        ServerSpec(base_url=url)
    assert fix in e.value.fix


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of this test")
def test_a_certificate_that_nobody_vouches_for_ends_at_once_and_ssl_cert_file_mends_it(faulty, sums, tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)
    server = faulty(tls=str(tmp_path))
    cell = cell_of(server, sums(2), start_timeout=600.0)
    with pytest.raises(EvalkitError, match=r"certificate of https://127.* is not trusted \(self-signed cert") as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert "SSL_CERT_FILE" in e.value.fix and "\n" not in e.value.what
    words = [
        "run",
        "--engine",
        "vllm",
        "--base-url",
        server.url,
        "--model",
        "faulty",
        "--data",
        str(sums(2)),
        "--k",
        "4",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SSL_CERT_FILE": str(tmp_path / "cert.pem")}
    done = subprocess.run([sys.executable, "-m", "evalkit.cli", *words, "--no-gate", "--no-report"], timeout=120,
                          capture_output=True, text=True, cwd=tmp_path, env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_https_to_a_server_without_tls_says_so(faulty, sums, tmp_path):
    server = faulty()
    server.url = server.url.replace("http:", "https:")
    with pytest.raises(EvalkitError, match=r"does not speak TLS as it should \(\w[\w ]+\)") as e:
        run_cell(cell_of(server, sums(2), start_timeout=600.0), runs_dir=tmp_path / "runs")
    assert "http://" in e.value.fix


def test_a_server_that_is_loading_is_waited_for_as_long_as_start_timeout_says(faulty, sums, tmp_path):
    cell = cell_of(faulty(status=503, listing="loading"), sums(4), start_timeout=1.2, retries=0)
    with pytest.raises(EvalkitError, match=r"not ready after 1 s .*HTTP 503") as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert "--start-timeout" in e.value.fix


def test_without_a_word_a_server_that_is_there_gets_its_grace_and_a_started_one_half_an_hour():
    spec = ServerSpec(base_url="http://localhost:1/v1", grace=7.0)
    assert (spec.patience(starting=False), spec.patience(starting=True)) == (7.0, 1800.0)
    assert ServerSpec(base_url="http://localhost:1/v1", start_timeout=5.0).patience(starting=False) == 5.0
    with pytest.raises(EvalkitError, match="--start-timeout is 0"):
        ServerSpec(base_url="http://localhost:1/v1", start_timeout=0.0)


def test_probes_are_repeated_as_requests_are(faulty, sums, tmp_path):
    """A 500 for half of the probes and pages, drawn with seed 2: what is known of the server stays whole."""
    server = faulty(k=0, unlucky=0.5, seed=2, info={"version": "9"})
    run = run_cell(cell_of(server, sums(6), k=0, retries=8, start_timeout=60.0), runs_dir=tmp_path / "runs")
    assert run.complete and run.fingerprint["server_version"] == "9"
    assert server.tell()["faults"]["500"] > 1


def test_an_engine_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    spec = ServerSpec(engine="vllm")
    cell = Cell.make(model="m", k=0, draft="none", server=spec)
    with pytest.raises(EvalkitError, match=f"vllm is not installed in {sys.executable}") as e:
        launch.launch(cell, spec, profile_of("vllm"), tmp_path / "log")
    assert "install vllm" in e.value.fix and "--server-program" in e.value.fix

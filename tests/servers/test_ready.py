"""Whether a server can be asked: what waiting mends is waited for, the rest ends at once with what was found."""

from __future__ import annotations

import sys
import time

import pytest

from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.run import run_cell
from evalkit.servers import launch
from evalkit.servers.profile import profile_of
from evalkit.servers.spec import ServerSpec
from tests.servers.conftest import cell_of


@pytest.mark.parametrize(("state", "found", "fix"), [
    ({"listing": "<!DOCTYPE html><p>hello"}, "not in OpenAI's form but an HTML page", "correct --base-url"),
    ({"listing": '{"models": []}'}, """not in OpenAI's form but '{"models": []}'""", "correct --base-url"),
    ({"status": 400, "listing": "no"}, "/v1/models gives HTTP 400", "refuses the request"),
    ({"status": 404, "listing": "no"}, "/v1/models gives HTTP 404", "correct --base-url"),
    ({"status": 308, "location": "https://there:1/v1/models"}, "redirects to https://there:1/v1)", "that address"),
])  # fmt: skip
def test_what_no_waiting_mends_ends_at_once(faulty, sums, tmp_path, state, found, fix):
    cell = cell_of(faulty(**state), sums(4), start_timeout=600.0)
    began = time.monotonic()
    with pytest.raises(EvalkitError) as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert found in e.value.what and fix in e.value.fix and "\n" not in e.value.what + e.value.fix
    assert time.monotonic() - began < 60, "not the 600 s that it might have been waited for"


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

"""Options that a server can't obey are refused by name; where one is obeyed, and at its default, it is taken."""

from __future__ import annotations

import pytest

from evalkit.cli import main
from evalkit.config import Cell
from evalkit.servers.launch import command
from evalkit.servers.profile import profile_of, refuse
from evalkit.servers.spec import ServerSpec

CONFIG = '{"global_quant_config": "ptpc_fp8"}'
URL = "http://127.0.0.1:9/v1"
START = [["--tp", "2"], ["--batch", "8"], ["--no-prefix-cache"], ["--online-quant-config", CONFIG], ["--port", "81"],
         ["--max-model-len", "99"], ["--memory-share", "0.5"], ["--graph-sizes", "1,2"], ["--server-program", "x"],
         ["--trust-remote-code"], ["--threads", "3"]]  # fmt: skip
OURS = [["--device", "cpu"], ["--verify-rows", "8"], ["--confidence-threshold", "0.5"], ["--forced-length", "2"],
        ["--verify", "block"]]  # fmt: skip


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["run", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 2, err
    return err


@pytest.mark.parametrize("given", [*START, *OURS], ids=lambda words: words[0])
@pytest.mark.parametrize("engine", ["vllm", "atom", "openai"])
def test_with_a_server_that_runs_they_are_refused(engine, given, capsys):
    err = said(["--engine", engine, "--base-url", URL, "--start-timeout", "1", *given], capsys)
    assert f"error: {given[0]} " in err and "does not hear of it" in err and f"leave {given[0]} away" in err


@pytest.mark.parametrize("given", [*OURS, ["--threads", "3"], ["--draft-width", "block"]], ids=lambda words: words[0])
def test_those_of_our_own_engine_are_refused_with_a_server_that_is_started(given, capsys):
    assert f"error: {given[0]} is of the built-in engine" in said(["--engine", "vllm", *given], capsys)


def test_what_a_started_server_obeys_is_passed_on():
    spec = ServerSpec(engine="atom", tp=2, port=81)
    cell = Cell.make(model="o/t", k=0, quant="bf16", server=spec, batch=8, prefix_cache=False,
                     online_quant_config=CONFIG)  # fmt: skip
    words = " ".join(command(cell, spec, profile_of("atom")))
    for word in ("-tp 2", "--max-num-seqs 8", "--no-enable_prefix_caching", f"--online_quant_config {CONFIG}"):
        assert word in words
    llama = Cell.make(model="o/t", k=0, quant="bf16", server=ServerSpec(engine="llamacpp"), threads=3)
    assert llama.engine.threads == 3


def test_defaults_are_silent():
    spec = ServerSpec(engine="vllm", base_url=URL)
    cell = Cell.make(model="o/t", k=7, quant="fp8", server=spec, verify="standard", device="auto", threads=0)
    assert refuse(cell, spec, profile_of("vllm"), "dspark") == []
    evalkits = ServerSpec(base_url=URL)
    assert Cell.make(model="o/t", k=7, server=evalkits, draft_width="block").engine.draft_width == "block"

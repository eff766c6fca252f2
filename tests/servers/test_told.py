"""What a run keeps of its server: image, flags, variables, pages; none of its secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from evalkit.acceptance import told_forced
from evalkit.config import ROOT
from evalkit.fingerprint import config_fingerprint
from evalkit.run import run_cell
from evalkit.runfile import load_run
from evalkit.servers import told
from evalkit.servers.profile import profile_of
from evalkit.servers.spec import ServerSpec
from tests.servers.conftest import cell_of


def test_flags_of_a_command_without_its_address_and_its_key():
    command = ["python", "-m", "m", "--model", "/x", "--port", "81", "--tp=4", "--api-key", "sk", "--sizes", "1", "2",
               "--eager", "--low", "-1"]  # fmt: skip
    assert told.flags(command) == {"--tp": "4", "--api-key": "***", "--sizes": "1 2", "--eager": "true", "--low": "-1"}


def test_the_image_is_what_the_environment_names():
    started, running = ServerSpec(engine="vllm"), ServerSpec(base_url="http://h:1/v1")
    inside = {"APPTAINER_CONTAINER": "/images/vllm.sif"}
    assert told.image(started, inside) == "/images/vllm.sif"
    assert told.image(running, inside) == "", "our own container says nothing of a server elsewhere"
    assert told.image(running, {"EVALKIT_IMAGE": "rocm/atom:1"}) == "rocm/atom:1"
    assert told.image(ServerSpec(engine="vllm", env=("EVALKIT_IMAGE=a",)), {"EVALKIT_IMAGE": "b"}) == "a"


def test_variables_of_the_engine_and_those_that_were_given():
    spec = ServerSpec(engine="atom", env=("ATOM_USE_TRITON_MOE=1", "HF_TOKEN=abc"))
    around = {"ATOM_DISABLE_MMAP": "1", "HOME": "/root", "ATOM_API_KEY": "sk"}
    assert told.variables(spec, profile_of("atom"), around) == {
        "ATOM_API_KEY": "***", "ATOM_DISABLE_MMAP": "1", "ATOM_USE_TRITON_MOE": "1", "HF_TOKEN": "***",
    }  # fmt: skip
    mine, name = {"ATOM_DISABLE_MMAP": "0", "ATOM_USE_TRITON_MOE": "0"}, "ATOM_USE_TRITON_MOE"
    found = told.variables(spec, profile_of("atom"), around, mine)
    assert found["ATOM_DISABLE_MMAP"] == "0" and found[name] == "1", "the mode's over our own, --server-env over both"


def test_a_page_is_kept_short_and_without_secrets():
    page = {"api_key": "sk-1", "args": {"kv_cache_dtype": "fp8", "long": "x" * 999}, "list": [1, 2], "none": None}
    found = told.plain(page)
    assert found == {"api_key": "***", "args.kv_cache_dtype": "fp8", "args.long": "x" * 200, "list": "[1, 2]"}
    assert len(told.plain({str(i): i for i in range(1000)})) == told.MOST
    assert told.settings(profile_of("sglang"), {"/server_info": page}) == {"kv_cache_dtype": "fp8"}


def test_answers_of_two_settings_of_a_server_are_never_one_run(faulty, sums, tmp_path):
    """A server that comes back with other flags: the interrupted run is not continued with them."""
    data, info = sums(30), {"attention_backend": "triton", "version": "1", "admin_api_key": "sk-admin"}
    first = faulty(info=info, page="none")
    one = run_cell(cell_of(first, data, engine="sglang"), runs_dir=tmp_path / "runs")
    assert one.provenance["flags"] == {"attention_backend": "triton"}
    again = faulty(info=info | {"attention_backend": "fa3"}, page="none")
    other = run_cell(cell_of(again, data, engine="sglang"), runs_dir=tmp_path / "runs")
    assert one.fingerprint["served_flags"] != other.fingerprint["served_flags"]
    (difference,) = config_fingerprint(one).differences(config_fingerprint(other))
    assert difference.name == "flags" and "fa3" in str(difference)
    assert not [p for p in (tmp_path / "runs").rglob("*") if p.is_file() and b"sk-admin" in p.read_bytes()]


def test_c76_a_variable_of_a_server_that_was_started_is_in_its_configuration(sums, tmp_path):
    program = f"{sys.executable} {ROOT / 'tests' / 'servers' / 'faulty.py'}"
    command = [sys.executable, "-m", "evalkit.cli", "run", "--engine", "atom", "--server-program", program, "--model",
               "faulty", "--k", "0", "--quant", "fp8", "--data", str(sums(8)), "--runs-dir", str(tmp_path / "runs"),
               "--server-env", "ATOM_USE_TRITON_MOE=1", "--no-report"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "EVALKIT_IMAGE": "rocm/atom:1"})  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").glob("*/run.json")
    run = load_run(folder.parent)
    assert run.provenance["image"] == "rocm/atom:1" and run.provenance["flags"]["ATOM_USE_TRITON_MOE"] == "1"
    assert run.provenance["flags"]["--kv_cache_dtype"] == "fp8" and "--server-port" not in run.provenance["flags"]
    assert program.split()[1] in run.provenance["served"]["command"]
    assert json.loads((folder).read_text())["provenance"]["served"]["pages"]["/v1/models"]["id"] == "faulty"


def test_forced_acceptance_that_a_page_tells_is_seen_in_the_stored_run():
    page = told.plain({"server_args": {"spec_decode_acceptance_length": 4.04}})
    assert told_forced({"served": {"pages": {"/server_info": page}}})

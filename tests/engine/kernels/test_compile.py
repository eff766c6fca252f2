"""Kernels compiled ahead of time for gfx950 and sm_90. In a process of its own: here Triton only interprets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from engine.kernels import aot
from engine.kernels.cases import Case
from engine.kernels.launch import Launch


def compiled(*options: str) -> dict:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.aot", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=aot.DOC.parents[1])
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def documented() -> tuple[str, list[str]]:
    """The Triton version and the rows of docs/kernels.md."""
    text = aot.DOC.read_text(encoding="utf-8")
    version = re.search(r"with Triton (\S+)\.\n", text)
    assert version
    return version[1], [line for line in text.splitlines() if line.startswith("| ")][1:]


def check_rows(result: dict) -> None:
    reports = [aot.Report(**{**r, "matrix": tuple(r["matrix"])}) for r in result["reports"]]
    assert result["faults"] == []
    version, rows = documented()
    if version != pytest.importorskip("triton").__version__:
        pytest.skip(f"docs/kernels.md is of Triton {version}: make kernels writes it anew")
    stale = set(aot.table_rows(reports)) - set(rows)
    assert not stale, "docs/kernels.md is out of date: make kernels"


def test_one_configuration_of_each_kernel_compiles_as_documented() -> None:
    result = compiled("--few")
    assert {r["chip"] for r in result["reports"]} == {"gfx950", "sm_90"}
    _, rows = documented()
    named = [" ".join(row.split(" | ")[:2]).removeprefix("| ") for row in rows]
    assert named == result["cases"], "docs/kernels.md has other configurations than the launchers choose: make kernels"
    check_rows(result)


@pytest.mark.slow
def test_every_configuration_compiles_as_documented() -> None:
    check_rows(compiled())


def report(**changes: object) -> aot.Report:
    good = {"case": "attend x", "chip": "gfx950", "warps": 4, "registers": 100, "spills": 0, "shared": 1000,
            "matrix": ("f32_16x16x32_bf16",)}  # fmt: skip
    return aot.Report(**(good | changes))  # pyright: ignore[reportArgumentType]


def case(kernel: str, dtype: torch.dtype) -> Case:
    args = (torch.empty(1, dtype=dtype),)
    fake = SimpleNamespace(params=[SimpleNamespace(do_not_specialize=False)])
    return Case(shape="x", kernel=kernel, key=(), launch=Launch(kernel=fake, grid=(1,), args=args, constants={}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spills": 3}, "spills on gfx950: 3"),
        ({"shared": 200_000}, "needs 200000 bytes of shared memory, gfx950 has 163840"),
        ({"matrix": ()}, "should multiply in bf16 on gfx950, found no matrix instruction"),
        ({"matrix": ("f32_16x16x32_bf16", "f32_16x16x4_f32")}, "found f32_16x16x32_bf16, f32_16x16x4_f32"),
    ],
)
def test_a_fault_is_named(changes: dict, says: str) -> None:
    attend = case("attend", torch.bfloat16)
    assert aot.faults(attend, report(), aot.CHIPS[0]) == []
    (found,) = aot.faults(attend, report(**changes), aot.CHIPS[0])
    assert says in found


def test_ptpc_in_bf16_is_a_fault_and_float32_attention_is_none() -> None:
    assert aot.faults(case("ptpc_matmul", torch.float8_e4m3fn), report(), aot.CHIPS[0])
    assert not aot.faults(case("attend", torch.float32), report(matrix=()), aot.CHIPS[0])

"""Compile every kernel for the chips it is meant for, without having one, and say what came out.

python -m engine.kernels.aot            one line for each configuration and chip
python -m engine.kernels.aot --write    docs/kernels.md anew

Triton keeps what it compiled in its own cache, so only what changed takes time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.kernels.cases import Case, all_cases, argument_types

DOC = Path(__file__).parents[2] / "docs" / "kernels.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A compile target and its limits: on-chip memory a workgroup may have, registers a thread may have."""

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int
    registers: int


# LDS: AMD CDNA4 ISA, 160 KiB a compute unit. Shared memory: CUDA C guide, compute capability 9.0, 227 KiB a block.
CHIPS = (
    Chip(name="gfx950", backend="hip", arch="gfx950", warp=64, shared=160 * 1024, registers=512),
    Chip(name="sm_90", backend="cuda", arch=90, warp=32, shared=227 * 1024, registers=255),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one configuration compiled to. registers: of a thread; shared: bytes of a workgroup; spills: registers
    (AMD) or bytes of stack (NVIDIA); matrix: the matrix instructions in the code, by type."""

    case: str
    chip: str
    warps: int
    registers: int
    spills: int
    shared: int
    matrix: tuple[str, ...]


def compile_case(case: Case, chip: Chip) -> Report:
    """Raises whatever Triton raises where the kernel does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch, names = case.launch, case.launch.kernel.arg_names
    types = argument_types(launch)
    signature = {name: t.removesuffix("D") for name, t in zip(names, types, strict=False)}
    signature |= dict.fromkeys(launch.constants, "constexpr")
    constants = {(i,): None for i, value in enumerate(launch.args) if value is None}
    constants |= {(names.index(name),): value for name, value in launch.constants.items()}
    attrs = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types) if t.endswith("D")}
    source = ASTSource(launch.kernel, signature, constants, attrs)
    target = GPUTarget(chip.backend, chip.arch, chip.warp)
    done = triton.compile(source, target, options=launch.options(chip.backend))
    registers, spills, matrix = _read_amd(done.asm["amdgcn"]) if chip.backend == "hip" else _read_nvidia(done)
    return Report(case=case.name, chip=chip.name, warps=launch.warps, registers=registers, spills=spills,
                  shared=done.metadata.shared, matrix=matrix)  # fmt: skip


def _read_amd(asm: str) -> tuple[int, int, tuple[str, ...]]:
    def number(field: str) -> int:
        return int(re.search(rf"\.{field}:\s+(\d+)", asm)[1])  # pyright: ignore[reportOptionalSubscript]

    matrix = sorted(set(re.findall(r"v_mfma_(?:scale_)?(\w+)", asm)))
    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count"), tuple(matrix)


def _read_nvidia(done: object) -> tuple[int, int, tuple[str, ...]]:
    from triton.knobs import nvidia

    asm: dict[str, Any] = done.asm  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # pyright: ignore[reportOptionalMemberAccess]
    pattern = r"(wgmma|mma)\.(?:mma_async\.)?sync\.aligned\.(m\d+n\d+k\d+)\S*?((?:\.\w+){3,4});?\s"
    found = re.findall(pattern, asm["ptx"])
    matrix = sorted({f"{name} {shape}{types}" for name, shape, types in found})
    return int(registers), int(stack), tuple(matrix)


def wanted_matrix(case: Case) -> str | None:
    """The operand type that the case's products must use in hardware, or None: no product, or float32 operands."""
    types = argument_types(case.launch)
    if case.kernel in ("ptpc_matmul", "ptpc_experts"):
        return "fp8"
    if case.kernel in ("attend", "block_attend", "score_topk", "mx_experts"):
        return "bf16" if types[0] == "*bf16D" else None
    return "bf16" if case.kernel == "markov" and types[1] == "*bf16D" else None


def has_matrix(report: Report, kind: str) -> bool:
    """Whether the code has matrix instructions, and all of them of this kind."""
    marks = {"fp8": ("fp8", "f8f6f4", "e4m3"), "bf16": ("bf16",)}[kind]
    return bool(report.matrix) and all(any(mark in name for mark in marks) for name in report.matrix)


def faults(case: Case, report: Report, chip: Chip) -> list[str]:
    """What is wrong with a compiled configuration: one sentence each."""
    found = []
    if report.spills:
        found.append(f"{report.case} spills on {chip.name}: {report.spills}")
    if report.shared > chip.shared:
        found.append(f"{report.case} needs {report.shared} bytes of shared memory, {chip.name} has {chip.shared}")
    kind = wanted_matrix(case)
    if kind and not has_matrix(report, kind):
        got = ", ".join(report.matrix) or "no matrix instruction"
        found.append(f"{report.case} should multiply in {kind} on {chip.name}, found {got}")
    return found


def representative(cases: list[Case]) -> list[Case]:
    """For a quick check: of each kernel the last of those with the largest tile."""
    return list({case.kernel: case for case in sorted(cases, key=lambda c: c.launch.constants.get("M", 0))}.values())


def compile_all(cases: list[Case]) -> Iterator[tuple[Case, Chip, Report]]:
    for case in cases:
        for chip in CHIPS:
            yield case, chip, compile_case(case, chip)


INTRODUCTION = """# Kernels

Generated by `make kernels` (`python -m engine.kernels.aot --write`) with Triton {version}.

Every configuration that the launchers in `engine/kernels` choose for MiniMax-M3 (64 query and 4 KV heads of 128,
4 index heads of 128, blocks and pages of 128, top 16, 4 of 128 experts), for one of its four ranks, and for the
embedded model (heads of 32, blocks and pages of 16, top 3, 2 of 8 experts, in bf16 and in float32), from one row to
prefill and from 1000 to 2^20 tokens of context, compiled ahead of time for AMD gfx950 (MI350, MI355) and NVIDIA sm_90
(H100, H200).

**Nothing below was run on a GPU.** The tests run every kernel in Triton's interpreter on the CPU, against a
plain-torch twin, and read registers, memory and matrix instructions from the compiled code; `pytest -m gpu` with
`TRITON_INTERPRET=0` runs the same tests on one. Speed is not known. `make test` compiles one configuration of each
kernel and fails where its row or the list of configurations has changed; `make kernels` and `pytest -m slow` take all.

Limits: {limits}. Registers are those of one thread (AMD: vector and accumulation together). Spills: registers on
AMD, bytes of stack on NVIDIA. Matrix: the types of the matrix instructions found in the code; attention and index
scores multiply in bf16, to which fp8 and nvfp4 decode exactly, so that the query stays as it is, and experts in MX
formats likewise; PTPC in fp8. A gated or recurrent Markov head is served by the vanilla head's kernel: its mix, a few
hundred rows of a matrix, stays in torch, since a kernel could not begin the product with the vocabulary before it is
done.

| kernel | configuration | warps | {heads} |
|---|---|---|{rules}|
"""


def document(reports: list[Report]) -> str:
    """docs/kernels.md of the reports of all cases, each on every chip."""
    import triton

    limits = "; ".join(f"{c.name} {c.shared // 1024} KiB of on-chip memory a workgroup" for c in CHIPS)
    heads = " | ".join(f"{c.name} registers | spills | memory | matrix" for c in CHIPS)
    intro = INTRODUCTION.format(
        version=triton.__version__, limits=limits, heads=heads, rules="|".join(["---:|---:|---:|---"] * len(CHIPS))
    )
    return intro + "".join(f"{row}\n" for row in table_rows(reports))


def table_rows(reports: list[Report]) -> list[str]:
    by_case: dict[str, list[Report]] = {}
    for report in reports:
        by_case.setdefault(report.case, []).append(report)
    rows = []
    for name, found in by_case.items():
        kernel, _, rest = name.partition(" ")
        cells = [kernel, rest, str(found[0].warps)]
        for r in found:
            cells += [str(r.registers), str(r.spills), str(r.shared), ", ".join(r.matrix) or "-"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine.kernels.aot", description="Compile every kernel ahead of time."
    )
    parser.add_argument("--write", action="store_true", help="write docs/kernels.md; not with --few or --only")
    parser.add_argument("--json", action="store_true", help="print names of all cases, reports and faults as JSON")
    parser.add_argument("--few", action="store_true", help="one configuration of each kernel instead of all")
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise EngineError("TRITON_INTERPRET is 1, so there is nothing to compile", "unset TRITON_INTERPRET")
    if args.write and (args.few or args.only):
        raise EngineError("--write needs every configuration", "leave --few and --only away")
    everything = all_cases()
    cases = [c for c in (representative(everything) if args.few else everything) if args.only in c.name]
    reports, wrong = [], []
    for i, (case, chip, report) in enumerate(compile_all(cases)):
        reports.append(report)
        wrong += faults(case, report, chip)
        if not args.json:
            print(f"{i + 1}/{len(cases) * len(CHIPS)} {chip.name} {table_rows([report])[0]}", flush=True)
    if args.json:
        names = [c.name for c in everything]
        print(json.dumps({"cases": names, "reports": [asdict(r) for r in reports], "faults": wrong}))
    if args.write and not wrong:
        DOC.write_text(document(reports), encoding="utf-8")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

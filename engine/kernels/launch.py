"""One kernel launch as a value, so that what runs and what is compiled ahead of time are the same thing.

Every launcher here has a `*_launches` function that allocates the outputs, chooses the configuration and
returns Launches without running them. Given tensors on torch's "meta" device it works without memory or a
GPU, which is how `engine.kernels.aot` compiles the configurations of real models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

# Contraction to fused multiply-add would round differently from the twins; where it pays, tl.dot has it anyway.
OPTIONS = {"enable_fp_fusion": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """`kernel` over `grid`. args: tensors, numbers and None in the kernel's order; then its constants by name.

    stages: how many turns of a loop are in flight; amd_stages where an AMD chip has too few registers for that.
    """

    kernel: Any  # triton.JITFunction, or its interpreted twin
    grid: tuple[int, ...]
    args: tuple[torch.Tensor | int | float | None, ...]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2
    amd_stages: int | None = None

    def options(self, backend: str) -> dict[str, Any]:
        """Compile options on "hip" or "cuda"."""
        stages = self.amd_stages if backend == "hip" and self.amd_stages else self.stages
        return {"num_warps": self.warps, "num_stages": stages, **OPTIONS}

    def run(self) -> None:
        """Launch on the device of the arguments. An empty grid runs nothing."""
        if all(self.grid):
            backend = "cuda" if torch.version.hip is None else "hip"
            self.kernel[self.grid](*self.args, **self.constants, **self.options(backend))


@triton.jit
def _nothing():
    pass


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU: TRITON_INTERPRET was 1 when it was imported."""
    return isinstance(_nothing, InterpretedFunction)


def run_all(launches: list[Launch]) -> None:
    for launch in launches:
        launch.run()


def power_of_2(n: int, least: int = 1) -> int:
    """The smallest power of 2 that is at least n and `least`."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)

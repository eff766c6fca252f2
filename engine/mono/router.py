"""Which steps Mono serves, why it refuses the others, and how many of each there were. Standard library only.

The rule is that of ATOM's Mono for MiniMax-M3: a decode or verify step whose rows, padded batch x (K+1), are at most
16, over FP8 keys, values and index. What only its kernels need (TP 4, pages of 128, top-k 16, hidden size 6144, 256
compute units) is not asked here: this engine's Mono takes any shape, in float32 on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError

MAX_ROWS = 16  # ATOM's limit, from the width of one matrix operand
MAX_LENGTH = 1 << 20  # tokens of context
MODES = ("auto", "off", "require")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonoStep:
    """What the router asks of a tick: sequences that decode, sequences that prefill, and the K of the run."""

    decoding: int
    k: int
    prefilling: int = 0


def padded_size(n: int, sizes: Sequence[int]) -> int:
    """The smallest of `sizes` (ascending; () is no padding) that holds n sequences; n itself above the largest."""
    return next((size for size in sizes if size >= n), n)


def covered(n: int, k: int, sizes: Sequence[int] = ()) -> bool:
    """Whether a step of n sequences has at most MAX_ROWS rows, padding included."""
    return padded_size(n, sizes) * (k + 1) <= MAX_ROWS


def largest_batch(k: int, sizes: Sequence[int] = ()) -> int:
    """The most sequences so that every step up to it is covered; 0 where none is."""
    n = 0
    while n < MAX_ROWS and covered(n + 1, k, sizes):
        n += 1
    return n


def unfit(
    *,
    formats: Sequence[str],
    index_formats: Sequence[str],
    dtype: str,
    device: str,
    max_length: int,
    tp: int = 1,
    qk_norm: bool = True,
) -> str:
    """Why Mono can serve no step of an engine, or "": formats are those of the target's layers, dtype what it computes
    in, max_length in tokens, tp the ranks, qk_norm whether the target norms q and k by head."""
    if device != "cpu":
        return "device"
    if tp > 1:
        return "tp"
    if not qk_norm:
        return "qk_norm"
    if any(name != "fp8" for name in formats):
        return "kv_format"
    if any(name != "fp8" for name in index_formats):
        return "index_format"
    if dtype != "float32":
        return "dtype"
    return "max_length" if max_length > MAX_LENGTH else ""


REASONS = {  # what a refusal is called -> what it means
    "off": "Mono is off",
    "device": "Mono computes on a CPU; this engine has no fused kernel for a GPU",
    "tp": "Mono computes on one rank; a sum over ranks has no place in it",
    "qk_norm": "Mono norms q and k by head, which this target does not",
    "kv_format": "Mono reads kv=fp8 (e4m3fn) in all layers of the target",
    "index_format": "Mono reads index=fp8",
    "dtype": "Mono computes in float32",
    "max_length": f"Mono takes contexts of at most {MAX_LENGTH} tokens",
    "prefill": "Mono serves decode and verify steps",
    "rows": f"Mono serves steps of at most {MAX_ROWS} rows, padded batch x (K+1)",
}


@dataclass(slots=True)
class Router:
    """Decides step by step, and counts. `why_not`: a reason for which it refuses all steps, or ""."""

    k: int
    sizes: tuple[int, ...] = ()  # of the padded batches; () where batches are not padded
    why_not: str = ""
    mono_steps: int = 0
    mono_rows: int = 0
    ordinary_steps: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def serve_mono(self, step: MonoStep) -> str:
        """Why Mono refuses the step, a word of REASONS; "" where it serves it. Decides only."""
        if self.why_not:
            return self.why_not
        if step.prefilling or not step.decoding:
            return "prefill"
        return "" if covered(step.decoding, step.k, self.sizes) else "rows"

    def route(self, decoding: int) -> bool:
        """Whether Mono serves a decode step of so many sequences; counts it. Its rows are counted with padding."""
        if reason := self.serve_mono(MonoStep(decoding=decoding, k=self.k)):
            self.refused[reason] += 1
            self.ordinary_steps += 1
            return False
        self.mono_steps += 1
        self.mono_rows += padded_size(decoding, self.sizes) * (self.k + 1)
        return True

    def counters(self) -> dict[str, Any]:
        """mono_share is of the decode steps, and left out before the first and where Mono can serve none."""
        steps = self.mono_steps + self.ordinary_steps
        share = {"mono_share": self.mono_steps / steps} if steps and not self.why_not else {}
        return {
            "mono_steps": self.mono_steps,
            "mono_rows": self.mono_rows,
            "ordinary_steps": self.ordinary_steps,
            "mono_refused": dict(self.refused),
            **share,
        }


def check_demand(k: int, max_batch: int, sizes: Sequence[int] = ()) -> None:
    """Raises EngineError where steps of up to max_batch sequences can be more than Mono serves."""
    if all(covered(n, k, sizes) for n in range(1, max_batch + 1)):
        return
    best, rows = largest_batch(k, sizes), padded_size(max_batch, sizes) * (k + 1)
    raise EngineError(
        f"mono is require, and {max_batch} requests that decode together at K={k} make steps of {rows} rows; Mono "
        f"serves at most {MAX_ROWS}",
        f"use --batch {best} at most" if best else "use a smaller K or other graph sizes",
    )

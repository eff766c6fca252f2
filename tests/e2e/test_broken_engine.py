"""The embedded model on an engine that is broken on purpose: the gate's accuracy check says so.

200 questions, greedy, paired with the recorded baseline, so nothing here draws. A sound engine on the same
questions is the control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import attention
from engine.config import SparseConfig
from engine.moe import MoE
from engine.quant import FORMATS
from evalkit.config import Cell
from evalkit.judging import judge_run
from evalkit.records import Check, Outcome
from evalkit.run import run_cell

QUESTIONS = 200


def accuracy(folder: Path, *, k: int = 0, quant: str = "float32") -> Check:
    cell = Cell.make(k=k, quant=quant, limit=QUESTIONS, threads=1, device="cpu", draft="dspark" if k else "none")
    verdict = judge_run(run_cell(cell, runs_dir=folder)).verdict
    return next(c for c in verdict.checks if c.name == "accuracy")


def recent_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that degenerates to the most recent blocks."""

    def recent(scores: Tensor, last: Tensor, cfg: SparseConfig) -> Tensor:
        blocks, last = torch.arange(scores.shape[-1]), last.unsqueeze(-1)
        return ((blocks <= last) & (blocks > last - cfg.topk)).expand(scores.shape)

    monkeypatch.setattr(attention, "choose_blocks", recent)


def no_correction_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that forgets the bias by which experts are chosen."""
    sound = MoE.route

    def route(moe: MoE, x: Tensor) -> tuple[Tensor, Tensor]:
        moe.correction_bias.zero_()
        return sound(moe, x)

    monkeypatch.setattr(MoE, "route", route)


def no_block_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVFP4 store that writes 1.0 for every block scale."""
    sound = FORMATS["nvfp4"]

    def encode(x: Tensor) -> tuple[Tensor, ...]:
        packed, scales = sound.encode(x)
        return packed, torch.full_like(scales, 0x38)  # E4M3 1.0

    monkeypatch.setitem(FORMATS, "nvfp4", replace(sound, encode=encode))


@pytest.mark.parametrize("quant", ("float32", "nvfp4"))
def test_a_sound_engine_does_not_fail(quant: str, tmp_path: Path) -> None:
    assert accuracy(tmp_path, quant=quant).outcome is not Outcome.FAIL


@pytest.mark.parametrize(
    ("fault", "quant"),
    [(recent_blocks, "float32"), (no_correction_bias, "float32"), (no_block_scales, "nvfp4")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_broken_engine_fails_by_accuracy(
    fault: Callable[[pytest.MonkeyPatch], None], quant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fault(monkeypatch)
    found = accuracy(tmp_path, quant=quant)
    assert found.outcome is Outcome.FAIL, found.message

"""Spec and CellSpec: a gate specification as records. The gate's own words for limits and published figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalkit.gate.figures import Published
from evalkit.gate.limits import GateSpec
from evalkit.spec.waiver import Waiver


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """One thing to judge: a stored run by word, a setting, a published score by name, or figures; one of the four.

    `refused_by` names the checks that must fail where the cell is broken on purpose.
    """

    name: str
    limits: GateSpec
    run: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    published: str = ""
    figures: Published | None = None
    baseline: str = ""
    golden: str = ""
    plain: str = ""
    twin: str = ""
    refused_by: tuple[str, ...] = ()
    waiver: Waiver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A whole specification. Words for files are as written; `folder` is where the specification lies."""

    name: str
    path: Path
    folder: Path
    alpha: float
    holm: bool
    scores: str
    cells: tuple[CellSpec, ...]
    in_order: bool = False  # the cells are tested in their order, in place of Holm

    @property
    def correction(self) -> str:
        """How many cells are allowed for, in words; "" where they are not."""
        return "a fixed order" if self.in_order else "Holm" if self.holm else ""

"""The page's plots: a module for each question, whose `plot` answers it and carries the numbers that it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalkit.report.figures import (
    calibration,
    conditional,
    detectable,
    histogram,
    lengths,
    loss,
    over_length,
    over_position,
    scores,
    survival,
)
from evalkit.report.figures.groups import groups
from evalkit.report.figures.plot import Plot, drawn
from evalkit.report.subject import Subject

__all__ = ["Plot", "drawn", "groups", "plots"]

OF_A_GROUP = (survival, conditional, histogram, over_position, over_length, calibration)  # in the order of the page


def plots(found: Sequence[Subject]) -> list[Plot]:
    """All plots that the runs have data for, in the order of the page."""
    made: list[Plot | None] = [loss.plot(found), scores.plot(found), lengths.plot(found)]
    for group, members in groups(found):
        made += [replace(p, group=group) for of in OF_A_GROUP if (p := of.plot(group, members)) is not None]
    return [p for p in [*made, detectable.plot(found)] if p is not None]

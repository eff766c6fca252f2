"""Rows of several experts in one launch: which tile of rows is which expert's, worked out where the rows are.

No count is read on the host, so a step need not wait for the device; the grid is as large as it can have to be, and
tiles that no expert has are empty. Rows are not moved: a kernel reads them, and writes, where `order` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Places (a row and one of the experts that serve it) by expert.

    ids: int64 [places], the expert of each. order: int64 [places], places sorted by expert, those of one expert in
    their own order. tiles: int32 [3, count] of `height` rows each: expert, first and end in `order`, first >= end
    where a tile is empty.
    """

    ids: Tensor
    order: Tensor
    tiles: Tensor
    height: int

    @classmethod
    def of(cls, ids: Tensor, experts: int, height: int) -> Groups:
        """The groups of ids int64 [places] below `experts`, in tiles of `height` rows."""
        found, order = ids.sort(stable=True)
        ends = torch.searchsorted(found, torch.arange(experts, device=ids.device), right=True)
        starts = F.pad(ends[:-1], (1, 0))
        tiles = (ends - starts + height - 1) // height
        before = tiles.cumsum(0) - tiles
        at = torch.arange(most_tiles(len(ids), experts, height), device=ids.device)
        expert = torch.searchsorted(before + tiles, at, right=True)
        beyond, expert = expert == experts, expert.clamp(max=experts - 1)
        first = starts[expert] + (at - before[expert]) * height
        end = torch.minimum(ends[expert], first + height).masked_fill(beyond, 0)
        return cls(ids=ids, order=order, tiles=torch.stack((expert, first, end)).int(), height=height)


def most_tiles(places: int, experts: int, height: int) -> int:
    """Tiles of `height` rows that any distribution of places over experts can need: each has one that is not full."""
    return (places + min(places, experts) * (height - 1)) // height


def tile_height(places: int, experts: int, least: int = 64) -> int:
    """Rows of a tile: least, 64 or 128, by how many rows an expert has on average.

    least: 64 for products in fp8, as in that of one matrix; 16 for those in bf16.
    """
    return next((h for h in (least, 64) if places <= h * experts), 128)

"""Which rows a tile has: every place once, in a tile of its expert, whatever the distribution."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.groups import Groups, most_tiles, tile_height

CASES = {
    "one place": [2],
    "all to one expert": [3] * 9,
    "none to the first and the last": [1, 2, 2, 1, 3, 1, 1, 1],
    "every expert once": [4, 3, 2, 1, 0],
    "no place": [],
}


def check(ids: torch.Tensor, experts: int, height: int) -> None:
    groups = Groups.of(ids, experts, height)
    assert sorted(groups.order.tolist()) == list(range(len(ids)))
    assert groups.tiles.shape == (3, most_tiles(len(ids), experts, height))
    covered, last = [], -1
    for expert, first, end in groups.tiles.T.tolist():
        places = groups.order[first:end].tolist() if first < end else []
        assert len(places) <= height and all(ids[p] == expert for p in places)
        assert places == sorted(places) and (not places or expert >= last)
        covered += places
        last = expert if places else last
    assert covered == groups.order.tolist()


@pytest.mark.parametrize("height", [1, 2, 4, 64])
@pytest.mark.parametrize("name", CASES)
def test_every_place_is_in_a_tile_of_its_expert(name: str, height: int) -> None:
    check(torch.tensor(CASES[name], dtype=torch.int64), 5, height)


def test_any_distribution(generator: torch.Generator) -> None:
    for places in range(1, 40):
        share = torch.rand(7, generator=generator) ** 4 + 1e-6  # some experts get none
        check(torch.multinomial(share, places, replacement=True, generator=generator), 7, 4)


def test_the_bound_is_reached_and_no_larger() -> None:
    """The worst case: one place for each expert but one, which has as many that one tile more begins."""
    for places, experts, height in ((1, 8, 64), (8, 8, 64), (72, 8, 64), (5, 3, 2)):
        ids = torch.tensor([*range(min(places, experts)), *[0] * (places - experts)])
        used = Groups.of(ids, experts, height).tiles
        assert int((used[1] < used[2]).sum()) == most_tiles(places, experts, height)


def test_tiles_are_high_where_experts_have_many_rows() -> None:
    assert [tile_height(p, 128) for p in (4, 64 * 128, 64 * 128 + 1)] == [64, 64, 128]

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.graph_sizes import ATOM_SIZES, graph_sizes
from engine.graphs import Graphs, empty, pad
from tests.engine.tiny import Tiny, prompts, requests

CPU = torch.device("cpu")


@pytest.mark.parametrize(("word", "settings", "sizes"), [
    ("off", {}, ()), ("dense", {"max_batch": 5}, (1, 2, 3, 4, 5)), ("dense", {"max_batched_tokens": 24}, (1, 2, 3)),
    ("atom", {}, (1, 2, 4, 8, 16, 32, 48, 64)), ("atom", {"max_batch": 1000, "max_batched_tokens": 9999}, ATOM_SIZES),
    ("8, 2,2,99", {}, (2, 8)), ("atom", {"max_batched_tokens": 3}, (1,)),
])  # fmt: skip
def test_sizes(word: str, settings: dict[str, int], sizes: tuple[int, ...]) -> None:
    assert graph_sizes(word, **{"max_batch": 64, "max_batched_tokens": 2048, "k": 7, **settings}) == sizes


@pytest.mark.parametrize("word", ["", "all", "1,-2", "0", "1;2", "\u0661"])
def test_other_words_are_told(word: str) -> None:
    with pytest.raises(EngineError, match="use off, atom, dense or sizes such as 1,2,4,8"):
        graph_sizes(word, max_batch=4, max_batched_tokens=64, k=0)


def test_a_list_has_one_spelling() -> None:
    assert EngineConfig(model=Path("m"), graphs=" 4,2,1, 02,99").graphs == "1,2,4,99"
    assert [EngineConfig(model=Path("m"), graphs=word).graphs for word in ("off", "atom", "dense")] == [
        "off", "atom", "dense"
    ]  # fmt: skip


@pytest.mark.parametrize(("word", "settings", "bound"), [("9999", {}, 64), ("6,5", {"max_batch": 4}, 4)])
def test_sizes_that_no_batch_reaches_are_refused(word: str, settings: dict[str, Any], bound: int) -> None:
    with pytest.raises(EngineError, match=f"no decode batch has more than {bound} sequences; fix: give a size of at"):
        EngineConfig(model=Path("m"), graphs=word, **settings)


def rows(n: int, width: int) -> Batch:
    at = torch.arange(n * width).view(n, width)
    return Batch(ids=at + 1, positions=at, slots=at, page_table=torch.ones(n, 2, dtype=torch.int64),
                 lengths=torch.full((n,), 9))  # fmt: skip


def test_padding_is_stored_nowhere() -> None:
    made = pad(rows(2, 3), 4, 5)
    assert made.positions.shape == (4, 5) and made.positions[:2, :3].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert bool((made.positions[2:] == -1).all()) and bool((made.positions[:, 3:] == -1).all())
    assert bool(((made.slots == -1) == (made.positions == -1)).all())
    assert made.lengths.tolist() == [9, 9, 0, 0] and made.page_table[2:].tolist() == [[0, 0], [0, 0]]
    whole = empty(2, 3, 4, CPU)
    assert bool((whole.positions == -1).all() & (whole.slots == -1).all()) and whole.page_table.shape == (2, 4)


def test_hits_misses_and_padding_rows_are_counted() -> None:
    seen: list[tuple[int, ...]] = []

    def forward(batch: Batch, longest: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(tuple(batch.positions.shape))
        flat = batch.ids.flatten().unsqueeze(1).float()
        return flat, torch.cat((flat, -flat), dim=1)

    graphs = Graphs(forward, sizes=(1, 4), width=3, pages=2, max_length=8, device=CPU)
    for n, width in ((1, 3), (2, 3), (3, 1), (5, 3), (2, 4)):
        hidden, features = graphs.run(rows(n, width))
        assert hidden.flatten().tolist() == [float(i + 1) for i in range(n * width)]
        assert features.shape == (n * width, 2)
    assert seen == [(1, 3), (4, 3), (4, 3), (5, 3), (2, 4)]
    assert graphs.counters() == {"graph_hits": 3, "graph_misses": 2, "graph_padding_rows": 0 + 6 + 9}


@pytest.mark.parametrize("quant", ["float32", "nvfp4"])
@pytest.mark.parametrize("k", [0, 3])
def test_padding_changes_no_result(tiny: Tiny, k: int, quant: str) -> None:
    ask = requests(prompts(7), max_tokens=16)
    plain = tiny.llm(k=k, max_batch=5, quant=quant)
    padded = tiny.llm(k=k, max_batch=5, quant=quant, graphs="4")
    a, b = plain.generate(ask), padded.generate(ask)
    assert [x.token_ids for x in a] == [x.token_ids for x in b]
    assert [[s.accepted for s in x.steps] for x in a] == [[s.accepted for s in x.steps] for x in b]
    told = padded.counters
    assert told["graph_hits"] + told["graph_misses"] == told["decode_ticks"] == plain.counters["decode_ticks"]
    assert told["graph_misses"] > 0 < told["graph_padding_rows"]
    for name in ("decode_rows", "verify_steps"):
        assert told[name] == plain.counters[name]


def test_dense_sizes_pad_only_short_blocks(tiny: Tiny) -> None:
    llm = tiny.llm(k=0, max_batch=5, graphs="dense")
    llm.generate(requests(prompts(7), max_tokens=8))
    assert llm.counters["graph_misses"] == llm.counters["graph_padding_rows"] == 0 < llm.counters["graph_hits"]


def test_what_graphs_pad_counts_for_mono(tiny: Tiny) -> None:
    """Five requests at K=2 are 15 rows; padded to 8 they are 24."""
    ask = requests(prompts(5, shared=0), max_tokens=8)
    for graphs, reason in (("off", {}), ("8", {"rows": 1})):
        llm = tiny.llm(k=2, max_batch=8 if graphs == "8" else 5, quant="fp8", mono="auto", graphs=graphs)
        llm.generate(ask)
        refused = llm.counters["mono_refused"]
        assert set(refused) == set(reason)

"""PagedAttend by kernels, as on a GPU but in the interpreter, against its path for the CPU: same cache, same rows."""

from __future__ import annotations

import pytest
import torch

from engine import kernels
from engine.attention import PagedAttend
from engine.kv_cache import KVCache
from tests.engine.test_attention import (
    LONG,
    RAGGED,
    SPARSE,
    draw,
    draw_index,
    fill_index,
    fill_past,
    make_batch,
    make_cache,
    make_table,
    sparse_cache,
)  # fmt: skip


def both(monkeypatch: pytest.MonkeyPatch, run) -> tuple[torch.Tensor, torch.Tensor]:
    plain = run()
    monkeypatch.setattr(kernels, "use_triton", lambda device: True)
    return plain, run()


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
@pytest.mark.parametrize("name", ["chunks", "verify with padding"])
def test_dense_layers(name: str, fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seqs = RAGGED[name]
    table = make_table(seqs, spare_columns=2)
    batch = make_batch(seqs, table)
    caches: list[KVCache] = []

    def run() -> torch.Tensor:
        cache = make_cache(fmt)
        caches.append(cache)
        fill_past(cache, seqs, table)
        return PagedAttend(batch, cache)(0, *draw(batch.positions.numel()))

    plain, fast = both(monkeypatch, run)
    torch.testing.assert_close(fast, plain, atol=2e-6, rtol=2e-6)
    for a, b in zip(caches[0].pages(0), caches[1].pages(0), strict=True):
        assert a[:-1].view(torch.uint8).equal(b[:-1].view(torch.uint8))


@pytest.mark.parametrize("index_format", ["float32", "nvfp4"])
def test_block_sparse_layers_and_a_shared_pick(index_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seqs = LONG["ragged"]
    table = make_table(seqs, spare_columns=1)
    batch = make_batch(seqs, table)

    def run() -> torch.Tensor:
        cache = sparse_cache(index_format)
        fill_past(cache, seqs, table)
        fill_index(cache, seqs, table)
        attend, rows = PagedAttend(batch, cache, sparse=SPARSE), batch.positions.numel()
        first = attend(0, *draw(rows), draw_index(rows, 5))
        return torch.cat((first, attend(1, *draw(rows, 3))))

    plain, fast = both(monkeypatch, run)
    torch.testing.assert_close(fast, plain, atol=2e-6, rtol=2e-6)

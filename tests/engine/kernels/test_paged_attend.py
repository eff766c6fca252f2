"""PagedAttend by kernels, as on a GPU but in the interpreter, against its path for the CPU: same cache, same rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.attention import PagedAttend, reference_attention
from engine.kernels import Kernels
from engine.kv_cache import KVCache, LayerSpec
from tests.engine.test_attention import (
    DIM,
    KV_HEADS,
    LONG,
    PAGE,
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


@pytest.mark.parametrize("fmt", ["float32", "nvfp4"])
@pytest.mark.parametrize("name", ["chunks", "verify with padding"])
def test_dense_layers(name: str, fmt: str) -> None:
    seqs = RAGGED[name]
    table = make_table(seqs, spare_columns=2)
    batch = make_batch(seqs, table)
    caches: list[KVCache] = []

    def run(triton: bool) -> torch.Tensor:
        cache = make_cache(fmt, kernels=Kernels(triton))
        caches.append(cache)
        fill_past(cache, seqs, table)
        return PagedAttend(batch, cache)(0, *draw(batch.positions.numel()))

    plain, fast = run(False), run(True)
    torch.testing.assert_close(fast, plain, atol=2e-6, rtol=2e-6)
    for a, b in zip(caches[0].pages(0), caches[1].pages(0), strict=True):
        assert a[:-1].view(torch.uint8).equal(b[:-1].view(torch.uint8))


@pytest.mark.parametrize("index_format", ["float32", "fp4_nv"])
def test_block_sparse_layers_and_a_shared_pick(index_format: str) -> None:
    seqs = LONG["ragged"]
    table = make_table(seqs, spare_columns=1)
    batch = make_batch(seqs, table)

    def run(triton: bool) -> torch.Tensor:
        cache = sparse_cache(index_format, kernels=Kernels(triton))
        fill_past(cache, seqs, table)
        fill_index(cache, seqs, table)
        attend, rows = PagedAttend(batch, cache, sparse=SPARSE), batch.positions.numel()
        first = attend(0, *draw(rows), draw_index(rows, 5))
        return torch.cat((first, attend(1, *draw(rows, 3))))

    plain, fast = run(False), run(True)
    torch.testing.assert_close(fast, plain, atol=2e-6, rtol=2e-6)


def test_a_format_without_a_kernel_takes_the_twin_and_the_others_do_not() -> None:
    seqs = RAGGED["chunks"]
    table = make_table(seqs)
    batch = make_batch(seqs, table)
    made = Kernels(triton=True)
    spec = LayerSpec(format="fp8_fnuz", kv_heads=KV_HEADS, head_dim=DIM)
    cache = KVCache([spec, replace(spec, format="fp8")], num_pages=64, page_size=PAGE, kernels=made)
    fill_past(cache, seqs, table)
    attend = PagedAttend(batch, cache)
    for layer in range(2):
        rows = draw(batch.positions.numel())
        torch.testing.assert_close(attend(layer, *rows), reference_attention(batch, cache, layer, rows[0]),
                                   atol=1e-5, rtol=1e-5)  # fmt: skip
    ops = ["paged_attention", "store_kv"]
    assert made.served() == {"triton": ops, "twin": ops}

"""Bytes a token takes, to the byte: the published table, and what a cache really allocates."""

from __future__ import annotations

import pytest

from engine.errors import EngineError
from engine.kv_cache import KVCache, LayerSpec
from engine.mode import QuantMode
from engine.quant.sizes import M3, M31, CacheShape, TokenBytes, draft_bytes, layer_bytes, token_bytes
from tools import quant_page


@pytest.mark.parametrize(("words", "kv", "scales", "index", "total", "rank"), [
    ("bf16", 2048, 0, 256, 138_240, 46_080),
    ("fp8", 1024, 32, 128, 71_040, 23_520),
    ("nvfp4", 512, 64, 72, 38_880, 12_960),
])  # fmt: skip
def test_the_published_table(words, kv, scales, index, total, rank):
    mode = QuantMode.parse(words, "bf16")
    one = layer_bytes(mode.kv_dtype(0, sparse=M31.sparse), mode.index_format, M31, picks=True)
    assert one == TokenBytes(kv=kv, scales=scales, index=index)
    assert token_bytes(mode, M31).total == total and token_bytes(mode, M31, tp=4).total == rank


def test_the_published_sums():
    found = token_bytes(QuantMode.parse("fp8", "bf16"), M3, tp=4)
    assert found == TokenBytes(kv=15_360, scales=480, index=7_296) and found.total == 23_136
    mode = QuantMode.parse("nvfp4", "bf16")
    assert draft_bytes(mode, layers=5, kv_heads=4, head_dim=128).total == 10_240
    assert draft_bytes(mode, layers=5, kv_heads=4, head_dim=128, tp=4).total == 2_560
    fp8, fp4 = (token_bytes(QuantMode.parse(m, "bf16"), M31, tp=4).total for m in ("fp8", "nvfp4"))
    assert fp8 / fp4 == pytest.approx(1.81, abs=0.005)


def test_m3_in_nvfp4_keeps_its_dense_layers_in_fp8():
    hybrid = token_bytes(QuantMode.parse("nvfp4", "bf16"), M3)
    assert hybrid.total == 57 * (512 + 64 + 72) + 3 * (1024 + 32)
    whole = token_bytes(QuantMode.parse("nvfp4 kv[dense]=nvfp4", "bf16"), M3)
    assert whole.total == 60 * (512 + 64) + 57 * 72


@pytest.mark.parametrize("words", ["float32", "bf16", "fp8", "nvfp4", "kv=nvfp4 kv[1]=fp8", "fp8 fp8=e4m3fnuz"])
def test_a_cache_allocates_what_the_formula_says(words):
    mode = QuantMode.parse(words)
    shape = CacheShape(kv_heads=2, head_dim=32, sparse=(False,) * 3)
    layers = [LayerSpec(format=f, kv_heads=2, head_dim=32) for f in mode.kv_formats(sparse=shape.sparse)]
    cache = KVCache(layers, num_pages=5, page_size=4)
    assert cache.bytes_per_token() == token_bytes(mode, shape).total
    assert cache.nbytes == 6 * 4 * token_bytes(mode, shape).total


def test_heads_that_cannot_be_split_are_refused():
    with pytest.raises(EngineError, match="4 KV heads cannot be split over 3 ranks"):
        token_bytes(QuantMode.parse("fp8"), M31, tp=3)


def test_the_page_is_current_and_a_stale_one_is_noticed(tmp_path, monkeypatch):
    path = quant_page.ROOT / quant_page.PAGE
    assert path.read_text(encoding="utf-8") == quant_page.page(), "fix: make fix"
    assert (
        "138,240" in quant_page.page() and "| `m31flash-c32-48` | ptpc_fp8 | fp8 | nvfp4 | fp4 |" in quant_page.page()
    )
    stale = quant_page.page().replace("138,240", "138,241")
    assert stale != quant_page.page()
    monkeypatch.setattr(quant_page, "PAGE", tmp_path / "quant.md")
    (tmp_path / "quant.md").write_text(stale, encoding="utf-8")
    assert quant_page.main(["--check"]) == 1
    assert quant_page.main([]) == 0 and quant_page.main(["--check"]) == 0

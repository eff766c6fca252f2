"""What is compiled ahead of time covers the embedded model as it is, and every operation that has a kernel."""

from __future__ import annotations

from pathlib import Path

from engine.checkpoint_config import load_model_config
from engine.config import EngineConfig
from engine.dspark_config import load_draft_config
from engine.kernels import INDEX_FORMATS, aot
from engine.kernels.cases import EMBEDDED, EMBEDDED_FLOAT32, M3
from engine.quant.sizes import M31

ROOT = Path(__file__).parents[3] / "engine" / "reference"


def test_the_embedded_shape_is_that_of_its_checkpoints() -> None:
    target, draft = load_model_config(ROOT / "target"), load_draft_config(ROOT / "draft")
    sparse, moe = target.sparse, target.moe
    assert sparse is not None and moe is not None
    for cfg in (target, draft.model):  # one shape serves both
        assert (cfg.num_heads, cfg.num_kv_heads, cfg.head_dim) == (EMBEDDED.heads, EMBEDDED.kv_heads, EMBEDDED.head_dim)
        assert cfg.max_positions == max(EMBEDDED.lengths)
    assert (target.vocab_size, draft.markov_rank) == (EMBEDDED.vocab, EMBEDDED.markov_rank)
    assert (sparse.index_heads, sparse.index_dim) == (EMBEDDED.index_heads, EMBEDDED.index_dim)
    assert (sparse.block_size, sparse.topk) == (EMBEDDED.block, EMBEDDED.topk)
    assert EngineConfig(model=ROOT / "target").page_size == EMBEDDED.page_size
    hidden, heads = target.hidden_size, (target.num_heads + 2 * target.num_kv_heads) * target.head_dim
    widths = {
        (hidden, heads), (hidden, (sparse.index_heads + 1) * sparse.index_dim),
        (target.num_heads * target.head_dim, hidden), (hidden, 2 * target.intermediate_size),
        (target.intermediate_size, hidden), (hidden, 2 * moe.expert_size), (moe.expert_size, hidden),
        (hidden, 2 * moe.shared_size), (moe.shared_size, hidden),
    }  # fmt: skip
    assert set(EMBEDDED.linear) == widths
    assert EMBEDDED.experts == (moe.experts, moe.experts_per_token)
    assert set(EMBEDDED.stacks) == {(hidden, 2 * moe.expert_size), (moe.expert_size, hidden)}


def test_m3s_shape_is_the_one_whose_bytes_are_published() -> None:
    assert (M3.kv_heads, M3.head_dim, M3.index_dim) == (M31.kv_heads, M31.head_dim, M31.index_dim)


def test_every_kernel_is_compiled_for_the_embedded_model_in_both_dtypes() -> None:
    """By the page, which test_compile.py holds against the launchers: they need a Triton that does not interpret."""
    text = aot.DOC.read_text(encoding="utf-8")
    for shape in (EMBEDDED, EMBEDDED_FLOAT32):
        for kernel in ("store_kv", "store_index", "attend", "block_attend", "score_topk", "ptpc_experts", "markov"):
            assert f"| {kernel} | [{shape.name}] " in text
    assert {*EMBEDDED.index_formats, *EMBEDDED_FLOAT32.index_formats} == set(INDEX_FORMATS)

"""Who runs a kernel, what is noted of it, and what an import costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine import kernels
from engine.errors import EngineError
from engine.kernels import Kernels, launch, reference
from engine.quant import FP8_FNUZ, QuantLinear, WeightOptions


def test_triton_by_itself_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Kernels.choose("auto", "cpu").triton
    assert not Kernels.choose("auto", torch.device("meta")).triton
    assert Kernels.choose("auto", "cuda:1").triton  # torch calls AMD's GPUs cuda as well
    assert not Kernels.choose("twin", "cuda").triton
    assert Kernels.choose("triton", "cuda").triton
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    assert not Kernels.choose("auto", "cuda").triton
    with pytest.raises(EngineError, match="Triton is not installed; fix: use --kernels auto"):
        Kernels.choose("triton", "cuda")


def test_on_a_cpu_kernels_are_interpreted_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "interpreted", lambda: True)
    assert Kernels.choose("triton", "cpu").triton
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(
        EngineError, match="the device is cpu: Triton runs on a GPU; fix: use --kernels auto, or set TR"
    ):
        Kernels.choose("triton", "cpu")


def test_what_is_noted() -> None:
    made = Kernels(triton=True)
    assert made.takes("draw") and not made.takes("store_kv", able=False) and made.takes("store_kv")
    assert made.served() == {"triton": ["draw", "store_kv"], "twin": ["store_kv"]} and made.twin_calls == 1
    twin = Kernels()
    assert not twin.takes("draw") and twin.served() == {"triton": [], "twin": ["draw"]}


def test_the_engine_starts_where_triton_is_missing() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, engine, engine.attention, engine.llm\n"
        "from engine.kernels import Kernels, reference\n"
        "print(reference.quantise_rows(torch.full((1, 16), 448.0))[1].item(), Kernels.choose('auto', 'cpu').triton)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "1.0 False", done.stderr


@pytest.mark.parametrize("entry", [kernels, reference])
def test_both_ways_give_the_same(entry, generator: torch.Generator) -> None:
    """Every entry of the package once by the kernel, in the interpreter, and once by its twin of the same arguments."""
    ids = torch.tensor([[3, 1], [2, 2]])
    base, w = torch.randint(-3, 4, (2, 2, 40), generator=generator).float(), torch.ones(40, 16)
    law = torch.full((2, 3, 40), 1 / 40)
    u = torch.full((2, 3), 0.5, dtype=torch.float64)
    counts = torch.tensor([2, 2])
    pages = tuple(torch.zeros(2, 16, 2, 1, width, dtype=d) for width, d in ((32, torch.uint8), (1, torch.float32)))
    one = torch.ones(2, 1, 32)
    entry.store_kv(one, one, torch.tensor([0, 1]), pages, "fp8")
    table, positions = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[0, 1]])
    out = entry.paged_attention(torch.ones(2, 2, 32), pages, "fp8", table, positions, max_length=2)
    torch.testing.assert_close(out, torch.ones(2, 64))
    out = entry.block_attention(torch.ones(2, 2, 32), one, one * 3, pages, "fp8", table, counts[:1], max_length=2)
    torch.testing.assert_close(out, torch.full((2, 64), 2.0))
    index = (torch.zeros(2, 16, 32),)
    entry.store_index(torch.ones(2, 32), torch.tensor([0, 1]), index, "float32")
    blocks = entry.index_topk(torch.ones(2, 1, 32), index, "float32", table, positions, block_size=16, topk=2,
                              init_blocks=0, local_blocks=1, max_length=2)  # fmt: skip
    assert blocks.tolist() == [[[0, -1]], [[0, -1]]]
    codes, scales = entry.quantise_rows(torch.ones(3, 32))
    y = entry.ptpc_matmul(codes, scales, codes, scales, torch.float32)
    torch.testing.assert_close(y, torch.full((3, 3), 32.0))
    anchors = torch.tensor([1, 2])
    assert entry.markov_greedy(base, anchors, w, w).equal(base.argmax(-1))  # the same bias everywhere
    assert entry.markov_logits(base[:, 0], anchors, w, w).equal(base[:, 0] + 16)
    assert entry.draw(law[:, 0], u[:, 0]).tolist() == [20, 20]
    assert entry.accept_greedy(torch.tensor([[3, 0, 5], [2, 2, 7]]), ids, counts).token.tolist() == [0, 7]
    for accept in (entry.accept_sampled, entry.accept_block):
        found = accept(law, law[:, :2], ids, u[:, :2], u, counts)
        assert found.accepted.tolist() == [2, 2]
        assert found.token.tolist() == [20, 20]


@pytest.mark.parametrize("triton", [False, True])
def test_blocks_without_counts_are_whole(triton: bool) -> None:
    made, ids = Kernels(triton), torch.tensor([[3, 1], [2, 2]])
    assert made.accept_greedy(torch.tensor([[3, 1, 5], [2, 0, 7]]), ids, None).accepted.tolist() == [2, 1]
    law, u = torch.full((2, 3, 40), 1 / 40), torch.full((2, 3), 0.5, dtype=torch.float64)
    assert made.accept_sampled(law, law[:, :2], ids, u[:, :2], u, None).accepted.tolist() == [2, 2]
    assert made.accept_block(law, law[:, :2], ids, u[:, :2], u, None).accepted.tolist() == [2, 2]
    assert made.draw(law[:, 0], u[:, 0]).tolist() == [20, 20]
    ops = ["accept_block", "accept_greedy", "accept_sampled", "draw"]
    assert made.served()["triton" if triton else "twin"] == ops


@pytest.mark.parametrize("bias", [False, True])
def test_a_ptpc_layer_multiplies_by_the_kernel_and_keeps_no_copy(bias: bool, generator: torch.Generator) -> None:
    weight, x = torch.randn(48, 40, generator=generator), torch.randn(2, 3, 40, generator=generator)
    extra = torch.randn(48, generator=generator) if bias else None
    plain, fast = (
        QuantLinear(weight, "ptpc_fp8", act="fp8", bias=extra, cache=True, kernels=Kernels(triton))
        for triton in (False, True)
    )
    assert fast.cached is None and plain.cached is not None
    torch.testing.assert_close(fast(x), plain(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fast.rows(x, slice(16, None)), plain.rows(x, slice(16, None)), atol=1e-5, rtol=1e-5)
    assert fast.kernels.served() == {"triton": ["ptpc_matmul"], "twin": []}


def test_other_dialects_and_formats_have_no_product_kernel(generator: torch.Generator) -> None:
    weight, x = torch.randn(32, 32, generator=generator), torch.randn(3, 32, generator=generator)
    made = Kernels(triton=True)
    fnuz = QuantLinear(weight, "ptpc_fp8", act="fp8", options=WeightOptions(fp8=FP8_FNUZ), kernels=made)
    fnuz(x)
    QuantLinear(weight, "mxfp8", act="mxfp8", kernels=made)(x)
    assert made.served() == {"triton": [], "twin": ["ptpc_matmul"]}

"""Who runs a kernel, and what an import costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine import kernels
from engine.kernels import reference


def test_triton_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kernels.use_triton("cpu")
    assert not kernels.use_triton(torch.device("meta"))
    assert kernels.use_triton("cuda:1")  # torch calls AMD's GPUs cuda as well
    monkeypatch.setattr(kernels, "_has_triton", lambda: False)
    assert not kernels.use_triton("cuda")


def test_the_engine_starts_where_triton_is_missing() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, engine, engine.attention, engine.kernels as k\n"
        "print(k.quantise_rows(torch.full((1, 16), 448.0))[1].item() == 1.0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("on_gpu", [False, True])
def test_both_ways_give_the_same(on_gpu: bool, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """Every entry of the package once by the twin and, as if on a GPU, once by the kernel in the interpreter."""
    monkeypatch.setattr(kernels, "use_triton", lambda device: on_gpu)
    ids = torch.tensor([[3, 1], [2, 2]])
    base, w = torch.randint(-3, 4, (2, 2, 40), generator=generator).float(), torch.ones(40, 16)
    law = torch.full((2, 3, 40), 1 / 40)
    u = torch.full((2, 3), 0.5, dtype=torch.float64)
    counts = torch.tensor([2, 2])
    pages = tuple(torch.zeros(2, 16, 2, 1, width, dtype=d) for width, d in ((32, torch.uint8), (1, torch.float32)))
    kernels.store_kv(torch.ones(2, 1, 32), torch.ones(2, 1, 32), torch.tensor([0, 1]), pages, "fp8")
    table, positions = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[0, 1]])
    out = kernels.paged_attention(torch.ones(2, 2, 32), pages, "fp8", table, positions, max_length=2)
    torch.testing.assert_close(out, torch.ones(2, 64))
    index = (torch.zeros(2, 16, 32),)
    kernels.store_index(torch.ones(2, 32), torch.tensor([0, 1]), index, "float32")
    blocks = kernels.index_topk(torch.ones(2, 1, 32), index, "float32", table, positions, block_size=16, topk=2,
                                init_blocks=0, local_blocks=1, max_length=2)  # fmt: skip
    assert blocks.tolist() == [[[0, -1]], [[0, -1]]]
    codes, scales = kernels.quantise_rows(torch.ones(3, 32))
    y = kernels.ptpc_matmul(codes, scales, codes, scales, torch.float32)
    torch.testing.assert_close(y, torch.full((3, 3), 32.0))
    anchors = torch.tensor([1, 2])
    assert kernels.markov_greedy(base, anchors, w, w).equal(reference.markov_greedy(base, anchors, w, w))
    assert kernels.markov_logits(base[:, 0], anchors, w, w).equal(base[:, 0] + 16)
    assert kernels.draw(law[:, 0], u[:, 0]).tolist() == [20, 20]
    assert kernels.accept_greedy(torch.tensor([[3, 0, 5], [2, 2, 7]]), ids, counts).token.tolist() == [0, 7]
    found = kernels.accept_sampled(law, law[:, :2], ids, u[:, :2], u, counts)
    assert found.accepted.tolist() == [2, 2]
    assert found.token.tolist() == [20, 20]
    assert kernels.accept_greedy(ids[:, :1], ids[:, :0], counts * 0).token.tolist() == [3, 2]  # K=0

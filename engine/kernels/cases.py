"""Which launches real models need: the launchers of this package, swept over shapes on torch's "meta" device.

Nothing here is a list of configurations. Each sweep calls a launcher as the engine would, for every kind of
step that a model sees, and keeps the launches that differ; what the launcher can choose is what it chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.kernels import attention, block, block_rule, experts, index, linear, sample, store
from engine.kernels.groups import Groups, tile_height
from engine.kernels.launch import Launch
from engine.quant import FORMATS, INDEX_FORMATS

WIDTHS = (1, 2, 4, 6, 8, 64, 2048)  # rows of a sequence in a step: plain decode, K+1 for K=1, 3, 5, 7, prefill chunks
BATCHES = (1, 2, 8, 48, 512)
ROWS = (1, 8, 16, 17, 64, 65, 4096)  # of a product
DRAFTED = (1, 3, 5, 7)  # rows of a block
LENGTHS = (1000, 8192, 131072, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a model decides its kernels. linear: (in, out) widths of its projections; lengths: of contexts.

    experts: how many, and how many serve a row; stacks: (in, out) widths of their matrices.
    """

    name: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    vocab: int
    markov_rank: int
    formats: tuple[str, ...] = ("bf16", "fp8", "nvfp4")
    index_heads: int = 0
    index_dim: int = 128
    index_formats: tuple[str, ...] = ("bf16", "fp8", "fp4_nv", "fp4_mx")
    block: int = 128
    topk: int = 16
    linear: tuple[tuple[int, int], ...] = ()
    experts: tuple[int, int] = (128, 4)
    stacks: tuple[tuple[int, int], ...] = ()
    lengths: tuple[int, ...] = LENGTHS


# MiniMax-M3: 64 query and 4 KV heads of 128, 4 index heads of 128, blocks of 128, top 16, hidden 6144; 4 of 128 experts
# of 3072.
M3 = Shape(
    name="M3", dtype=torch.bfloat16, heads=64, kv_heads=4, head_dim=128, page_size=128, vocab=200064, markov_rank=256,
    index_heads=4, linear=((6144, 9856), (8192, 6144), (6144, 24576), (12288, 6144)),
    stacks=((6144, 6144), (3072, 6144)),
)  # fmt: skip
# One of its four ranks.
M3_TP4 = Shape(
    name="M3 TP4", dtype=torch.bfloat16, heads=16, kv_heads=1, head_dim=128, page_size=128, vocab=200064,
    markov_rank=256, index_heads=1, linear=((6144, 2560), (2048, 6144), (6144, 6144), (3072, 6144)),
    stacks=((6144, 1536), (768, 6144)),
)  # fmt: skip
# The embedded model in the engine's default pages of 16 (tests hold this against its config.json), in both dtypes.
EMBEDDED = Shape(
    name="gradeschool", dtype=torch.bfloat16, heads=4, kv_heads=2, head_dim=32, page_size=16, vocab=768, markov_rank=32,
    index_heads=2, index_dim=32, block=16, topk=3, lengths=(1000, 4096),
    linear=((128, 256), (128, 96), (128, 128), (128, 768), (384, 128), (64, 128)),
    experts=(8, 2), stacks=((128, 128), (64, 128)),
)  # fmt: skip
EMBEDDED_FLOAT32 = replace(
    EMBEDDED, name="gradeschool float32", dtype=torch.float32, formats=("float32",), index_formats=("float32",)
)
SHAPES = (M3, M3_TP4, EMBEDDED, EMBEDDED_FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration of a kernel. key: the same for launches that compile to the same code."""

    shape: str
    kernel: str
    key: tuple[Any, ...]
    launch: Launch

    @property
    def name(self) -> str:
        hide = {"VOCAB", "D", "PAGE", "BLOCK", "R", "P", "T", "RANK", "INIT", "LOCAL", "GROUP"}
        parts = [f"{k.lower()}={v}" for k, v in self.launch.constants.items() if k not in hide | {"MIN_MASS"}]
        return f"{self.kernel} [{self.shape}] {' '.join(parts)}".strip()


def all_cases(shapes: tuple[Shape, ...] = SHAPES) -> list[Case]:
    """Every configuration, in a fixed order; one that two shapes share is the first's."""
    found: dict[tuple[Any, ...], Case] = {}
    for shape in shapes:
        for launch in _launches(shape):
            name = launch.kernel.fn.__name__.removesuffix("_kernel")
            key = (
                name,
                argument_types(launch),
                tuple(launch.constants.items()),
                launch.warps,
                launch.stages,
                launch.amd_stages,
            )
            found.setdefault(key, Case(shape=shape.name, kernel=name, key=key, launch=launch))
    return list(found.values())


def argument_types(launch: Launch) -> tuple[str, ...]:
    """Type of each argument as Triton's JIT names it, with "D" where it is a multiple of 16 and the kernel may use it.

    Tensors count as aligned, as whole allocations are; a page part or row slice that is not compiles once more.
    """
    names = []
    for value, parameter in zip(launch.args, launch.kernel.params, strict=False):
        if value is None:
            names.append("constexpr")
        elif isinstance(value, Tensor):
            names.append("*" + TYPES[value.dtype] + "D")
        elif isinstance(value, float):
            names.append("fp32")
        else:
            names.append("i32" + ("D" if value % 16 == 0 and not parameter.do_not_specialize else ""))
    return tuple(names)


TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _launches(s: Shape) -> Iterator[Launch]:
    yield from _stores(s)
    yield from _attention(s)
    yield from _blocks(s)
    yield from _index(s)
    yield from _linear(s)
    yield from _experts(s)
    yield from _sampling(s)


def _kv_pages(s: Shape, fmt: str) -> tuple[Tensor, ...]:
    parts = FORMATS[fmt].parts(s.head_dim)
    return tuple(_empty(9, s.page_size, 2, s.kv_heads, part.width, dtype=part.dtype) for part in parts)


def _index_pages(s: Shape, fmt: str) -> tuple[Tensor, ...]:
    parts = INDEX_FORMATS[fmt].parts(s.index_dim)
    return tuple(_empty(9, s.page_size, part.width, dtype=part.dtype) for part in parts)


def _stores(s: Shape) -> Iterator[Launch]:
    slots = _empty(8, dtype=torch.int64)
    for fmt in s.formats:
        k = _empty(8, s.kv_heads, s.head_dim, dtype=s.dtype)
        yield from store.store_kv_launches(k, k, slots, _kv_pages(s, fmt), fmt)
    for fmt in s.index_formats:
        index_k = _empty(8, s.index_dim, dtype=s.dtype)
        yield from store.store_index_launches(index_k, slots, _index_pages(s, fmt), fmt)


def _steps(s: Shape) -> Iterator[tuple[int, int, int]]:
    """(sequences, rows of each, longest context) of every kind of step."""
    for n in BATCHES:
        for width in WIDTHS:
            for length in s.lengths:
                if n * width <= 16384:
                    yield n, width, length


def _attention(s: Shape) -> Iterator[Launch]:
    for fmt in s.formats:
        pages = _kv_pages(s, fmt)
        for n, width, length in _steps(s):
            q = _empty(n * width, s.heads, s.head_dim, dtype=s.dtype)
            table = _empty(n, length // s.page_size + 1, dtype=torch.int64)
            positions = _empty(n, width, dtype=torch.int64)
            yield from attention.attention_launches(q, pages, fmt, table, positions, max_length=length)[1]
            if s.index_heads:
                blocks = _empty(n * width, s.kv_heads, s.topk, dtype=torch.int32)
                yield from attention.attention_launches(
                    q, pages, fmt, table, positions, max_length=length, blocks=blocks, block_size=s.block
                )[1]


def _blocks(s: Shape) -> Iterator[Launch]:
    """A draft's attention: its heads are the target's."""
    for fmt in s.formats:
        pages = _kv_pages(s, fmt)
        for n in BATCHES:
            for width in DRAFTED:
                for length in s.lengths:
                    q = _empty(n * width, s.heads, s.head_dim, dtype=s.dtype)
                    k = _empty(n * width, s.kv_heads, s.head_dim, dtype=s.dtype)
                    table = _empty(n, length // s.page_size + 1, dtype=torch.int64)
                    for window in (0, 4096):  # the second is MiniMax-M3.1's
                        yield from block.block_attention_launches(
                            q, k, k, pages, fmt, table, _empty(n, dtype=torch.int64), max_length=length, window=window
                        )[1]


def _index(s: Shape) -> Iterator[Launch]:
    for fmt in s.index_formats:
        pages = _index_pages(s, fmt)
        for n, width, length in _steps(s):
            iq = _empty(n * width, s.index_heads, s.index_dim, dtype=s.dtype)
            table = _empty(n, length // s.page_size + 1, dtype=torch.int64)
            yield from index.index_topk_launches(
                iq, pages, fmt, table, _empty(n, width, dtype=torch.int64), block_size=s.block, topk=s.topk,
                init_blocks=0, local_blocks=1, max_length=length,
            )[1]  # fmt: skip


def _linear(s: Shape) -> Iterator[Launch]:
    for k, n in s.linear:
        for m in ROWS:
            yield from linear.quantise_rows_launches(_empty(m, k, dtype=s.dtype))[2]
            x, w = _empty(m, k, dtype=linear.FP8), _empty(n, k, dtype=linear.FP8)
            scales = _empty(m, 1, dtype=torch.float32), _empty(n, 1, dtype=torch.float32)
            yield from linear.ptpc_matmul_launches(x, scales[0], w, scales[1], s.dtype)[1]


def _experts(s: Shape) -> Iterator[Launch]:
    """Rows that several experts serve, and rows of one each."""
    (count, chosen), u8 = s.experts, torch.uint8
    for k, n in s.stacks:
        for m in ROWS:
            ids = _empty(m * chosen, dtype=torch.int64)
            few, many = (Groups.of(ids, count, tile_height(len(ids), count, least)) for least in (16, 64))
            for rows in (m, m * chosen):
                x, x_scale = _empty(rows, k, dtype=linear.FP8), _empty(rows, 1, dtype=torch.float32)
                w, w_scale = _empty(count, n, k, dtype=linear.FP8), _empty(count, n, 1, dtype=torch.float32)
                yield from experts.ptpc_experts_launches(x, x_scale, w, w_scale, many, s.dtype)[1]
                x, w_scale = _empty(rows, k, dtype=s.dtype), _empty(count, n, k // 32, dtype=u8)
                for groups in (few, many):  # `many` where the other stack is in fp8
                    for width in (k // 2, k):
                        w = _empty(count, n, width, dtype=u8)
                        yield from experts.mx_experts_launches(x, w, w_scale, groups)[1]


def _sampling(s: Shape) -> Iterator[Launch]:
    f32, i64 = torch.float32, torch.int64
    w = _empty(s.vocab, s.markov_rank, dtype=s.dtype)
    for n in BATCHES:
        for k in DRAFTED:
            ids = _empty(n, dtype=i64)
            yield from sample.markov_greedy_launches(_empty(n, k, s.vocab, dtype=f32), ids, w, w)[1]
            drafts, targets = _empty(n, k, dtype=i64), _empty(n, k + 1, dtype=i64)
            yield from sample.accept_greedy_launches(targets, drafts, ids)[2]
            p, q = _empty(n, k + 1, s.vocab, dtype=f32), _empty(n, k, s.vocab, dtype=f32)
            u = _empty(n, k, dtype=torch.float64), _empty(n, k + 1, dtype=torch.float64)
            for law in (q, None):
                for rule in (sample.accept_sampled_launches, block_rule.accept_block_launches):
                    yield from rule(p, law, drafts, u[0], u[1], ids, 1e-8)[2]
        yield from sample.markov_logits_launches(_empty(n, s.vocab, dtype=f32), _empty(n, dtype=i64), w, w)[1]
        yield from sample.draw_launches(_empty(n, s.vocab, dtype=f32), _empty(n, dtype=torch.float64))[1]

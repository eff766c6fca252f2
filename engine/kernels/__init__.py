"""The engine's kernels: Triton on a GPU, their plain-torch twins elsewhere, as `Kernels` decides.

The functions here are the kernels, and importing this imports no Triton; `reference` has their twins, same
arguments and results, written to be read. Where the engine has a batched way of its own in torch (`KVCache`,
`PagedAttend`, `BlockAttend`, `QuantLinear`, `verify`, `sampling`), that is what runs in place of a kernel.

Pages are those of engine/kv_cache.py: parts [num_pages + 1, page_size, 2, kv_heads, width], K before V; index
pages are parts [num_pages + 1, page_size, width]. A page table is int64 [n, pages]; positions are int64
[n, width], -1 for a padding row; rows = n * width. Arguments are read as they are: what a caller promises here
is not checked again, since a check would wait for the GPU.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from engine import sampling, verify
from engine.errors import EngineError
from engine.kernels.groups import Groups
from engine.verify import MIN_MASS, Decision

FORMATS = ("float32", "bf16", "fp8", "nvfp4")  # of keys and values; others (fp8_fnuz, a global scale) have no kernel
INDEX_FORMATS = ("float32", "bf16", "fp8", "fp4_nv", "fp4_mx")
WIDEST = 256  # numbers of an index key or head; a draft's wider vectors, kept in an index place, take the twin


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


class Kernels:
    """Which of an engine's operations Triton's kernels run: the one place where that is decided.

    An engine makes one of these and hands it to what stores, attends, multiplies, drafts and verifies. It notes who
    ran what, which goes into the run's record.
    """

    def __init__(self, triton: bool = False) -> None:
        self.triton = triton
        self.twin_calls = 0
        self._served: dict[str, set[str]] = {"triton": set(), "twin": set()}

    @classmethod
    def choose(cls, word: str, device: torch.device | str) -> Kernels:
        """The choice of EngineConfig.kernels on a device.

        "auto" takes Triton on a GPU (torch calls AMD's "cuda" too) where it is installed, "twin" plain torch anywhere,
        "triton" the kernels or nothing: raises EngineError where they cannot run. On a CPU they run in Triton's
        interpreter, if that was asked for before Triton was imported.
        """
        gpu = torch.device(device).type == "cuda"
        if word == "auto":
            return cls(gpu and has_triton())
        if word == "triton" and not has_triton():
            raise EngineError("kernels is triton, and Triton is not installed", "use --kernels auto")
        if word == "triton" and not gpu and not _interpreted():
            kind = torch.device(device).type
            raise EngineError(f"kernels is triton, and the device is {kind}: Triton runs on a GPU",
                              "use --kernels auto, or set TRITON_INTERPRET=1 to interpret them, slowly")  # fmt: skip
        return cls(word == "triton")

    def takes(self, op: str, able: bool = True) -> bool:
        """Whether a kernel runs `op` this time; notes who does. able: there is a kernel for what is asked."""
        fast = self.triton and able
        self._served["triton" if fast else "twin"].add(op)
        self.twin_calls += not fast
        return fast

    def served(self) -> dict[str, list[str]]:
        """Operations that have run so far, by who ran them: "triton" and "twin". One may be in both."""
        return {who: sorted(ops) for who, ops in self._served.items()}

    def draw(self, weights: Tensor, u: Tensor) -> Tensor:
        """sampling.draw of weights [rows, vocab]."""
        return draw(weights, u) if self.takes("draw") else sampling.draw(weights, u)

    def accept_greedy(self, targets: Tensor, drafts: Tensor, counts: Tensor | None) -> Decision:
        """verify.accept_greedy."""
        if not self.takes("accept_greedy"):
            return verify.accept_greedy(targets, drafts, counts)
        return accept_greedy(targets, drafts, _all_of(drafts) if counts is None else counts)

    def accept_sampled(
        self, p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor | None
    ) -> Decision:
        """verify.accept_sampled."""
        if not self.takes("accept_sampled"):
            return verify.accept_sampled(p, q, drafts, u_accept, u_token, counts)
        return accept_sampled(p, q, drafts, u_accept, u_token, _all_of(drafts) if counts is None else counts)

    def accept_block(
        self, p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor | None
    ) -> Decision:
        """verify.accept_block."""
        if not self.takes("accept_block"):
            return verify.accept_block(p, q, drafts, u_accept, u_token, counts)
        return accept_block(p, q, drafts, u_accept, u_token, _all_of(drafts) if counts is None else counts)


def _interpreted() -> bool:
    from engine.kernels import launch

    return launch.interpreted()


def _all_of(drafts: Tensor) -> Tensor:
    """counts int64 [n] of whole blocks."""
    return torch.full_like(drafts[:, 0], drafts.shape[1])


def store_kv(k: Tensor, v: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Encode k and v [rows, kv_heads, head_dim] in a format of FORMATS into slots int64 [rows]; -1: nowhere."""
    from engine.kernels import store

    store.store_kv(k, v, slots, pages, fmt)


def store_index(index_k: Tensor, slots: Tensor, pages: tuple[Tensor, ...], fmt: str) -> None:
    """Encode index keys [rows, width] in a format of INDEX_FORMATS into slots int64 [rows]; -1 writes nothing.

    fp8 is a saturating cast without a scale; fp4_nv has blocks of 16 with E4M3 scales, fp4_mx of 32 with E8M0.
    """
    from engine.kernels import store

    store.store_index(index_k, slots, pages, fmt)


def paged_attention(
    q: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    positions: Tensor,
    *,
    max_length: int,
    blocks: Tensor | None = None,
    block_size: int = 0,
) -> Tensor:
    """[rows, heads * head_dim] of q [rows, heads, head_dim], in the type of q; a padding row gives zeros.

    The row at position p sees the keys at 0..p of its sequence. max_length: at least every position + 1.
    blocks: int32 [rows, kv_heads, topk] or None for all: block ids of `block_size` tokens, those in use first,
    then -1; the row then sees only tokens of these blocks, for all query heads of the KV head.
    """
    from engine.kernels import attention

    return attention.paged_attention(
        q, pages, fmt, page_table, positions, max_length=max_length, blocks=blocks, block_size=block_size
    )


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    lengths: Tensor,
    *,
    max_length: int,
    window: int = 0,
) -> Tensor:
    """[n * T, heads * head_dim] of a draft's blocks: q [n * T, heads, head_dim], k and v [n * T, kv_heads, head_dim].

    Row j of a sequence sees the keys in its pages at 0..lengths-1 (int64 [n]), with `window` only those from
    lengths + j - window + 1 on, and all T rows of its own block, as k and v give them. max_length: at least every
    length.
    """
    from engine.kernels import block

    return block.block_attention(q, k, v, pages, fmt, page_table, lengths, max_length=max_length, window=window)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn [m, k] and scale float32 [m, 1] = amax / 448 (1 for a zero row) of x [m, k]."""
    from engine.kernels import linear

    return linear.quantise_rows(x)


def ptpc_matmul(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """[m, n] in `dtype`: (x . w^T in float32) * x_scale * w_scale.

    x, w: float8_e4m3fn [m, k] and [n, k]; x_scale, w_scale: float32 [m, 1] and [n, 1].
    """
    from engine.kernels import linear

    return linear.ptpc_matmul(x, x_scale, w, w_scale, dtype)


def ptpc_experts(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, groups: Groups, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """[places, n] in `dtype`: ptpc_matmul of each place's row with the matrix of its expert, all in one launch.

    Rows have equally many places, those of a row one after another: place i is of row i // (places / rows).
    x: float8_e4m3fn [rows, k], x_scale: float32 [rows, 1]; w: float8_e4m3fn [experts, n, k], w_scale: float32
    [experts, n, 1].
    """
    from engine.kernels import experts

    return experts.ptpc_experts(x, x_scale, w, w_scale, groups, dtype)


def mx_experts(x: Tensor, w: Tensor, w_scale: Tensor, groups: Groups) -> Tensor:
    """[places, n] in the type of x: each place's row times the matrix of its expert, all in one launch.

    Places as in ptpc_experts. x: bf16 or float32 [rows, k]; w: uint8 [experts, n, k] of MXFP8 codes, or [experts, n,
    k / 2] of MXFP4's; w_scale: E8M0 bytes uint8 [experts, n, k / 32]. Sums are float32, of products of x's type, which
    holds a decoded weight exactly.
    """
    from engine.kernels import experts

    return experts.mx_experts(x, w, w_scale, groups)


def index_topk(
    iq: Tensor,
    pages: tuple[Tensor, ...],
    fmt: str,
    page_table: Tensor,
    positions: Tensor,
    *,
    block_size: int,
    topk: int,
    init_blocks: int,
    local_blocks: int,
    max_length: int,
) -> Tensor:
    """int32 [rows, heads, topk]: the blocks each row and index head attends to, best first, unused places -1.

    iq: [rows, heads, width]. A block's score is max(iq . ik) over its tokens at or before the row, a NaN
    counting as -1e30. The first `init_blocks` score 1e30 and the last `local_blocks` that the row
    sees 1e29, whatever they hold. Order: score descending, id ascending. All rows of a sequence (K+1 of a
    verification) share one reading of its index blocks; each has its own causal length and list.
    """
    from engine.kernels import index

    return index.index_topk(
        iq, pages, fmt, page_table, positions, block_size=block_size, topk=topk, init_blocks=init_blocks,
        local_blocks=local_blocks, max_length=max_length,
    )  # fmt: skip


def markov_greedy(base: Tensor, anchors: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """int64 [n, K]: token i is the argmax of base[:, i] + w_out . w_in[token before it], ties to the lowest id.

    base: [n, K, vocab]; anchors: int64 [n]; w_in, w_out: [vocab, rank]. Sums are float32. Of one slot (K = 1) w_in may
    be any table of rows that w_out is multiplied with, and the anchors rows of it.
    """
    from engine.kernels import sample

    return sample.markov_greedy(base, anchors, w_in, w_out)


def markov_logits(base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """float32 [n, vocab] base + w_out . w_in[previous], for one sampled step; base [n, vocab], previous int64 [n].

    w_in may be any table [rows, rank], `previous` then are rows of it.
    """
    from engine.kernels import sample

    return sample.markov_logits(base, previous, w_in, w_out)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """int64 [rows]: sampling.draw of weights float32 [rows, vocab] and u float64 [rows]."""
    from engine.kernels import sample

    return sample.draw(weights, u)


def accept_greedy(targets: Tensor, drafts: Tensor, counts: Tensor) -> Decision:
    """verify.accept_greedy: targets int64 [n, K+1], drafts int64 [n, K], K >= 1, counts int64 [n]."""
    from engine.kernels import sample

    return Decision(*sample.accept_greedy(targets, drafts, counts))


def accept_sampled(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor
) -> Decision:
    """verify.accept_sampled with its arguments, K >= 1; the uniforms are float64, so every draw is given."""
    from engine.kernels import sample

    return Decision(*sample.accept_sampled(p, q, drafts, u_accept, u_token, counts, MIN_MASS))


def accept_block(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor
) -> Decision:
    """verify.accept_block with its arguments, K >= 1; the uniforms are float64, so every draw is given."""
    from engine.kernels import block_rule

    return Decision(*block_rule.accept_block(p, q, drafts, u_accept, u_token, counts, MIN_MASS))

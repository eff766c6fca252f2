"""Tokens out of laws: the Markov head's chain, a draw from given weights, and accepting or rejecting a block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.formats import key_id, sort_key
from engine.kernels.launch import Launch, ceil_div, power_of_2, run_all

LOWEST = -(2**63)
NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["n", "k", "step", "stride"])
def markov_kernel(base, w_in, w_out, anchors, keys, logits, n, k, step, stride, VOCAB: tl.constexpr, RANK: tl.constexpr,
                  GREEDY: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """One step of the chain over one tile of the vocabulary: base[row, step] + w_out . w_in[previous].

    GREEDY: the tile's best goes into keys [n, K] at `step`, by atomic max, and the previous token comes from
    the key before. Otherwise the sums go to logits [n, VOCAB] and `anchors` holds the previous tokens.
    """
    row = tl.program_id(1) * M + tl.arange(0, M)
    col = tl.program_id(0) * N + tl.arange(0, N)
    live = row < n
    previous = tl.load(anchors + row, mask=live, other=0)
    if GREEDY and step > 0:
        previous = key_id(tl.load(keys + row * k + step - 1, mask=live, other=0))
        previous = tl.minimum(previous, VOCAB - 1)
    at = tl.arange(0, R)
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, RANK, R):
        inner = start + at < RANK
        e = tl.load(w_in + previous[:, None] * RANK + (start + at)[None, :], mask=live[:, None] & inner[None, :],
                    other=0.0)  # fmt: skip
        w = tl.load(w_out + col.to(tl.int64)[None, :] * RANK + (start + at)[:, None],
                    mask=(col < VOCAB)[None, :] & inner[:, None], other=0.0)  # fmt: skip
        acc = tl.dot(e, w, acc, input_precision="ieee")
    inside = live[:, None] & (col < VOCAB)[None, :]
    u = tl.load(base + row.to(tl.int64)[:, None] * stride + step * VOCAB + col[None, :], mask=inside, other=0.0)
    u = u.to(tl.float32)
    if GREEDY:
        ids = tl.broadcast_to(col[None, :], (M, N))
        key = tl.where(inside, sort_key(acc + u, ids), -(2**63))
        tl.atomic_max(keys + row * k + step, tl.max(key, 1), mask=live)
    else:
        tl.store(logits + row.to(tl.int64)[:, None] * VOCAB + col[None, :], acc + u, mask=inside)


@triton.jit
def weight(p, q, one, scale, ids, RESIDUAL: tl.constexpr, ONE_HOT: tl.constexpr, VOCAB: tl.constexpr):
    """p, or max(scale * p - q, 0) where RESIDUAL, at `ids`; q is all on token `one` where ONE_HOT."""
    inside = ids < VOCAB
    w = tl.load(p + ids, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        taken = (ids == one).to(tl.float32) if ONE_HOT else tl.load(q + ids, mask=inside, other=0.0).to(tl.float32)
        w = tl.maximum(scale * w - taken, 0.0)
    return w


@triton.jit
def mass(p, q, one, scale, RESIDUAL: tl.constexpr, ONE_HOT: tl.constexpr, VOCAB: tl.constexpr, N: tl.constexpr):
    """float64 sum of the weights."""
    total = tl.zeros((N,), tl.float64)
    for start in range(0, VOCAB, N):
        total += weight(p, q, one, scale, start + tl.arange(0, N), RESIDUAL, ONE_HOT, VOCAB).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def pick(p, q, one, scale, total, u, RESIDUAL: tl.constexpr, ONE_HOT: tl.constexpr, VOCAB: tl.constexpr,
         N: tl.constexpr):  # fmt: skip
    """The token whose share of the cumulative weight holds u. One of weight 0 is never drawn.

    A sum in another order may end just below `total`: where no token passes u, the last with weight is it.
    """
    mark, before = u * total, tl.full((), 0.0, tl.float64)
    found, last = tl.full((), NOWHERE, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, VOCAB, N):
        ids = start + tl.arange(0, N)
        w = weight(p, q, one, scale, ids, RESIDUAL, ONE_HOT, VOCAB)
        wide = w.to(tl.float64)
        passed = (before + tl.cumsum(wide, 0) > mark) & (w > 0.0)
        found = tl.minimum(found, tl.min(tl.where(passed, ids, NOWHERE), 0))
        last = tl.maximum(last, tl.max(tl.where(w > 0.0, ids, 0), 0))
        before += tl.sum(wide, 0)
    return tl.where(found == NOWHERE, last, found)


@triton.jit
def draw_kernel(weights, u, out, VOCAB: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    p = weights + row * VOCAB
    total = mass(p, p, 0, 1.0, False, True, VOCAB, N)
    tl.store(out + row, pick(p, p, 0, 1.0, total, tl.load(u + row), False, True, VOCAB, N).to(tl.int64))


@triton.jit(do_not_specialize=["n", "k"])
def accept_greedy_kernel(targets, drafts, counts, accepted, token, n, k, ROWS: tl.constexpr,
                         P: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, P)
    live, inside = row < n, (row < n)[:, None] & (j < k)[None, :]
    draft = tl.load(drafts + row[:, None] * k + j[None, :], mask=inside, other=0)
    target = tl.load(targets + row[:, None] * (k + 1) + j[None, :], mask=inside, other=-1)
    count = tl.load(counts + row, mask=live, other=0).to(tl.int32)
    kept = tl.min(tl.where(draft == target, k, j[None, :]), 1)
    kept = tl.minimum(kept, count)
    tl.store(accepted + row, kept.to(tl.int64), mask=live)
    tl.store(token + row, tl.load(targets + row * (k + 1) + kept, mask=live, other=0), mask=live)


@triton.jit(do_not_specialize=["k"])
def accept_sampled_kernel(p, q, drafts, u_accept, u_token, counts, accepted, token, k, MIN_MASS: tl.constexpr,
                          ONE_HOT: tl.constexpr, VOCAB: tl.constexpr, P: tl.constexpr,
                          N: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, P)
    count = tl.load(counts + row).to(tl.int32)
    inside = j < k
    draft = tl.load(drafts + row * k + j, mask=inside, other=0)
    at_p = (row * (k + 1) + j) * VOCAB + draft
    p_d = tl.load(p + at_p, mask=inside, other=0.0).to(tl.float64)
    q_d = tl.full((P,), 1.0, tl.float64)
    if not ONE_HOT:
        q_d = tl.load(q + (row * k + j) * VOCAB + draft, mask=inside, other=1.0).to(tl.float64)
    keep = tl.load(u_accept + row * k + j, mask=inside, other=0.0) * q_d < p_d
    kept = tl.minimum(tl.min(tl.where(keep & inside, k, j), 0), count)
    kept = tl.minimum(kept, k)

    law = p + (row * (k + 1) + kept) * VOCAB
    u = tl.load(u_token + row * (k + 1) + kept)
    place = tl.minimum(kept, k - 1)
    draft_law = law if ONE_HOT else q + (row * k + place) * VOCAB
    one = tl.load(drafts + row * k + place).to(tl.int32)
    left = tl.full((), 0.0, tl.float64)
    if kept < count:
        left = mass(law, draft_law, one, 1.0, True, ONE_HOT, VOCAB, N)
    if left > MIN_MASS:
        chosen = pick(law, draft_law, one, 1.0, left, u, True, ONE_HOT, VOCAB, N)
    else:
        total = mass(law, draft_law, one, 1.0, False, ONE_HOT, VOCAB, N)
        chosen = pick(law, draft_law, one, 1.0, total, u, False, ONE_HOT, VOCAB, N)
    tl.store(accepted + row, kept.to(tl.int64))
    tl.store(token + row, chosen.to(tl.int64))


def markov_greedy_launches(base: Tensor, anchors: Tensor, w_in: Tensor, w_out: Tensor) -> tuple[Tensor, list[Launch]]:
    """Sort keys int64 [n, K], whose low half names the token, and one launch for each step of the chain."""
    n, k, vocab = base.shape
    keys = torch.full((n, k), LOWEST, dtype=torch.int64, device=base.device)
    base = base if base.stride()[1:] == (vocab, 1) else base.contiguous()  # slots of one row together, any row stride
    return keys, [_markov(base, anchors, w_in, w_out, keys, None, step, base.stride(0)) for step in range(k)]


def _markov(
    base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor, keys: Tensor | None, logits: Tensor | None, step: int,
    stride: int,
) -> Launch:  # fmt: skip
    n, (vocab, rank) = base.shape[0], w_out.shape
    m = 16 if n <= 16 or w_in.dtype == torch.float32 else 64
    wide = 64 if w_in.dtype == torch.float32 else 128
    constants = {
        "VOCAB": vocab, "RANK": rank, "GREEDY": keys is not None, "M": m,
        "N": wide, "R": min(power_of_2(rank, 16), 64),
    }  # fmt: skip
    args = (base, w_in, w_out, previous, keys, logits, n, 1 if keys is None else keys.shape[1], step, stride)
    grid = (ceil_div(vocab, wide), ceil_div(n, m))
    return Launch(kernel=markov_kernel, grid=grid, args=args, constants=constants, warps=8 if m == 64 else 4)


def markov_logits_launches(base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.markov_logits."""
    logits = torch.empty(base.shape, dtype=torch.float32, device=base.device)
    base = base if base.stride(1) == 1 else base.contiguous()
    return logits, [_markov(base, previous, w_in, w_out, None, logits, 0, base.stride(0))]


def draw_launches(weights: Tensor, u: Tensor) -> tuple[Tensor, list[Launch]]:
    """See engine.kernels.draw."""
    rows, vocab = weights.shape
    out = torch.empty(rows, dtype=torch.int64, device=weights.device)
    constants = {"VOCAB": vocab, "N": vocab_tile(vocab)}
    args = (weights.contiguous(), u.contiguous(), out)
    return out, [Launch(kernel=draw_kernel, grid=(rows,), args=args, constants=constants)]


def vocab_tile(vocab: int) -> int:
    return min(power_of_2(vocab, 16), 2048)


def accept_greedy_launches(targets: Tensor, drafts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, list[Launch]]:
    """See engine.kernels.accept_greedy. K >= 1."""
    n, k = drafts.shape
    accepted = torch.empty(n, dtype=torch.int64, device=drafts.device)
    token = torch.empty_like(accepted)
    args = (targets.contiguous(), drafts.contiguous(), counts, accepted, token, n, k)
    constants = {"ROWS": 64, "P": power_of_2(k, 8)}
    return (
        accepted,
        token,
        [Launch(kernel=accept_greedy_kernel, grid=(ceil_div(n, 64),), args=args, constants=constants)],
    )


def accept_sampled_launches(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor, min_mass: float
) -> tuple[Tensor, Tensor, list[Launch]]:
    """See engine.kernels.accept_sampled. K >= 1."""
    n, k = drafts.shape
    accepted = torch.empty(n, dtype=torch.int64, device=drafts.device)
    token = torch.empty_like(accepted)
    args = (p.contiguous(), None if q is None else q.contiguous(), drafts.contiguous(), u_accept.contiguous(),
            u_token.contiguous(), counts, accepted, token, k)  # fmt: skip
    vocab = p.shape[-1]
    constants = {
        "MIN_MASS": min_mass, "ONE_HOT": q is None, "VOCAB": vocab, "P": power_of_2(k, 8), "N": vocab_tile(vocab)
    }  # fmt: skip
    return accepted, token, [Launch(kernel=accept_sampled_kernel, grid=(n,), args=args, constants=constants)]


def markov_greedy(base: Tensor, anchors: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    keys, launches = markov_greedy_launches(base, anchors, w_in, w_out)
    run_all(launches)
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF)


def markov_logits(base: Tensor, previous: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    logits, launches = markov_logits_launches(base, previous, w_in, w_out)
    run_all(launches)
    return logits


def draw(weights: Tensor, u: Tensor) -> Tensor:
    out, launches = draw_launches(weights, u)
    run_all(launches)
    return out


def accept_greedy(targets: Tensor, drafts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    accepted, token, launches = accept_greedy_launches(targets, drafts, counts)
    run_all(launches)
    return accepted, token


def accept_sampled(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor, min_mass: float
) -> tuple[Tensor, Tensor]:
    accepted, token, launches = accept_sampled_launches(p, q, drafts, u_accept, u_token, counts, min_mass)
    run_all(launches)
    return accepted, token


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

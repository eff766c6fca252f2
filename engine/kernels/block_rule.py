"""The block rule: how many drafts of a block are kept, judged as a whole, and the token that follows them.

Chances are float64, as in engine/verify.py; sums over the vocabulary are added in another order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.launch import Launch, run_all
from engine.kernels.sample import mass, pick, vocab_tile


@triton.jit
def _grown(chance, p, q, drafts, row, i, k, ONE_HOT: tl.constexpr, VOCAB: tl.constexpr):
    """w_{i+1} of w_i: the chance that the drafts before place i are kept, times that of the draft at it, at most 1."""
    draft = tl.load(drafts + row * k + i)
    ratio = tl.load(p + (row * (k + 1) + i) * VOCAB + draft).to(tl.float64)
    if not ONE_HOT:
        ratio = ratio / tl.maximum(tl.load(q + (row * k + i) * VOCAB + draft).to(tl.float64), 1e-300)
    return tl.minimum(chance * ratio, 1.0)


@triton.jit(do_not_specialize=["k"])
def block_left_kernel(p, q, drafts, counts, left, k, VOCAB: tl.constexpr, N: tl.constexpr):
    """left [n, K]: at i = 1..count-1 the mass of max(w_i p_{i+1} - q_{i+1}, 0); other places are not written."""
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    if i >= tl.load(counts + row):
        return
    chance = tl.full((), 1.0, tl.float64)
    for j in range(0, i):
        chance = _grown(chance, p, q, drafts, row, j, k, False, VOCAB)
    law, draft_law = p + (row * (k + 1) + i) * VOCAB, q + (row * k + i) * VOCAB
    tl.store(left + row * k + i, mass(law, draft_law, 0, chance.to(tl.float32), True, False, VOCAB, N))


@triton.jit(do_not_specialize=["k"])
def accept_block_kernel(p, q, drafts, u_accept, u_token, counts, left, accepted, token, k, MIN_MASS: tl.constexpr,
                        ONE_HOT: tl.constexpr, VOCAB: tl.constexpr, N: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts + row).to(tl.int32), k)
    chance = tl.full((), 1.0, tl.float64)
    kept, scale = tl.full((), 0, tl.int32), tl.full((), 1.0, tl.float64)
    for i in range(1, count + 1):
        chance = _grown(chance, p, q, drafts, row, i - 1, k, ONE_HOT, VOCAB)
        next_one = tl.minimum(i, k - 1)  # at the block's end nothing comes next, and nothing is made of it
        if ONE_HOT:
            draft = tl.load(drafts + row * k + next_one)
            inner = chance * (1.0 - tl.load(p + (row * (k + 1) + next_one) * VOCAB + draft).to(tl.float64))
        else:
            inner = tl.load(left + row * k + next_one)
        total = inner + 1.0 - chance
        here = tl.where(total > 0.0, inner / tl.where(total > 0.0, total, 1.0), 1.0)
        here = tl.where(i == count, chance, here)
        keep = tl.load(u_accept + row * k + i - 1) < here
        kept = tl.where(keep, i, kept)
        scale = tl.where(keep, chance, scale)

    law = p + (row * (k + 1) + kept) * VOCAB
    u = tl.load(u_token + row * (k + 1) + kept)
    place = tl.minimum(kept, k - 1)
    draft_law = law if ONE_HOT else q + (row * k + place) * VOCAB
    one, factor = tl.load(drafts + row * k + place).to(tl.int32), scale.to(tl.float32)
    rest = tl.full((), 0.0, tl.float64)
    if kept < count:
        rest = mass(law, draft_law, one, factor, True, ONE_HOT, VOCAB, N)
    if rest > MIN_MASS * factor:
        chosen = pick(law, draft_law, one, factor, rest, u, True, ONE_HOT, VOCAB, N)
    else:
        whole = mass(law, draft_law, one, factor, False, ONE_HOT, VOCAB, N)
        chosen = pick(law, draft_law, one, factor, whole, u, False, ONE_HOT, VOCAB, N)
    tl.store(accepted + row, kept.to(tl.int64))
    tl.store(token + row, chosen.to(tl.int64))


def accept_block_launches(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor, min_mass: float
) -> tuple[Tensor, Tensor, list[Launch]]:
    """See engine.kernels.accept_block. K >= 1. The sums over the vocabulary are one program each, the rest follows."""
    (n, k), vocab = drafts.shape, p.shape[-1]
    accepted = torch.empty(n, dtype=torch.int64, device=drafts.device)
    token = torch.empty_like(accepted)
    p, drafts, q = p.contiguous(), drafts.contiguous(), None if q is None else q.contiguous()
    constants, launches, left = {"VOCAB": vocab, "N": vocab_tile(vocab)}, [], None
    if q is not None:
        left = torch.empty(n, k, dtype=torch.float64, device=drafts.device)
        args = (p, q, drafts, counts, left, k)
        launches.append(Launch(kernel=block_left_kernel, grid=(n, k - 1), args=args, constants=constants))
    args = (p, q, drafts, u_accept.contiguous(), u_token.contiguous(), counts, left, accepted, token, k)
    constants = {"MIN_MASS": min_mass, "ONE_HOT": q is None, **constants}
    launches.append(Launch(kernel=accept_block_kernel, grid=(n,), args=args, constants=constants))
    return accepted, token, launches


def accept_block(
    p: Tensor, q: Tensor | None, drafts: Tensor, u_accept: Tensor, u_token: Tensor, counts: Tensor, min_mass: float
) -> tuple[Tensor, Tensor]:
    accepted, token, launches = accept_block_launches(p, q, drafts, u_accept, u_token, counts, min_mass)
    run_all(launches)
    return accepted, token


# Kernels are Triton's language, which only looks like Python: constants are numbers, tensors broadcast.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

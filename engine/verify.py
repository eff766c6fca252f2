"""Accept or reject a block: pure functions over tensors. Two exact rules, and one that only counts.

`accept_sampled` (draft by draft) and `accept_block` (the block as a whole) give the target's law; with greedy
decoding both are `accept_greedy`. `accept_forced` draws how many drafts are kept and gives no law at all.

A block is at most K drafts d_1..d_K of each of n sequences; `counts` says how many of them are real.
The target has looked at [anchor, d_1..d_K], so its row i gives the law of draft i + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.sampling import draw, one_hot

MIN_MASS = 1e-8  # below this the residual is rounding noise


class Decision(NamedTuple):
    """accepted int64 [n]: drafts kept of each block; token int64 [n]: the target's own, which follows them."""

    accepted: Tensor
    token: Tensor


def accept_greedy(targets: Tensor, drafts: Tensor, counts: Tensor | None = None) -> Decision:
    """Keep the longest prefix of drafts that equals the target's argmax.

    targets: int64 [n, K+1], the target's choices; drafts: int64 [n, K]; counts: int64 [n] or None where
    every block has K drafts. The output is what plain greedy decoding gives, token for token.
    """
    accepted = _prefix(drafts == targets[:, :-1], counts)
    return Decision(accepted, targets.gather(1, accepted[:, None]).squeeze(1))


def accept_sampled(
    p: Tensor,
    q: Tensor | None,
    drafts: Tensor,
    u_accept: Tensor,
    u_token: Tensor,
    counts: Tensor | None = None,
    *,
    residual: bool = True,
) -> Decision:
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

    Draft i is kept with chance min(1, p(d_i) / q(d_i)); the first that is not is replaced by a draw
    from norm(max(p - q, 0)); after a fully kept block the next token is drawn from p. So the output
    has the target's law, whatever the draft.

    p: [n, K+1, vocab], the target's processed law; q: [n, K, vocab], the draft's, or None where each
    draft was certain (one-hot); drafts: int64 [n, K]; u_accept: float64 [n, K] and u_token: float64
    [n, K+1] in [0, 1), indexed by place in the block; counts: int64 [n] or None. `residual` False
    draws the replacement from p, which is wrong: a test uses it to see the law test fail.
    """
    at = drafts.unsqueeze(-1)
    p_d = p[:, :-1].gather(-1, at).squeeze(-1)
    q_d = torch.ones_like(p_d) if q is None else q.gather(-1, at).squeeze(-1)
    accepted = _prefix(u_accept * q_d < p_d, counts)
    kept = p_d.new_ones(drafts.shape[0])
    return _finish(p, q, drafts, accepted, u_token, counts, kept, residual=residual)


def accept_block(
    p: Tensor,
    q: Tensor | None,
    drafts: Tensor,
    u_accept: Tensor,
    u_token: Tensor,
    counts: Tensor | None = None,
    *,
    residual: bool = True,
) -> Decision:
    """Block verification (Sun et al. 2024, "Block verification accelerates speculative decoding", algorithm 2).

    With w_0 = 1 and w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i)), the first i drafts are kept with chance w_i. Each i
    is tried by itself, the largest that holds counts, at chance s_i / (s_i + 1 - w_i) before the block's end and w_i
    at its end, where s_i = sum_v max(w_i p_{i+1}(v) - q_{i+1}(v), 0). After a part of a block the next token is drawn
    from norm(max(w p - q, 0)), after a whole one from p. The output has the target's law; the accepted length is on
    average at least that of `accept_sampled`.

    Arguments as in `accept_sampled`. A block may end (`counts`) wherever that was decided without looking at the
    draft that is left out: its last verified place then takes the rule of a block's end.
    """
    w, h = block_chances(p, q, drafts, counts)
    place = torch.arange(1, drafts.shape[1] + 1, device=p.device)
    keep = u_accept < h
    if counts is not None:
        keep = keep & (place <= counts[:, None])
    accepted = (keep * place).amax(1)
    kept = w.gather(1, accepted[:, None]).squeeze(1)
    return _finish(p, q, drafts, accepted, u_token, counts, kept.to(p.dtype), residual=residual)


def block_chances(p: Tensor, q: Tensor | None, drafts: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """w float64 [n, K+1], the chance that the first 0..K drafts are kept, and h float64 [n, K], that with which place
    i is tried in `accept_block`. Past a count they mean nothing."""
    k, at = drafts.shape[1], drafts.unsqueeze(-1)
    p_d = p[:, :-1].gather(-1, at).squeeze(-1)
    q_d = torch.ones_like(p_d) if q is None else q.gather(-1, at).squeeze(-1)
    ratio = (p_d.double() / q_d.double().clamp(min=1e-300)).unbind(1)
    chance = [torch.ones_like(ratio[0])]
    for r in ratio:
        chance.append((chance[-1] * r).clamp(max=1.0))
    w = torch.stack(chance, dim=1)  # [n, K+1]

    if q is None:
        left = w[:, :-1] * (1.0 - p_d.double())
    else:
        left = (w[:, :-1, None].to(p.dtype) * p[:, :-1] - q).clamp(min=0.0).sum(-1).double()
    inner, w_i = torch.cat((left[:, 1:], torch.zeros_like(left[:, :1])), dim=1), w[:, 1:]
    total = inner + 1.0 - w_i
    h = torch.where(total > 0.0, inner / total, 1.0)  # 0 / 0: p is q, and the draft is as good as the target
    place = torch.arange(1, k + 1, device=p.device)
    end = torch.full_like(drafts[:, 0], k) if counts is None else counts
    return w, torch.where(place == end[:, None], w_i, h)


def accept_forced(targets: Tensor, drafts: Tensor, u: Tensor, length: float, counts: Tensor | None = None) -> Decision:
    """Keep as many drafts as `forced_rates` says on average, whatever the target thinks of them.

    targets: int64 [n, K+1], the target's argmax; u: float64 [n] in [0, 1), one a step; length: accepted length
    asked for, 1..K+1. The drafts are the real ones and the target's argmax follows them, so the work is that of a
    real step and the text means nothing. A block with fewer drafts than asked for (`counts`) is kept whole.
    """
    whole, part = divmod(length - 1.0, 1.0)
    accepted = int(whole) + (u < part).long()
    most = torch.full_like(drafts[:, 0], drafts.shape[1]) if counts is None else counts
    accepted = torch.minimum(accepted, most)
    return Decision(accepted, targets.gather(1, accepted[:, None]).squeeze(1))


def forced_rates(length: float, k: int) -> tuple[float, ...]:
    """Share of steps that keep their first i drafts, i = 1..K, under forced acceptance.

    1 up to the whole part of length - 1, its fraction at the next place, then 0: of all laws of 0..K accepted drafts
    with this mean the one of least variance. The rates are unconditional and sum to length - 1.
    """
    if not 1.0 <= length <= k + 1:
        raise ValueError(f"accepted length {length} at K={k}")
    return tuple(min(max(length - 1.0 - i, 0.0), 1.0) for i in range(k))


def _finish(
    p: Tensor,
    q: Tensor | None,
    drafts: Tensor,
    accepted: Tensor,
    u_token: Tensor,
    counts: Tensor | None,
    kept: Tensor,
    *,
    residual: bool,
) -> Decision:
    """The target's token after `accepted` drafts: from p after a whole block, else from norm(max(kept * p - q, 0)).

    kept: [n], the chance that the accepted drafts were kept with; 1 where each draft is judged by itself.
    """
    rows = torch.arange(drafts.shape[0], device=drafts.device)
    law = p[rows, accepted]
    if residual and drafts.shape[1]:
        place = accepted.clamp(max=drafts.shape[1] - 1)
        q_row = one_hot(drafts[rows, place], p.shape[-1]) if q is None else q[rows, place]
        rejected = accepted < (drafts.shape[1] if counts is None else counts)
        left = (kept[:, None] * law - q_row).clamp(min=0.0)
        law = torch.where((rejected & (left.sum(-1) > MIN_MASS * kept)).unsqueeze(1), left, law)
    return Decision(accepted, draw(law, u_token[rows, accepted]))


def _prefix(keep: Tensor, counts: Tensor | None) -> Tensor:
    """Length of the leading run of True in each row of keep [n, K], at most counts [n]."""
    if counts is not None:
        keep = keep & (torch.arange(keep.shape[1], device=keep.device) < counts[:, None])
    return keep.long().cumprod(1).sum(1)

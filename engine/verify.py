"""Accept or reject a block: pure functions over tensors.

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
    n, rows = drafts.shape[0], torch.arange(drafts.shape[0], device=drafts.device)
    at = drafts.unsqueeze(-1)
    p_d = p[:, :-1].gather(-1, at).squeeze(-1)
    q_d = torch.ones_like(p_d) if q is None else q.gather(-1, at).squeeze(-1)
    accepted = _prefix(u_accept * q_d < p_d, counts)

    law = p[rows, accepted]
    if residual and drafts.shape[1]:
        place = accepted.clamp(max=drafts.shape[1] - 1)
        q_row = one_hot(drafts[rows, place], p.shape[-1]) if q is None else q[rows, place]
        rejected = accepted < (drafts.shape[1] if counts is None else counts)
        left = (law - q_row).clamp(min=0.0)
        law = torch.where((rejected & (left.sum(-1) > MIN_MASS)).view(n, 1), left, law)
    return Decision(accepted, draw(law, u_token[rows, accepted]))


def _prefix(keep: Tensor, counts: Tensor | None) -> Tensor:
    """Length of the leading run of True in each row of keep [n, K], at most counts [n]."""
    if counts is not None:
        keep = keep & (torch.arange(keep.shape[1], device=keep.device) < counts[:, None])
    return keep.long().cumprod(1).sum(1)

"""Train a DSpark draft on the target's own outputs: DeepSpec's loss over blocks at sampled anchors.

    L = 0.1 * CE + 0.9 * sum_v |p_draft - p_target| + 1.0 * BCE(confidence, 1 - TV)

each a mean over block positions weighted by exp(-k / 4), k from 0, over the contiguous part of a block
that lies in the answer. Blocks of several widths are trained, since a server drafts T = K slots.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from engine.draft.block import BlockDraft
from engine.layers import Index
from engine.model import Target
from engine.training.attend import CausalAttend
from engine.training.checkpoint import TrainState
from engine.training.loop import train
from engine.training.target import flat_positions
from engine.training.text import Rows, Stream, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    steps: int
    short: tuple[int, int] = (8, 256)  # rows, length
    long: tuple[int, int] = (3, 640)
    long_share: float = 0.25
    anchors: int = 192  # of one step, over all rows
    widths: tuple[int, ...] = (7, 7, 7, 5, 3, 4, 6)  # block widths, drawn per step
    muon_lr: float = 4e-3
    adam_lr: float = 2e-3
    warmup: float = 0.03
    hold: float = 0.40
    gamma: float = 4.0
    save_every: int = 200
    seed: int = 2000


@dataclass(frozen=True, slots=True)
class Anchors:
    """Chosen anchors of a step: row and position of each, both int64 [n]."""

    row: Tensor
    at: Tensor


def choose_anchors(rows: Rows, count: int, rng: random.Random) -> Anchors:
    """At most `count` positions whose token and next token both belong to an answer."""
    ok = rows.answer[:, :-1] & rows.answer[:, 1:]
    where = ok.nonzero().tolist()
    chosen = sorted(rng.sample(where, min(count, len(where))))
    both = torch.tensor(chosen, dtype=torch.int64)
    return Anchors(both[:, 0], both[:, 1])


class TrainBlockAttend:
    """Draft attention in training: a block sees its row's context before its anchor, and all of itself."""

    def __init__(self, anchors: Anchors, width: int, context: list[tuple[Tensor, Tensor]], rows: int) -> None:
        self.n, self.width, self.anchors = anchors.at.shape[0], width, anchors
        self.context = [(k.view(rows, -1, *k.shape[1:]), v.view(rows, -1, *v.shape[1:])) for k, v in context]
        length = self.context[0][0].shape[1]
        visible = torch.arange(length) < anchors.at[:, None]  # [n, length]
        self.mask = F.pad(visible, (0, width), value=True)[:, None, None]  # [n, 1, 1, length + width]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor:
        ck, cv = self.context[layer]
        q, k, v = (x.view(self.n, self.width, *x.shape[1:]) for x in (q, k, v))
        k = torch.cat((ck[self.anchors.row], k), dim=1)
        v = torch.cat((cv[self.anchors.row], v), dim=1)
        groups = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)


def draft_loss(
    draft: BlockDraft, target: Target, rows: Rows, anchors: Anchors, width: int, gamma: float
) -> tuple[Tensor, Tensor]:
    """The loss, and the mean acceptance 1 - TV at each position, [width]."""
    n_rows, length = rows.ids.shape
    positions = flat_positions(n_rows, length)
    with torch.no_grad():
        attend = CausalAttend(length, sparse=target.cfg.sparse, pick=True)
        hidden, features = target(rows.ids.flatten(), positions, attend, draft.cfg.target_layer_ids)
    context = draft.context_kv(features, positions)
    block_at = anchors.at[:, None] + torch.arange(width)  # positions of the block's slots
    inside = block_at + 1 < length
    label_at = (block_at + 1).clamp(max=length - 1)
    row = anchors.row[:, None]
    labels = rows.ids[row, label_at]
    keep = (inside & rows.answer[row, label_at]).long().cumprod(1).bool()
    with torch.no_grad():
        aligned = hidden.view(n_rows, length, -1)[row, label_at - 1]
        p = target.logits(aligned).softmax(-1)  # [n, width, vocab]

    previous = torch.cat((rows.ids[anchors.row, anchors.at][:, None], labels[:, :-1]), dim=1)
    ids = draft.block_ids(previous[:, 0], width)
    attend = TrainBlockAttend(anchors, width, context, n_rows)
    h = draft.hidden(ids.flatten(), block_at.flatten(), attend).view(*block_at.shape, -1)
    logits = draft.base_logits(h) + draft.markov_bias(previous)
    q = logits.softmax(-1)

    l1 = (q - p).abs().sum(-1)
    accept = (1.0 - 0.5 * l1.detach()).clamp(0, 1)
    loss = 0.1 * F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(l1) + 0.9 * l1
    if draft.confidence is not None:
        confidence = draft.confidence_logits(h, previous)
        loss = loss + F.binary_cross_entropy_with_logits(confidence, accept, reduction="none")
    weight = torch.exp(-torch.arange(width) / gamma) * keep
    by_position = (accept * keep).sum(0) / keep.sum(0).clamp(min=1)
    return (loss * weight).sum() / (weight.sum() + 1e-6), by_position


class DraftRows(Protocol):
    """How a draft's plan draws its rows."""

    @property
    def seed(self) -> int: ...
    @property
    def short(self) -> tuple[int, int]: ...
    @property
    def long(self) -> tuple[int, int]: ...
    @property
    def long_share(self) -> float: ...
    @property
    def anchors(self) -> int: ...


def rows_of_step(step: int, plan: DraftRows, stream: Stream, tok: Tokenizer) -> tuple[Rows, Anchors, random.Random]:
    """Rows and anchors of a step, and the generator to draw on from: a function of (seed, step)."""
    rng = random.Random(plan.seed * 1_000_003 + step)
    joined = rng.random() < plan.long_share
    n, length = plan.long if joined else plan.short
    rows = pack(stream(rng.getrandbits(62)), tok, rows=n, length=length, joined=joined, rng=rng)
    return rows, choose_anchors(rows, plan.anchors, rng), rng


def logged(loss: Tensor, accept: Tensor) -> dict[str, float]:
    """What is kept of a step: its loss, and mean acceptance at the first position and over all."""
    return {"loss": float(loss.detach()), "accept_first": float(accept[0]), "accept_mean": float(accept.mean())}


def train_draft(
    draft: BlockDraft,
    target: Target,
    plan: DraftPlan,
    stream: Stream,
    tok: Tokenizer,
    state: TrainState,
    say: Callable[[str], None],
) -> None:
    """Run (or continue) the schedule. `stream(seed)` gives (question, the target's own answer)."""

    def loss_of(step: int, factor: float) -> tuple[Tensor, dict[str, float]]:
        rows, anchors, rng = rows_of_step(step, plan, stream, tok)
        loss, accept = draft_loss(draft, target, rows, anchors, rng.choice(plan.widths), plan.gamma)
        return loss, logged(loss, accept)

    train(draft, plan, state, say, "draft", loss_of)

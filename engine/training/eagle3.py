"""Train an EAGLE3 draft on the target's own outputs, with EAGLE3's training-time test.

From sampled anchors the draft runs as it will when serving: the first pass reads the target's fused features,
each later one its own hidden state of the pass before, while tokens are those of the answer. Context K and V
depend on inputs alone, since the draft has one layer, and are made once for all pairs. Pass j counts

    0.8^j * (CE * cross entropy against the target's law + L1 * sum_v |p_draft - p_target|)

over the contiguous part of a chain that lies in the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.attention import ChainAttend
from engine.draft.eagle3_model import Eagle3Draft
from engine.model import Target
from engine.training.attend import CausalAttend
from engine.training.checkpoint import TrainState
from engine.training.draft import Anchors, logged, rows_of_step
from engine.training.loop import train
from engine.training.target import flat_positions
from engine.training.text import Rows, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Plan:
    steps: int
    short: tuple[int, int] = (8, 256)  # rows, length
    long: tuple[int, int] = (3, 640)
    long_share: float = 0.25
    anchors: int = 192  # of one step, over all rows
    ttt_length: int = 7  # passes
    step_loss_decay: float = 0.8
    ce: float = 0.1
    l1: float = 0.9
    muon_lr: float = 4e-3
    adam_lr: float = 2e-3
    warmup: float = 0.03
    hold: float = 0.40
    save_every: int = 200
    seed: int = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Shape:
    """What an EAGLE3 draft's config.json says, and how it is trained."""

    name: str = "draft-eagle3"
    intermediate: int = 384
    layer_ids: tuple[int, ...] = (1, 3, 5)  # pre-layer: the streams that enter these layers
    plan: Eagle3Plan = Eagle3Plan(steps=900)

    def config(self, target: dict[str, Any]) -> dict[str, Any]:
        """config.json in the published drafts' fields; `target` is that of the target."""
        same = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta",
                "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
                "torch_dtype")  # fmt: skip
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "intermediate_size": self.intermediate,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "draft_vocab_size": target["vocab_size"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.layer_ids), "use_aux_hidden_state": True},
            "capture_convention": "pre_layer",
            "norm_output": False,
            "fc_norm": False,
        } | {name: target[name] for name in same}


def chain_logits(draft: Eagle3Draft, features: Tensor, rows: Rows, anchors: Anchors, passes: int) -> Tensor:
    """Logits float32 [n, passes, vocab] of the passes from each anchor, with the row's own tokens as drafts.

    features: [rows * length, captured * target hidden]. Pass j reads the token at anchor + j; past the row's end
    the last token stands in, and what comes of it means nothing.
    """
    n_rows, length = rows.ids.shape
    fused = draft.fuse(features).view(n_rows, length, -1)
    before = torch.cat((fused[:, :1], fused[:, :-1]), dim=1)  # position 0 has no pair and is hidden below
    context = draft.context_kv(rows.ids.flatten(), before.flatten(0, 1), flat_positions(n_rows, length))
    keys, values = (x.view(n_rows, length, *x.shape[1:])[anchors.row] for x in context)
    places = torch.arange(length)
    chain = ChainAttend(keys, values, hidden=(places == 0) | (places >= anchors.at[:, None]))
    h, out = before[anchors.row, anchors.at], []
    for j in range(passes):
        at = (anchors.at + j).clamp(max=length - 1)
        normed, h = draft.step(rows.ids[anchors.row, at], h, at, chain)
        out.append(draft.logits(normed))
    return torch.stack(out, dim=1)


def eagle3_loss(
    draft: Eagle3Draft, target: Target, rows: Rows, anchors: Anchors, plan: Eagle3Plan
) -> tuple[Tensor, Tensor]:
    """The loss, and the mean acceptance 1 - TV of each pass, [ttt_length]."""
    n_rows, length = rows.ids.shape
    with torch.no_grad():
        attend = CausalAttend(length, sparse=target.cfg.sparse, pick=True)
        hidden, features = target(rows.ids.flatten(), flat_positions(n_rows, length), attend, draft.capture)
    log_q = chain_logits(draft, features, rows, anchors, plan.ttt_length).log_softmax(-1)

    at = anchors.at[:, None] + torch.arange(plan.ttt_length)
    inside, at, row = at + 1 < length, at.clamp(max=length - 2), anchors.row[:, None]
    keep = (inside & rows.answer[row, at + 1]).long().cumprod(1).bool()
    with torch.no_grad():
        p = target.logits(hidden.view(n_rows, length, -1)[row, at]).softmax(-1)  # [n, passes, vocab]
    l1 = (log_q.exp() - p).abs().sum(-1)
    accept = (1.0 - 0.5 * l1.detach()).clamp(0, 1)
    term = plan.l1 * l1 - plan.ce * (p * log_q).sum(-1)
    weight = plan.step_loss_decay ** torch.arange(plan.ttt_length) * keep
    by_pass = (accept * keep).sum(0) / keep.sum(0).clamp(min=1)
    return (term * weight).sum() / (weight.sum() + 1e-6), by_pass


def train_eagle3(
    draft: Eagle3Draft,
    target: Target,
    plan: Eagle3Plan,
    stream: Stream,
    tok: Tokenizer,
    state: TrainState,
    say: Callable[[str], None],
) -> None:
    """Run (or continue) the schedule. `stream(seed)` gives (question, the target's own answer)."""

    def loss_of(step: int, factor: float) -> tuple[Tensor, dict[str, float]]:
        rows, anchors, _ = rows_of_step(step, plan, stream, tok)
        loss, accept = eagle3_loss(draft, target, rows, anchors, plan)
        return loss, logged(loss, accept)

    train(draft, plan, state, say, "eagle3", loss_of)

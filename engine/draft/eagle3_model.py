"""The EAGLE3 draft model: one Llama layer that reads a token beside the hidden state before it.

The pair of position p is the embedding of token p with a hidden state of position p - 1: the target's
captured layers, fused by `fc`, as far as the target has run, and from there on the draft's own output.
From it comes the law of token p + 1. Both halves are normed and joined into a row of 2 * hidden for q, k
and v; the residual stream goes on from the hidden half alone. Structure and names after the published
checkpoints (ATOM and vLLM read the same ones).

A pair is turned by RoPE at p, as in ATOM; DeepSpec uses p - 1. With all pairs moved alike that is the
same model, since attention sees differences of positions only, so it is no setting here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.eagle3_config import Eagle3Config
from engine.layers import MLP, Attend, Attention, RMSNorm, Rope


class PairAttention(Attention):
    """Projections of rows [token | hidden]."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__(cfg)
        self.qkv = nn.Linear(2 * cfg.hidden_size, self.qkv.out_features, bias=False)


class PairLayer(nn.Module):
    """The decoder layer: attention over pairs, then a gated MLP."""

    def __init__(self, cfg: Eagle3Config) -> None:
        super().__init__()
        m = cfg.model
        self.norm_before_residual = cfg.norm_before_residual
        self.input_norm, self.hidden_norm = RMSNorm(m.hidden_size, m), RMSNorm(m.hidden_size, m)
        self.post_norm = RMSNorm(m.hidden_size, m)
        self.attn, self.mlp = PairAttention(m), MLP(m, m.intermediate_size)

    def join(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """[rows, 2 * hidden]: what q, k and v are made of."""
        return torch.cat((self.input_norm(embedded), self.hidden_norm(hidden)), dim=-1)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rope: Rope, table: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        pair = self.join(embedded, hidden)
        x = pair[:, embedded.shape[-1] :] if self.norm_before_residual else hidden
        x = x + self.attn.o(attend(0, *self.attn.make_qkv(pair, rope, table)))
        return x + self.mlp(self.post_norm(x))


class Eagle3Draft(nn.Module):
    """Weights of an EAGLE3 draft. `embed` is the target's unless the checkpoint has its own; the head is its own.

    capture: the target's layers that `fuse` joins, post-layer ids. d2t: int64 [draft vocabulary], the target's
    id of each row of the head; None where the two vocabularies are one.
    """

    d2t: Tensor | None
    stored: dict[str, str]  # checkpoint matrices that were stored quantised -> format

    def __init__(self, cfg: Eagle3Config, embed: nn.Embedding, capture: tuple[int, ...]) -> None:
        super().__init__()
        m = cfg.model
        self.cfg, self.capture = cfg, capture
        self.shared = (embed,)  # in a tuple, so that it is not this module's parameter
        self.fc = nn.Linear(cfg.captured * cfg.target_hidden_size, m.hidden_size, bias=False)
        norms = (RMSNorm(cfg.target_hidden_size, m) for _ in range(cfg.captured if cfg.fc_norm else 0))
        self.fc_norm = nn.ModuleList(norms)
        self.midlayer = PairLayer(cfg)
        self.norm = RMSNorm(m.hidden_size, m)
        self.head = nn.Linear(m.hidden_size, cfg.draft_vocab_size, bias=False)
        self.rope = Rope(m)
        self.register_buffer("d2t", None, persistent=False)

    def fuse(self, features: Tensor) -> Tensor:
        """[rows, hidden] of features [rows, captured * target hidden]."""
        if self.cfg.fc_norm:
            chunks = features.chunk(self.cfg.captured, dim=-1)
            features = torch.cat([norm(c) for norm, c in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        return self.fc(features)

    def context_kv(self, ids: Tensor, before: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """K and V, each [rows, kv_heads, head_dim], of pairs from true features: they depend on inputs alone.

        ids, positions: int64 [rows], tokens and their places; before: [rows, hidden], fused, of the places before.
        """
        pair = self.midlayer.join(self.shared[0](ids), before)
        return self.midlayer.attn.make_kv(pair, self.rope, self.rope.table(positions))

    def step(self, ids: Tensor, before: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """One pass: the normed hidden for `logits`, and what the next pass takes as its `before`."""
        table = self.rope.table(positions)
        x = self.midlayer(self.shared[0](ids), before, self.rope, table, attend)
        normed = self.norm(x)
        return normed, normed if self.cfg.norm_output else x

    def logits(self, normed: Tensor) -> Tensor:
        """float32 [rows, vocab] over the target's vocabulary; -inf for a token that the draft does not have."""
        found = self.head(normed).float()
        if self.d2t is None:
            return found
        out = found.new_full((*found.shape[:-1], self.cfg.model.vocab_size), -torch.inf)
        return out.index_copy(-1, self.d2t, found)

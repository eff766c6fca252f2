"""The DSpark draft model: a block of tokens from one anchor and the target's captured features.

Structure after DeepSpec's published code: the features of committed tokens pass through `fc` and
`hidden_norm` once, and every draft layer makes its context K and V from that one tensor. The block
[anchor, mask, mask, ...] sits at the anchor's position onwards; row i predicts the token after
position i, its rows see all context before the anchor and all of the block. A Markov head adds a
bias that depends on the previous token; a confidence head says how likely each draft is to be kept.

With e = W1[previous] and h the slot's hidden, the Markov head's bias is W2 times

    vanilla  e
    gated    sigmoid(Wg [h; e] + b) * e
    rnn      tanh(o), where [g; c; o] = Wj [s; e; h] + b and s becomes sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.config import DraftConfig
from engine.layers import Attend, RMSNorm, Rope, dense_layer


class DraftBlock(NamedTuple):
    """tokens int64 [n, T]; probs float32 [n, T, vocab] or None when greedy; confidence [n, T] or None."""

    tokens: Tensor
    probs: Tensor | None
    confidence: Tensor | None


class BlockDraft(nn.Module):
    """Weights of a DSpark draft. `embed` and `head` are the target's unless the checkpoint has its own."""

    def __init__(self, cfg: DraftConfig, embed: nn.Embedding, head: nn.Linear) -> None:
        super().__init__()
        m = cfg.model
        self.cfg = cfg
        self.shared = (embed, head)  # in a tuple, so that they are not this module's parameters
        self.fc = nn.Linear(len(cfg.target_layer_ids) * m.hidden_size, m.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(m.hidden_size, m)
        self._layers = tuple(dense_layer(m) for _ in range(m.num_layers))
        self.layers = nn.ModuleList(self._layers)
        self.norm = RMSNorm(m.hidden_size, m)
        rank = cfg.markov_rank
        if rank:
            self.markov_in = nn.Embedding(m.vocab_size, rank)
            self.markov_out = nn.Linear(rank, m.vocab_size, bias=False)
        if rank and cfg.markov_head != "vanilla":
            inputs, outputs = (1, 1) if cfg.markov_head == "gated" else (2, 3)
            self.markov_mix = nn.Linear(m.hidden_size + inputs * rank, outputs * rank)
        seen = m.hidden_size + (rank if cfg.confidence_with_markov else 0)
        self.confidence = nn.Linear(seen, 1) if cfg.confidence else None
        self.rope = Rope(m)
        self.stored: dict[str, str] = {}  # linear layer of the checkpoint -> format, where it was quantised

    def context_kv(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """K and V, each [rows, kv_heads, head_dim], of every draft layer for committed tokens.

        features: [rows, m * hidden] captured from the target; positions: int64 [rows].
        """
        ctx = self.hidden_norm(self.fc(features))
        table = self.rope.table(positions)
        return [layer.attn.make_kv(ctx, self.rope, table) for layer in self._layers]

    def block_ids(self, anchors: Tensor, width: int) -> Tensor:
        """[n, width] input ids of a block: the anchor, then masks. anchors: int64 [n]."""
        ids = anchors.new_full((anchors.shape[0], width), self.cfg.mask_token_id)
        ids[:, 0] = anchors
        return ids

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Post-norm hidden [rows, hidden] of block rows; ids, positions: int64 [rows]."""
        x = self.shared[0](ids)
        table = self.rope.table(positions)
        for i, layer in enumerate(self._layers):
            x = layer(x, i, self.rope, table, attend)
        return self.norm(x)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., vocab] before the Markov bias."""
        return self.shared[1](hidden).float()

    def markov_bias(self, previous: Tensor) -> Tensor:
        """float32 [..., vocab] that a vanilla head adds to the logits after token `previous`."""
        return self.markov_out(self.markov_in(previous)).float()

    def markov_step(
        self, logits: Tensor, hidden: Tensor, previous: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [n, vocab] of one slot with the head's bias, and the state for the slot after it.

        logits, hidden: of the slot, [n, vocab] and [n, hidden]; previous: int64 [n]; state: None at the first slot.
        """
        if not self.cfg.markov_rank:
            return logits, None
        latent, state = self.markov_latent(hidden, previous, state)
        return logits + self.markov_out(latent).float(), state

    def markov_latent(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What `markov_out` makes the bias of one slot of, [n, rank], and the state; arguments as in `markov_step`."""
        e = self.markov_in(previous)
        if self.cfg.markov_head == "vanilla":
            return e, None
        if self.cfg.markov_head == "gated":
            return torch.sigmoid(self.markov_mix(torch.cat((hidden, e), dim=-1))) * e, None
        state = torch.zeros_like(e) if state is None else state
        gate, candidate, out = self.markov_mix(torch.cat((state, e, hidden), dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return out.tanh(), gate * state + (1 - gate) * candidate.tanh()

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """[...]: logit of the chance that a draft is kept, given that all before it were."""
        if self.confidence is None:
            raise ValueError("this draft has no confidence head")
        seen = torch.cat((hidden, self.markov_in(previous)), dim=-1) if self.cfg.confidence_with_markov else hidden
        return self.confidence(seen).squeeze(-1).float()

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """[n, width]: the chances themselves, each position at its own temperature.

        hidden: [n, width, hidden]; previous: int64 [n, width]. Positions past the configured temperatures
        take the last one.
        """
        logits = self.confidence_logits(hidden, previous)
        given = self.cfg.confidence_temperatures
        if given:
            width = logits.shape[1]
            logits = logits / logits.new_tensor((*given, *[given[-1]] * width)[:width])
        return logits.sigmoid()

"""The target model: token ids to final hidden states, and hidden states to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.indexer import Indexer
from engine.layers import MLP, Attend, DecoderLayer, RMSNorm, Rope
from engine.moe import MoE


def target_layer(cfg: ModelConfig, index: int) -> DecoderLayer:
    """Layer `index` of a target: its two lists say, apart from each other, which attention and which MLP."""
    mlp = MoE(cfg) if cfg.moe and cfg.moe.layers[index] else MLP(cfg, cfg.intermediate_size)
    return DecoderLayer(cfg, mlp, Indexer(cfg) if cfg.sparse and cfg.sparse.computes[index] else None)


class Target(nn.Module):
    """A decoder-only transformer of one of checkpoint_config's families."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(target_layer(cfg, i) for i in range(cfg.num_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg)
        self.head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        if cfg.tie_embeddings:
            self.head.weight = self.embed.weight
        self.rope = Rope(cfg)
        self.stored: dict[str, str] = {}  # linear layer of the checkpoint -> format, where it was quantised

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Attend, capture: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Final normed hidden [rows, hidden] and captured features [rows, len(capture) * hidden].

        ids, positions: int64 [rows]. Id i of `capture` is the raw residual stream after layer i (never
        the normed tensor, also for the last layer); -1 is the embedding output. Features are joined in
        the order of `capture`.
        """
        x = self.embed(ids)
        table = self.rope.table(positions)
        kept = {-1: x} if -1 in capture else {}
        for i, layer in enumerate(self.layers):
            x = layer(x, i, self.rope, table, attend)
            if i in capture:
                kept[i] = x
        features = torch.cat([kept[i] for i in capture], dim=-1) if capture else x.new_empty(x.shape[0], 0)
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [rows, vocab] of normed hidden states [rows, hidden]."""
        return self.head(hidden).float()

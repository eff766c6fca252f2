"""Decoder layers shared by targets and drafts: norm, RoPE, attention projections, MLP.

Attention itself is not here. A layer makes q, k and v and calls `attend`, which the caller supplies:
the runner reads and writes KV pages, the trainer uses plain causal attention. So one set of layers
serves training, prefill, decode, verification and drafting.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import ModelConfig, RopeScaling
from engine.quant.linear import linear_rows


class Index(NamedTuple):
    """What picks the blocks that a row of a block-sparse layer sees, after norm and RoPE."""

    q: Tensor  # [rows, index_heads, index_dim]
    k: Tensor  # [rows, index_dim]


class Attend(Protocol):
    """Attention of one layer over whatever context the caller keeps.

    q: [rows, heads, head_dim]; k, v: [rows, kv_heads, head_dim], after norm and RoPE; index: of layers that
    pick their blocks. Returns [rows, heads * head_dim].
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, index: Index | None = None) -> Tensor: ...


class RMSNorm(nn.Module):
    """y = x * rsqrt(mean(x^2) + eps) * scale, in float32; scale is w, or 1 + w in Gemma's form."""

    def __init__(self, size: int, cfg: ModelConfig) -> None:
        super().__init__()
        self.gemma, self.eps = cfg.gemma_norm, cfg.eps
        self.weight = nn.Parameter(torch.zeros(size) if self.gemma else torch.ones(size))

    def scale(self) -> Tensor:
        w = self.weight.float()
        return w + 1.0 if self.gemma else w

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.scale(), self.eps).to(x.dtype)


class Rope(nn.Module):
    """Rotary positions on the first `rotary_dim` dims of each head, in NeoX halves."""

    cos: Tensor
    sin: Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        half = cfg.rotary_dim // 2
        # on the CPU also where the modules around are made without memory, which this must not be
        steps, places = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (half, cfg.max_positions))
        angle = torch.outer(places, scaled(cfg.rope_theta ** (-steps / half), cfg.rope_scaling))
        self.rotary_dim = cfg.rotary_dim
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # [max_positions, half]
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of these positions, each [rows, 1, half], to share between layers."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:  # x: [rows, heads, head_dim]
        cos, sin = table
        half = self.rotary_dim // 2
        a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
        a32, b32 = a.float(), b.float()
        turned = (a32 * cos - b32 * sin, b32 * cos + a32 * sin)
        return torch.cat((turned[0].to(x.dtype), turned[1].to(x.dtype), rest), dim=-1)


def scaled(freq: Tensor, cfg: RopeScaling | None) -> Tensor:
    """Frequencies, radians a position, after Llama 3's scaling: long wavelengths by `factor`, short ones not at all.

    Between the two bounds the frequency is a mean of both, weighted by how often it turns in the original context.
    """
    if cfg is None:
        return freq
    turns = cfg.original_positions * freq / (2 * torch.pi)  # in the original context
    keep = ((turns - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)).clamp(0, 1)
    return freq * keep + freq / cfg.factor * (1 - keep)


class Attention(nn.Module):
    """Projections of one attention layer, with per-head QK norm before RoPE where the family has it."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        rows, bias = (self.heads + 2 * self.kv_heads) * self.head_dim, cfg.attention_bias
        self.qkv = nn.Linear(cfg.hidden_size, rows, bias=bias in ("qkv", "qkvo"))
        self.o = nn.Linear(self.heads * self.head_dim, cfg.hidden_size, bias=bias == "qkvo")
        self.q_norm = RMSNorm(self.head_dim, cfg) if cfg.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, cfg) if cfg.qk_norm else None

    def make_qkv(self, x: Tensor, rope: Rope, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim] of x [rows, hidden]."""
        y = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        qk, v = y.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = F.rms_norm(qk.float(), (self.head_dim,), None, self.q_norm.eps)
            scales = (self.q_norm.scale().expand(self.heads, -1), self.k_norm.scale().expand(self.kv_heads, -1))
            qk = (qk * torch.cat(scales)).to(x.dtype)
        q, k = rope(qk, table).split((self.heads, self.kv_heads), dim=1)
        return q, k, v

    def make_kv(self, x: Tensor, rope: Rope, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """k and v alone, for rows that are only attended to."""
        y = linear_rows(self.qkv, x, slice(self.heads * self.head_dim, None))
        k, v = y.view(x.shape[0], 2, self.kv_heads, self.head_dim).unbind(1)
        return rope(k if self.k_norm is None else self.k_norm(k), table), v


def gated(gate_up: Tensor, cfg: ModelConfig) -> Tensor:
    """The gate's product [rows, size] of [gate | up] [rows, 2 * size]: SiLU, or SwiGLU-OAI with its clamps."""
    gate, up = gate_up.chunk(2, dim=-1)
    if cfg.activation == "swigluoai":
        gate, up = gate.clamp(max=cfg.swiglu_limit), up.clamp(-cfg.swiglu_limit, cfg.swiglu_limit)
        return gate * torch.sigmoid(cfg.swiglu_alpha * gate) * (up + 1.0)
    return F.silu(gate) * up


class MLP(nn.Module):
    """Gated MLP, gate and up packed in split halves."""

    def __init__(self, cfg: ModelConfig, size: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.gate_up = nn.Linear(cfg.hidden_size, 2 * size, bias=False)
        self.down = nn.Linear(size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gated(self.gate_up(x), self.cfg))


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream.

    mlp: the feed-forward of this layer, experts or dense. indexer: makes a layer's Index of its normed
    rows and their RoPE; None where the layer picks no blocks.
    """

    def __init__(self, cfg: ModelConfig, mlp: nn.Module, indexer: nn.Module | None = None) -> None:
        super().__init__()
        self.input_norm, self.post_norm = RMSNorm(cfg.hidden_size, cfg), RMSNorm(cfg.hidden_size, cfg)
        self.attn, self.mlp, self.indexer = Attention(cfg), mlp, indexer

    def forward(self, x: Tensor, index: int, rope: Rope, table: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        normed = self.input_norm(x)
        q, k, v = self.attn.make_qkv(normed, rope, table)
        # In training the index learns from its own loss and leaves the trunk alone.
        picks = None if self.indexer is None else self.indexer(normed.detach(), rope, table)
        x = x + self.attn.o(attend(index, q, k, v, picks))
        return x + self.mlp(self.post_norm(x))


def dense_layer(cfg: ModelConfig) -> DecoderLayer:
    """A layer that attends to all keys, with a dense MLP: every layer of a draft, some of a target."""
    return DecoderLayer(cfg, MLP(cfg, cfg.intermediate_size))


def packed_rows(module: nn.Module, name: str) -> list[int]:
    """Row counts of the matrices that the parameter `name` of `module` packs, one after another.

    q, k, v of an attention; the index queries and key; gate and up; for stacked experts those of each
    expert in turn, of the parameter seen as [experts * rows, columns].
    """
    path, leaf = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[::2]
    owner, p = module.get_submodule(path), module.get_parameter(name)
    if isinstance(owner, Attention) and leaf == "qkv":
        return [owner.heads * owner.head_dim, *[owner.kv_heads * owner.head_dim] * 2]
    if leaf == "qk":
        return [owner.heads * owner.dim, owner.dim]  # pyright: ignore[reportReturnType, reportOperatorIssue]
    halves = 2 if leaf == "gate_up" else 1
    experts = p.shape[0] if p.ndim == 3 else 1
    return [p.shape[-2 if p.ndim > 1 else 0] // halves] * halves * experts

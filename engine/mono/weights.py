"""A target's weights as Mono reads them: norms folded into the matrices that follow, PTPC weights decoded."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.indexer import Indexer
from engine.layers import MLP, DecoderLayer, RMSNorm
from engine.moe import MoE
from engine.quant.fp8 import FP8, FP8_MAX
from engine.quant.linear import QuantLinear


class Packed:
    """x [rows, in] -> [rows, out] of a linear layer, with `scale` [in] (a norm's) put on x first.

    A plain weight holds the scale already. PTPC rounds the scaled x to fp8, so there it stays outside, and the
    weight is decoded with its own scales. Other formats are asked as they are.
    """

    def __init__(self, linear: nn.Module, scale: Tensor | None = None) -> None:
        self.ptpc = isinstance(linear, QuantLinear) and linear.is_ptpc and linear.options.fp8 == FP8
        self.module = linear if isinstance(linear, QuantLinear) and not self.ptpc else None
        self.scale = scale if isinstance(linear, QuantLinear) else None
        if self.module is not None:
            return
        if isinstance(linear, QuantLinear):
            weight, bias = linear.dequantised(), linear.bias
        else:
            weight, bias = cast(Tensor, linear.weight).float(), cast("Tensor | None", linear.bias)
            weight = weight if scale is None else weight * scale
        self.weight, self.bias = weight.detach().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        if self.scale is not None:
            x = x * self.scale
        if self.module is not None:
            return self.module(x)
        if not self.ptpc:
            return F.linear(x, self.weight, self.bias)
        top = x.abs().amax(-1, keepdim=True).div_(FP8_MAX)
        top = torch.where(top == 0, 1.0, top)
        y = F.linear((x / top).to(FP8).float(), self.weight).mul_(top)
        return y if self.bias is None else y.add_(self.bias)


class Experts:
    """MoE.forward, with the norm of the router's input in its matrix."""

    def __init__(self, moe: MoE, scale: Tensor) -> None:
        self.moe, self.scale = moe, scale
        self.gate = (moe.gate.weight.float() * scale).contiguous()
        self.shared = None if moe.shared is None else Dense(moe.shared, scale)

    def __call__(self, x: Tensor) -> Tensor:
        scores = F.linear(x, self.gate).sigmoid_()
        order = (scores + self.moe.correction_bias).sort(dim=-1, descending=True, stable=True).indices
        ids = order[:, : self.moe.chosen]
        weights = scores.gather(1, ids)
        weights = weights.div_(weights.sum(-1, keepdim=True))
        y = self.moe.routed(x * self.scale, ids, weights)
        return y if self.shared is None else y.add_(self.shared(x))


class Dense:
    """MLP.forward; `scale` is that of the norm before it."""

    def __init__(self, mlp: MLP, scale: Tensor) -> None:
        self.cfg, self.gate_up, self.down = mlp.cfg, Packed(mlp.gate_up, scale), Packed(mlp.down)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(_gate(self.gate_up(x), self.cfg))


class Layer:
    """One decoder layer's packed weights."""

    def __init__(self, layer: DecoderLayer) -> None:
        attn = layer.attn
        before, after = norm_scale(layer.input_norm), norm_scale(layer.post_norm)
        self.qkv, self.o = Packed(attn.qkv, before), Packed(attn.o)
        self.heads, self.kv_heads, self.head_dim = attn.heads, attn.kv_heads, attn.head_dim
        if attn.q_norm is None or attn.k_norm is None:
            raise ValueError("Mono norms q and k by head")
        q = norm_scale(attn.q_norm) * attn.head_dim**-0.5  # the softmax scale rides on the queries
        self.qk_scale = torch.cat((q.expand(attn.heads, -1), norm_scale(attn.k_norm).expand(attn.kv_heads, -1)))
        self.index: Packed | None = None
        if isinstance(layer.indexer, Indexer):
            made = layer.indexer
            self.index = Packed(made.qk, before)
            q_scale, k_scale = norm_scale(made.q_norm), norm_scale(made.k_norm)
            self.index_scale = torch.cat((q_scale.expand(made.heads, -1), k_scale[None]))
        self.mlp = Experts(layer.mlp, after) if isinstance(layer.mlp, MoE) else Dense(cast(MLP, layer.mlp), after)


def _gate(gate_up: Tensor, cfg: ModelConfig) -> Tensor:
    """layers.gated, in place where it may be."""
    gate, up = gate_up.chunk(2, dim=-1)
    if cfg.activation != "swigluoai":
        return F.silu(gate).mul_(up)
    gate = gate.clamp_(max=cfg.swiglu_limit)
    gate = gate * torch.sigmoid(gate * cfg.swiglu_alpha)
    return torch.addcmul(gate, gate, up.clamp_(-cfg.swiglu_limit, cfg.swiglu_limit))


def norm_scale(norm: RMSNorm) -> Tensor:
    return norm.scale().detach()

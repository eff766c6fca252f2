"""MiniMax-M3 out of a checkpoint's own tensors, in float64 and without any of the engine's modules.

Written from the published layer formulas, token by token where that is plainest, so that it shares no reshaping,
packing or masking with what it checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + w)


def rope(x: Tensor, cfg: dict[str, Any]) -> Tensor:
    """x [tokens, heads, dim]; the first half of each head turns, its halves paired."""
    size = x.shape[-1] // 2
    pairs = size // 2
    out = x.clone()
    for t in range(x.shape[0]):
        for i in range(pairs):
            angle = torch.tensor(t * cfg["rope_theta"] ** (-2 * i / size), dtype=torch.float64)
            a, b = x[t, :, i], x[t, :, i + pairs]
            out[t, :, i], out[t, :, i + pairs] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    g, u = (x @ gate.T).clamp(max=7.0), (x @ up.T).clamp(-7.0, 7.0)
    return (g * torch.sigmoid(1.702 * g) * (u + 1)) @ down.T


def seen(t: int, head: int, iq: Tensor, ik: Tensor, sparse: dict[str, Any]) -> list[int]:
    """Keys that query t of one KV head sees: those of its best blocks, its own among them."""
    size = sparse["sparse_block_size"]
    last = t // size
    best = [float((ik[b * size : min((b + 1) * size, t + 1)] @ iq[t, head]).max()) for b in range(last + 1)]
    best[last] = float("inf")
    chosen = sorted(range(last + 1), key=lambda b: (-best[b], b))[: sparse["sparse_topk_blocks"]]
    return [s for s in range(t + 1) if s // size in chosen]


def attention(x: Tensor, w: Weights, cfg: dict[str, Any], is_sparse: bool) -> Tensor:
    n, dim, heads, kv_heads = x.shape[0], cfg["head_dim"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    q, k, v = ((x @ w[f"self_attn.{p}_proj.weight"].T).view(n, -1, dim) for p in "qkv")
    q, k = (rope(norm(y, w[f"self_attn.{p}_norm.weight"]), cfg) for y, p in ((q, "q"), (k, "k")))
    sparse: dict[str, Any] = cfg["sparse_attention_config"]
    iq = ik = x
    if is_sparse:
        d = sparse["sparse_index_dim"]
        iq, ik = ((x @ w[f"self_attn.index_{p}_proj.weight"].T).view(n, -1, d) for p in "qk")
        iq, ik = (rope(norm(y, w[f"self_attn.index_{p}_norm.weight"]), cfg) for y, p in ((iq, "q"), (ik, "k")))
        ik = ik[:, 0]
    out = torch.zeros(n, heads, dim, dtype=torch.float64)
    for t in range(n):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            keys = seen(t, kv, iq, ik, sparse) if is_sparse else list(range(t + 1))
            p = (k[keys, kv] @ q[t, h] * dim**-0.5).softmax(0)
            out[t, h] = p @ v[keys, kv]
    return out.view(n, -1) @ w["self_attn.o_proj.weight"].T


def experts(x: Tensor, w: Weights, cfg: dict[str, Any]) -> Tensor:
    m, out = "block_sparse_moe.", []
    for row in x:
        s = torch.sigmoid(w[f"{m}gate.weight"] @ row)
        biased = (s + w[f"{m}e_score_correction_bias"]).tolist()
        ids = sorted(range(len(biased)), key=lambda e: (-biased[e], e))[: cfg["num_experts_per_tok"]]
        y = swiglu(row, *(w[f"{m}shared_experts.{p}_proj.weight"] for p in ("gate", "up", "down")))
        for e in ids:
            parts = (w[f"{m}experts.{e}.{p}.weight"] for p in ("w1", "w3", "w2"))
            y = y + cfg["routed_scaling_factor"] * s[e] / s[ids].sum() * swiglu(row, *parts)
        out.append(y)
    return torch.stack(out)


def logits(ids: list[int], weights: Weights, cfg: dict[str, Any]) -> Tensor:
    """float64 [tokens, vocab]. weights: by the names of a text-only checkpoint."""
    all64 = {n: t.double() for n, t in weights.items()}
    x = all64["model.embed_tokens.weight"][ids]
    for i in range(cfg["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        w = {n.removeprefix(prefix): t for n, t in all64.items() if n.startswith(prefix)}
        is_sparse = bool(cfg["sparse_attention_config"]["sparse_attention_freq"][i])
        x = x + attention(norm(x, w["input_layernorm.weight"]), w, cfg, is_sparse)
        y = norm(x, w["post_attention_layernorm.weight"])
        if cfg["moe_layer_freq"][i]:
            x = x + experts(y, w, cfg)
        else:
            x = x + swiglu(y, *(w[f"mlp.{p}_proj.weight"] for p in ("gate", "up", "down")))
    return norm(x, all64["model.norm.weight"]) @ all64["lm_head.weight"].T

"""The target's decode and verify step once more: straight-line code over packed weights, at most 16 rows.

The same mathematics as engine/model.py with PagedAttend, in float32, with its own order of sums: norm weights lie
in the matrices that follow, a head's scale is put on scores and probabilities in place of keys and values, and each
layer's pages are read once. What it stores in the pages is what the ordinary path stores, byte for byte where the
numbers before are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch
from engine.config import SparseConfig
from engine.errors import EngineError
from engine.indexer import block_scores, choose_blocks
from engine.kv_cache import KVCache
from engine.layers import DecoderLayer
from engine.model import Target
from engine.mono.weights import Dense, Layer, norm_scale
from engine.quant.fp8 import FP8, FP8_MAX, cast_fp8, decode_fp8, spread_fp8

CHECK_LIMIT = 0.1  # see compare
FP8_SPREAD = 256.0  # what spread_fp8 leaves out of e4m3fn


class _Pages(NamedTuple):
    """Pages of a layer as stored, and the same seen slot by slot."""

    codes: Tensor  # uint8 [pages + 1, page_size, 2, kv_heads, head_dim]
    scales: Tensor  # float32 [pages + 1, page_size, 2, kv_heads, 1]
    code_slots: Tensor  # uint8 [slots, 2, kv_heads, head_dim]
    scale_slots: Tensor
    index: Tensor | None  # uint8 [pages + 1, page_size, index_dim]


@dataclass(slots=True)
class _Step:
    """What all layers of one step share."""

    n: int
    width: int
    slots: Tensor  # int64 [rows], the spare slot for padding
    pages: Tensor  # int64 [n * pages]
    length: int  # keys that are read of each sequence
    positions: Tensor  # int64 [n, width]
    hidden: Tensor | None  # bool [n, width, length]: keys a row does not see; None where it sees all
    cos: Tensor  # [rows, 1, head_dim]: a head times cos plus its turned self times sin is RoPE
    sin: Tensor
    bias: dict[int, Tensor] = field(default_factory=dict)  # group -> additive mask of dense layers
    chosen: Tensor | None = None  # the same of the last layer that picked blocks


class MonoPath:
    """The target over the pages of `cache`. Holds copies of its weights in the order in which they are read.

    Weights are taken as they are now. The target computes in float32 and its layers' caches are fp8 (see
    router.unfit); nothing here asks again.
    """

    def __init__(self, target: Target, cache: KVCache) -> None:
        self.target, self.cache, self.cfg = target, cache, target.cfg
        self.layers = [Layer(cast(DecoderLayer, layer)) for layer in target.layers]
        self.last_scale = norm_scale(target.norm)
        self.pages = [_pages(cache, i) for i in range(target.cfg.num_layers)]
        half, size = target.cfg.rotary_dim // 2, target.cfg.head_dim
        self.turn = _turn(half, size, cache.device)
        sparse = target.cfg.sparse
        self.index_turn = _turn(half, sparse.index_dim, cache.device) if sparse else self.turn

    @property
    def nbytes(self) -> int:
        """Bytes of the packed copies."""
        found: dict[int, int] = {}
        for layer in self.layers:
            parts = [layer.qkv, layer.o, layer.index]
            dense = layer.mlp if isinstance(layer.mlp, Dense) else layer.mlp.shared
            parts += [] if dense is None else [dense.gate_up, dense.down]
            for p in parts:
                if p is not None and p.module is None:
                    found[p.weight.data_ptr()] = p.weight.nbytes
        return sum(found.values())

    def forward(self, batch: Batch, capture: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Final normed hidden [rows, hidden] and captured features, as Target.forward gives them; stores K and V."""
        step = self._step(batch)
        x = self.target.embed.weight.index_select(0, batch.ids.flatten()).float()
        kept = {-1: x} if -1 in capture else {}
        for i, (layer, pages) in enumerate(zip(self.layers, self.pages, strict=True)):
            normed = _normed(x, self.cfg.eps)
            x = x + layer.o(self._attend(i, layer, pages, normed, step))
            x = x.add_(layer.mlp(_normed(x, self.cfg.eps)))
            if i in capture:
                kept[i] = x
        features = torch.cat([kept[i] for i in capture], dim=-1) if capture else x.new_empty(x.shape[0], 0)
        return _normed(x, self.cfg.eps).mul_(self.last_scale), features

    def _step(self, batch: Batch) -> _Step:
        n, width = batch.positions.shape
        length = int(batch.lengths.max())
        count = -(-length // self.cache.page_size)
        slots = batch.slots.flatten()
        slots = torch.where(slots < 0, self.cache.spare_slot, slots)
        hidden = None
        if n > 1 or width > 1:
            places = torch.arange(length, device=slots.device)
            hidden = places > batch.positions.clamp(min=0).unsqueeze(-1)  # a padding row sees the first key alone
        rope, at = self.target.rope, batch.positions.flatten()
        cos, sin = rope.cos[at].unsqueeze(1), rope.sin[at].unsqueeze(1)
        rest = self.cfg.head_dim - 2 * cos.shape[-1]
        return _Step(
            n=n, width=width, slots=slots, pages=batch.page_table[:, :count].flatten(), length=length,
            positions=batch.positions, hidden=hidden, cos=F.pad(torch.cat((cos, cos), -1), (0, rest), value=1.0),
            sin=F.pad(torch.cat((-sin, sin), -1), (0, rest)),
        )  # fmt: skip

    def _attend(self, at: int, layer: Layer, pages: _Pages, x: Tensor, step: _Step) -> Tensor:
        """[rows, heads * head_dim] of normed rows x, not yet projected."""
        y = layer.qkv(x).view(x.shape[0], -1, layer.head_dim)
        qk = _normed(y[:, : layer.heads + layer.kv_heads], self.cfg.eps).mul_(layer.qk_scale)
        qk = _turned(qk, step, self.turn)
        q, k = qk.split((layer.heads, layer.kv_heads), dim=1)
        _store(pages, step.slots, torch.stack((k, y[:, layer.heads + layer.kv_heads :]), dim=1))
        group, sparse = layer.heads // layer.kv_heads, self.cfg.sparse
        bias = self._bias(step, group)
        if sparse is not None and sparse.layers[at]:
            picked = self._picked(layer, pages, x, step, sparse, group)
            bias = bias if picked is None else picked
        return _scores(q, pages, step, bias, layer.kv_heads, group)

    def _bias(self, step: _Step, group: int) -> Tensor | None:
        """[n, 1, group * width, length] with -inf at hidden keys, or None where every row sees all keys."""
        if step.hidden is None:
            return None
        if group not in step.bias:
            bias = torch.zeros(step.hidden.shape).masked_fill_(step.hidden, -torch.inf)
            step.bias[group] = bias.repeat(1, group, 1).unsqueeze(1)
        return step.bias[group]

    def _picked(
        self, layer: Layer, pages: _Pages, x: Tensor, step: _Step, cfg: SparseConfig, group: int
    ) -> Tensor | None:
        """The mask of a block-sparse layer; None while all blocks fit. Stores index keys of a layer that has them."""
        asked = step.length > cfg.topk * cfg.block_size
        if layer.index is None:
            return step.chosen
        y = layer.index(x).view(x.shape[0], cfg.index_heads + 1, cfg.index_dim)
        y = _turned(_normed(y, self.cfg.eps).mul_(layer.index_scale), step, self.index_turn)
        assert pages.index is not None
        pages.index.view(-1, cfg.index_dim).index_copy_(0, step.slots, cast_fp8(y[:, -1]).view(torch.uint8))
        if not asked:
            return None
        keys = decode_fp8(pages.index.index_select(0, step.pages), 1.0).view(step.n, -1, cfg.index_dim)
        keys = keys[:, : step.length]
        scores = (y[:, :-1].reshape(step.n, step.width * cfg.index_heads, -1) @ keys.transpose(1, 2)).view(
            step.n, step.width, cfg.index_heads, step.length
        )
        last = step.positions.clamp(min=0)
        if step.hidden is not None:
            scores = scores.masked_fill(step.hidden.unsqueeze(2), -torch.inf)
        seen = choose_blocks(block_scores(scores, cfg.block_size), last.unsqueeze(-1) // cfg.block_size, cfg)
        unseen = ~seen.repeat_interleave(cfg.block_size, dim=-1)[..., : step.length]
        if step.hidden is not None:
            unseen |= step.hidden.unsqueeze(2)
        bias = torch.zeros(unseen.shape).masked_fill_(unseen, -torch.inf)  # [n, width, kv_heads, length]
        step.chosen = bias.transpose(1, 2).repeat(1, 1, group, 1)
        return step.chosen


def _scores(q: Tensor, pages: _Pages, step: _Step, bias: Tensor | None, kv_heads: int, group: int) -> Tensor:
    """Softmax attention of q [rows, heads, head_dim] over the pages; scales stand on scores and probabilities."""
    n, width, length = step.n, step.width, step.length
    size = q.shape[-1]
    codes = spread_fp8(pages.codes.index_select(0, step.pages)).view(n, -1, 2, kv_heads, size)[:, :length]
    kv = torch.empty(2, n, kv_heads, length, size).copy_(codes.permute(2, 0, 3, 1, 4)).view(2, n * kv_heads, length, -1)
    scales = pages.scales.index_select(0, step.pages).view(n, -1, 2, kv_heads)[:, :length]
    scales = torch.mul(scales.permute(2, 0, 3, 1), FP8_SPREAD).reshape(2, n * kv_heads, 1, length)
    q = q.view(n, width, kv_heads, group, size).permute(0, 2, 3, 1, 4).reshape(n * kv_heads, group * width, size)
    scores = torch.bmm(q, kv[0].transpose(1, 2)).mul_(scales[0])
    if bias is not None:
        scores = scores.view(n, kv_heads, -1, length).add_(bias).view(n * kv_heads, -1, length)
    out = torch.bmm(scores.softmax(-1).mul_(scales[1]), kv[1])
    return out.view(n, kv_heads, group, width, size).permute(0, 3, 1, 2, 4).reshape(n * width, -1)


def _store(pages: _Pages, slots: Tensor, kv: Tensor) -> None:
    """Encode kv [rows, 2, kv_heads, head_dim] as quant.fp8.encode_fp8 does; no code is beyond the range here."""
    scale = kv.abs().amax(-1, keepdim=True).div_(FP8_MAX)
    scale = torch.where(scale == 0, 1.0, scale)
    pages.code_slots.index_copy_(0, slots, (kv / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8).view(torch.uint8))
    pages.scale_slots.index_copy_(0, slots, scale)


def _pages(cache: KVCache, layer: int) -> _Pages:
    codes, scales = cache.pages(layer)
    index = cache.index_pages(layer)
    return _Pages(codes, scales, codes.flatten(0, 1), scales.flatten(0, 1), index[0] if index else None)


def _normed(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), without a weight."""
    size = x.shape[-1]
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
    return x * root


def _turn(half: int, size: int, device: torch.device) -> Tensor:
    """int64 [size]: where RoPE takes the other half of a pair from; places it leaves alone point at themselves."""
    places = torch.arange(size, device=device)
    return torch.cat((places[half : 2 * half], places[:half], places[2 * half :]))


def _turned(x: Tensor, step: _Step, turn: Tensor) -> Tensor:
    """RoPE of x [rows, heads, size]; size may differ from the head's, the turned dims come first in both."""
    size, known = x.shape[-1], step.cos.shape[-1]
    cos, sin = step.cos, step.sin
    if size > known:
        cos, sin = F.pad(cos, (0, size - known), value=1.0), F.pad(sin, (0, size - known))
    return torch.addcmul(x * cos[..., :size], x.index_select(-1, turn), sin[..., :size])


def compare(target: Target, batch: Batch, found: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor]) -> float:
    """Mono against the ordinary path on one step: the largest difference of a logit, over the largest logit.

    Both store in fp8, and a number that lies between two codes may fall to either side, so CHECK_LIMIT is of that
    size. Raises EngineError above it, or where a choice differs by more than the two logits' own difference explains.
    """
    real = batch.positions.flatten() >= 0
    here, there = target.logits(found[0][real]), target.logits(plain[0][real])
    gap = (here - there).abs().amax(-1)
    share = float((gap / there.abs().amax(-1)).max())
    lost = there.amax(-1) - there.gather(1, here.argmax(-1, keepdim=True)).squeeze(1)  # of the ordinary path's own best
    if not (share <= CHECK_LIMIT and bool((lost <= 2 * gap).all())):
        words = f"Mono and the ordinary path differ by {share:.3f} of the largest logit in a step of "
        raise EngineError(f"{words}{int(real.sum())} rows; {CHECK_LIMIT} is the limit",
                          "use --mono off and report it")  # fmt: skip
    return share

"""Bytes that a token takes in the caches: by layer and part, of the whole model and of one tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import EngineError
from engine.mode import QuantMode
from engine.quant.formats import FORMATS, INDEX_FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What a target caches for a token: K and V of every layer, and one index key in each block-sparse layer."""

    kv_heads: int
    head_dim: int
    sparse: tuple[bool, ...]  # a flag for each layer
    index_dim: int = 0  # 0: no indexer
    picks: tuple[bool, ...] = ()  # layers that keep an index key; (): every sparse one


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes of one token: codes of K and V, their scales, the index key with its scales."""

    kv: int
    scales: int
    index: int

    @property
    def total(self) -> int:
        return self.kv + self.scales + self.index

    def __add__(self, other: TokenBytes) -> TokenBytes:
        return TokenBytes(
            kv=self.kv + other.kv, scales=self.scales + other.scales, index=self.index + other.index
        )  # fmt: skip


def layer_bytes(kv: str, index: str, shape: CacheShape, *, picks: bool, tp: int = 1) -> TokenBytes:
    """One layer in the formats `kv` (of FORMATS) and `index` (of INDEX_FORMATS) on one of `tp` ranks.

    KV heads are split over the ranks; the index key is whole on each. Raises EngineError where they cannot be split.
    """
    if shape.kv_heads % tp:
        raise EngineError(f"{shape.kv_heads} KV heads cannot be split over {tp} ranks", "use a divisor")
    vectors, fmt = 2 * shape.kv_heads // tp, FORMATS[kv]
    scales = vectors * fmt.scale_bytes(shape.head_dim)
    key = INDEX_FORMATS[index].bytes_per_vector(shape.index_dim) if picks and shape.index_dim else 0
    return TokenBytes(kv=vectors * fmt.bytes_per_vector(shape.head_dim) - scales, scales=scales, index=key)


def token_bytes(mode: QuantMode, shape: CacheShape, *, tp: int = 1) -> TokenBytes:
    """All layers of the target as `mode` stores them, on one of `tp` ranks."""
    total = TokenBytes(kv=0, scales=0, index=0)
    for i, picks in enumerate(shape.picks or shape.sparse):
        kv = mode.kv_dtype(i, sparse=shape.sparse)
        total += layer_bytes(kv, mode.index_format, shape, picks=picks, tp=tp)
    return total


def draft_bytes(mode: QuantMode, *, layers: int, kv_heads: int, head_dim: int, tp: int = 1) -> TokenBytes:
    """The draft's layers, which cache K and V alone."""
    formats: Sequence[str] = mode.kv_formats(sparse=(), draft_layers=layers)
    shape, total = CacheShape(kv_heads=kv_heads, head_dim=head_dim, sparse=()), TokenBytes(kv=0, scales=0, index=0)
    for name in formats:
        total += layer_bytes(name, "bf16", shape, picks=False, tp=tp)
    return total


M3 = CacheShape(kv_heads=4, head_dim=128, sparse=(False,) * 3 + (True,) * 57, index_dim=128)
M31 = CacheShape(kv_heads=4, head_dim=128, sparse=(True,) * 60, index_dim=128)

"""Storage of keys and values by page, in the format each layer asks for. Who owns a page: prefix_cache.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine import kernels
from engine.kernels import Kernels
from engine.quant import FORMATS, INDEX_FORMATS, KVFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What one layer keeps for a token: K and V of `kv_heads` vectors of `head_dim`, in a format of quant.FORMATS.

    A layer that picks blocks keeps one index key of `index_dim` beside them, in a format of INDEX_FORMATS.
    So does a draft's layer that keeps another vector of each token.
    """

    format: str
    kv_heads: int
    head_dim: int
    index_format: str = ""
    index_dim: int = 0

    @property
    def bytes_per_token(self) -> int:
        kv = 2 * self.kv_heads * FORMATS[self.format].bytes_per_vector(self.head_dim)
        return kv + (INDEX_FORMATS[self.index_format].bytes_per_vector(self.index_dim) if self.index_dim else 0)


def bytes_per_token(layers: Sequence[LayerSpec]) -> int:
    """Bytes one token takes in all layers, scales included: num_pages = limit // (page_size * this)."""
    return sum(layer.bytes_per_token for layer in layers)


class KVCache:
    """K and V of every layer, target layers first, then the draft's: one page holds a token's share of all.

    A slot is page * page_size + offset. Layers of one spec share one allocation per part of the format.
    K and V lie side by side, so that one gather and one decode serve both. A spare page after the last
    takes the rows whose slot is -1; nothing reads it. Memory starts as zeros.

    layers: one spec a layer. dtype: of what `gather` returns. kernels: who writes and reads pages, plain torch where
    it is not given. Raises KeyError for an unknown format.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        num_pages: int,
        page_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
    ) -> None:
        self.layers, self.num_pages, self.page_size = tuple(layers), num_pages, page_size
        self.device, self.dtype, self.kernels = torch.device(device), dtype, kernels or Kernels()
        self.spare_slot = num_pages * page_size
        self._pages: list[tuple[Tensor, ...]] = [()] * len(self.layers)
        self._index: list[tuple[Tensor, ...]] = [()] * len(self.layers)
        self._storage: list[Tensor] = []
        for spec in dict.fromkeys(self.layers):
            members = [i for i, other in enumerate(self.layers) if other == spec]
            places = (len(members), num_pages + 1, page_size)
            pages = self._allocate(FORMATS[spec.format], spec.head_dim, *places, 2, spec.kv_heads)
            index = self._allocate(INDEX_FORMATS[spec.index_format], spec.index_dim, *places) if spec.index_dim else []
            for at, layer in enumerate(members):
                self._pages[layer] = tuple(part[at] for part in pages)
                self._index[layer] = tuple(part[at] for part in index)

    def _allocate(self, fmt: KVFormat, width: int, *shape: int) -> list[Tensor]:
        """Zeroed storage of vectors of `width`, one tensor for each part of the format."""
        parts = [torch.zeros(*shape, p.width, dtype=p.dtype, device=self.device) for p in fmt.parts(width)]
        self._storage += parts
        return parts

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Encode k and v [rows, kv_heads, head_dim] into slots int64 [rows]; rows with slot -1 are ignored."""
        spec = self.layers[layer]
        if self.kernels.takes("store_kv", spec.format in kernels.FORMATS):
            return kernels.store_kv(k, v, slots, self._pages[layer], spec.format)
        slots = torch.where(slots < 0, self.spare_slot, slots)
        encoded = FORMATS[spec.format].encode(torch.stack((k, v), dim=1))
        for pages, part in zip(self._pages[layer], encoded, strict=True):
            pages.flatten(0, 1).index_copy_(0, slots, part)

    def gather(self, layer: int, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """k and v, each [n, pages * page_size, kv_heads, head_dim], of page_table int64 [n, pages].

        Decoded to the compute dtype. The two are views of one tensor, new on each call.
        """
        n, count = page_table.shape
        flat = page_table.flatten()
        found = tuple(pages.index_select(0, flat) for pages in self._pages[layer])
        kv = FORMATS[self.layers[layer].format].decode(found, self.dtype)
        kv = kv.view(n, count * self.page_size, *kv.shape[2:])
        return kv[:, :, 0], kv[:, :, 1]

    def store_index(self, layer: int, slots: Tensor, k: Tensor) -> None:
        """Encode index keys k [rows, index_dim] into slots int64 [rows]; rows with slot -1 are ignored."""
        spec = self.layers[layer]
        able = spec.index_format in kernels.INDEX_FORMATS and spec.index_dim <= kernels.WIDEST
        if self.kernels.takes("store_index", able):
            return kernels.store_index(k, slots, self._index[layer], spec.index_format)
        slots = torch.where(slots < 0, self.spare_slot, slots)
        encoded = INDEX_FORMATS[spec.index_format].encode(k)
        for pages, part in zip(self._index[layer], encoded, strict=True):
            pages.flatten(0, 1).index_copy_(0, slots, part)

    def gather_index(self, layer: int, page_table: Tensor) -> Tensor:
        """Index keys float32 [n, pages * page_size, index_dim] of page_table int64 [n, pages]."""
        n, count = page_table.shape
        flat = page_table.flatten()
        found = tuple(pages.index_select(0, flat) for pages in self._index[layer])
        keys = INDEX_FORMATS[self.layers[layer].index_format].decode(found, torch.float32)
        return keys.view(n, count * self.page_size, -1)

    def index_at(self, layer: int, slots: Tensor) -> Tensor:
        """Index keys float32 [rows, index_dim] at slots int64 [rows]."""
        found = tuple(pages.flatten(0, 1).index_select(0, slots) for pages in self._index[layer])
        return INDEX_FORMATS[self.layers[layer].index_format].decode(found, torch.float32)

    def pages(self, layer: int) -> tuple[Tensor, ...]:
        """The parts of a layer as stored, each [num_pages + 1, page_size, 2, kv_heads, width], for kernels."""
        return self._pages[layer]

    def index_pages(self, layer: int) -> tuple[Tensor, ...]:
        """The parts of a layer's index keys, each [num_pages + 1, page_size, width]; none where it has no index."""
        return self._index[layer]

    def bytes_per_token(self) -> int:
        return bytes_per_token(self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes allocated: (num_pages + 1) * page_size * bytes_per_token()."""
        return sum(part.nbytes for part in self._storage)

"""One tick's rows as tensors: what a forward pass of the target needs to know beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of `n` sequences, each with `width` row places; a sequence with fewer rows is padded.

    A padding row has position -1 and slot -1: it is stored nowhere, and its results are not read.
    Prefill chunks, plain decode (width 1) and verification (width K+1) are all this one shape.
    """

    ids: Tensor  # int64 [n, width]
    positions: Tensor  # int64 [n, width], -1 for padding
    slots: Tensor  # int64 [n, width]: page * page_size + offset in the page, -1 for padding
    page_table: Tensor  # int64 [n, pages], padded with 0 past a sequence's own pages
    lengths: Tensor  # int64 [n]: tokens of context after this tick, its own rows included

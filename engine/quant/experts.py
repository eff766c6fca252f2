"""The quantised matrices of a layer's experts: one linear layer an expert, and all of them to a kernel at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from torch import Tensor, nn

from engine import kernels
from engine.kernels.groups import Groups
from engine.quant.fp8 import FP8
from engine.quant.linear import QuantLinear

MX = ("mxfp4", "mxfp8")


class QuantExperts(nn.ModuleList):
    """A QuantLinear for each expert, of one shape and format.

    op: what the record calls the product of all experts, "" for a format without a kernel. fused: a kernel serves it;
    the layers' codes and scales are then parts of `codes` [experts, N, bytes of K] and `scales` [experts, N, scales of
    a row], which cost nothing beside them, and no layer keeps a decoded copy. least: rows of the smallest tile.
    """

    def __init__(self, layers: Iterable[QuantLinear], count: int) -> None:
        """layers: `count` of them; made one by one, each gives its tensors up before the next takes memory."""
        super().__init__()
        for i, layer in enumerate(layers):
            if not i:
                self._begin(layer, count)
            self.append(layer)
            self._join(i, layer)

    def _begin(self, first: QuantLinear, count: int) -> None:
        is_mx = first.format.name in MX
        self.kernels, self.op = first.kernels, "ptpc_experts" if first.is_ptpc else "mx_experts" if is_mx else ""
        self.fused, self.least = first.fused or (is_mx and self.kernels.triton), 16 if is_mx else 64
        if self.fused:
            self.codes, self.scales = (t.new_empty(count, *t.shape) for t in (first.codes, first.scales))

    def _join(self, i: int, layer: QuantLinear) -> None:
        """Make the layer's tensors parts of those of all."""
        if self.fused:
            self.codes[i], self.scales[i] = layer.codes, layer.scales
            layer.codes, layer.scales, layer.cached = self.codes[i], self.scales[i], None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantExperts:
        """As nn.Module's, which moves each layer's tensors by themselves."""
        super()._apply(fn, recurse)
        layers = [cast(QuantLinear, layer) for layer in self]
        self._begin(layers[0], len(layers))
        for i, layer in enumerate(layers):
            self._join(i, layer)
        return self

    def grouped(self, x: Tensor, groups: Groups) -> Tensor:
        """[places, N] of x [rows, K]: each place's row times the matrix of its expert, by a kernel.

        Rows have equally many places, those of a row one after another. A row is quantised once for all of them.
        """
        if self.op == "mx_experts":
            values = cast(QuantLinear, self[0]).activations(x).to(x.dtype)
            return kernels.mx_experts(values, self.codes, self.scales, groups)
        values, scale = kernels.quantise_rows(x)
        return kernels.ptpc_experts(values, scale, self.codes.view(FP8), self.scales, groups, x.dtype)

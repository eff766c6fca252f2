"""QuantLinear: a linear layer that keeps codes and scales in place of its weight.

With quantised activations every row is quantised as it arrives, by the scheme that belongs to the weight's format
(ACTIVATIONS). PTPC multiplies code values and scales the product, y = (xq . wq) * sx * sw, by a kernel where the engine
has kernels; the other formats have scales along K, so both sides are decoded first: the same products, added in another
order than a block-scaled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine import kernels
from engine.kernels import Kernels
from engine.quant.fp4 import FP4_MAX, round_fp4
from engine.quant.fp8 import FP8, FP8_MAX, encode_fp8, round_fp8, round_fp8_
from engine.quant.mx import MX_BLOCK, e8m0_values
from engine.quant.weights import TILE, WEIGHT_FORMATS, WeightOptions

# weight format -> the quantised activations it can be used with, its own first
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "ptpc_fp8": ("fp8",),
    "per_block_fp8": ("fp8",),
    "per_block128_fp8": ("fp8",),
    "mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4", "mxfp8"),
}


class QuantLinear(nn.Module):
    """x [..., K] -> [..., N] with a weight kept as `codes` and `scales`.

    act: a format of ACTIVATIONS, or "" to leave x as it is. packed: rows of each matrix that is packed into the
    weight. cache: keep the weight decoded as float32 too, which is fast and takes memory: `cached_nbytes` says how
    much. row_amax: float32 [N, 1], of the whole rows where `weight` holds a part of their columns; of the formats
    only PTPC has a scale for a whole row. kernels: who multiplies; a layer that a kernel serves keeps no decoded copy.
    Raises ValueError where K is no multiple of the format's block.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None
    cached: Tensor | None

    def __init__(
        self, weight: Tensor, format: str, *, act: str = "", bias: Tensor | None = None, packed: Sequence[int] = (),
        options: WeightOptions | None = None, cache: bool = False, row_amax: Tensor | None = None,
        kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernels = kernels or Kernels()
        self.format, self.act, self.options = WEIGHT_FORMATS[format], act, options or WeightOptions()
        if act and act not in ACTIVATIONS[format]:
            raise ValueError(f"{format} weights do not go with {act} activations")
        self.is_ptpc = format == "ptpc_fp8" and bool(act)  # scales are left out of the product and put on its result
        self.fused = self.is_ptpc and self.options.fp8 == FP8 and self.kernels.triton
        self.out_features, self.in_features = weight.shape
        self.packed = tuple(packed) if packed and self.format.tiled else (self.out_features,)
        if row_amax is not None and format == "ptpc_fp8":
            pieces = [encode_fp8(weight.detach(), self.options.fp8, amax=row_amax)]
        else:
            pieces = [self.format.encode(w, self.options) for w in weight.detach().split(self.packed)]
        self.scale_rows = tuple(len(scales) for _, scales in pieces)
        self.register_buffer("codes", torch.cat([codes.view(torch.uint8) for codes, _ in pieces]))
        self.register_buffer("scales", torch.cat([scales for _, scales in pieces]))
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.register_buffer("cached", self._operand() if cache and not self.fused else None, persistent=False)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and bias."""
        return sum(t.nbytes for t in (self.codes, self.scales, self.bias) if t is not None)

    @property
    def cached_nbytes(self) -> int:
        return 0 if self.cached is None else self.cached.nbytes

    def dequantised(self) -> Tensor:
        """The weight that the codes stand for, float32 [N, K]."""
        pieces = zip(self.codes.split(self.packed), self.scales.split(self.scale_rows), strict=True)
        return torch.cat([self.format.decode(self._typed(codes), scales, self.options) for codes, scales in pieces])

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_to(x, slice(None))

    def rows(self, x: Tensor, which: slice) -> Tensor:
        """The outputs `which` alone, [..., rows]."""
        return self._apply_to(x, which)

    def _apply_to(self, x: Tensor, which: slice) -> Tensor:
        bias = None if self.bias is None else self.bias[which]
        if self.is_ptpc and self.kernels.takes("ptpc_matmul", self.fused):
            return self._multiplied(x, self._typed(self.codes[which]), self.scales[which], bias)
        w = (self._operand() if self.cached is None else self.cached)[which]
        if self.is_ptpc:
            values, scale = quantise_rows(x, self.options.fp8)
            y = F.linear(values, w).mul_(scale).mul_(self.scales[which].squeeze(1))
            y = y if bias is None else y.add_(bias)
        else:
            y = F.linear(self.activations(x), w, None if bias is None else bias.float())
        return y.to(x.dtype)

    def activations(self, x: Tensor) -> Tensor:
        """x as it is multiplied with the decoded weight, float32: quantised and decoded, or as it is."""
        return QUANTISE[self.act](x, self._group(), self.options) if self.act else x.float()

    @staticmethod
    def _multiplied(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        """PTPC's product by kernels."""
        values, scale = kernels.quantise_rows(x.reshape(-1, x.shape[-1]))
        dtype = x.dtype if bias is None else torch.float32
        y = kernels.ptpc_matmul(values, scale, codes, scales, dtype)
        y = y if bias is None else y.add_(bias).to(x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _group(self) -> int:
        return self.options.block[1] if self.format.name == "per_block_fp8" else TILE

    def _typed(self, codes: Tensor) -> Tensor:
        is_fp8 = self.format.name not in ("mxfp4", "mxfp8")
        return codes.view(self.options.fp8) if is_fp8 else codes

    def _operand(self) -> Tensor:
        """What x is multiplied with: the values of the codes for PTPC, else the decoded weight; float32 [N, K]."""
        if not self.is_ptpc:
            return self.dequantised()
        ones = torch.ones(1, 1, device=self.codes.device)
        return self.format.decode(self._typed(self.codes), ones, self.options)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}, {self.format.name}, act={self.act or 'as it is'}"


def linear_rows(linear: nn.Module, x: Tensor, which: slice) -> Tensor:
    """The outputs `which` of a linear layer alone, whether its weight is quantised or not."""
    if isinstance(linear, QuantLinear):
        return linear.rows(x, which)
    assert isinstance(linear, nn.Linear)
    return F.linear(x, linear.weight[which], None if linear.bias is None else linear.bias[which])


def quantise_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values of the fp8 codes, float32 [..., K], and scale [..., 1]: what encode_fp8 gives, not packed into bytes."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).div_(torch.finfo(dtype).max)
    scale = torch.where(scale == 0, 1.0, scale)
    return round_fp8_(x / scale, dtype), scale


def _fp8_groups(x: Tensor, group: int, options: WeightOptions) -> Tensor:
    """decode(encode(x)) with one scale for `group` neighbours, the last group of a row maybe shorter."""
    k, top = x.shape[-1], torch.finfo(options.fp8).max
    x = F.pad(x.float(), (0, -k % group)) if k % group else x.float()
    x = x.unflatten(-1, (-1, group))
    scale = x.abs().amax(-1, keepdim=True).div_(top).clamp_(min=torch.finfo(torch.float32).tiny)
    y = round_fp8_(x / scale, options.fp8).mul_(scale).flatten(-2)
    return y[..., :k] if k % group else y


def _mx(x: Tensor, largest: float, mode: str, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    blocks = x.float().reshape(*x.shape[:-1], -1, MX_BLOCK)
    scale = e8m0_values(blocks.abs().amax(-1, keepdim=True), largest, mode)
    return rounded(blocks / scale).mul_(scale).flatten(-2)


# activation format -> decode(encode(x)) in float32, for x [..., K] and the length of a group
QUANTISE: dict[str, Callable[[Tensor, int, WeightOptions], Tensor]] = {
    "fp8": _fp8_groups,
    "mxfp8": lambda x, group, o: _mx(x, FP8_MAX, o.mxfp8_scale, round_fp8),
    "mxfp4": lambda x, group, o: _mx(x, FP4_MAX, o.mxfp4_scale, round_fp4),
}

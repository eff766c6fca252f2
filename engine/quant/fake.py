"""decode(encode(x)) as one differentiable step, for training a model that will live with a quantised cache."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.fp8 import decode_fp8, encode_fp8
from engine.quant.nvfp4 import nvfp4_values


def fake_fp8(x: Tensor) -> Tensor:
    """decode(encode(x)) in float32, with the gradient of the identity."""
    return _FakeFP8.apply(x)  # pyright: ignore[reportReturnType]


def fake_nvfp4(x: Tensor) -> Tensor:
    """decode(encode(x)) in float32, with the gradient of the identity; the codes are not packed."""
    return _FakeNVFP4.apply(x)  # pyright: ignore[reportReturnType]


class _FakeFP8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return decode_fp8(*encode_fp8(x))

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class _FakeNVFP4(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        values, scales = nvfp4_values(x)
        return values.mul_(scales.float()).view(x.shape)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]

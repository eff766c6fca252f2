"""Formats of weight matrices: PTPC-FP8, block-scaled FP8, MXFP8, MXFP4. Made online, or read from a checkpoint.

All are of a matrix [N, K] that is applied along K. `WEIGHT_FORMATS` says for each how a matrix is encoded and decoded
and how the activations of its layer may be quantised; the names are those of `--online_quant_config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import EngineError
from engine.quant.fp8 import FP8, decode_fp8, encode_fp8
from engine.quant.mx import MX_BLOCK, decode_mxfp4, decode_mxfp8, encode_mxfp4, encode_mxfp8
from engine.quant.nvfp4 import FP4_BLOCK, decode_nvfp4

TILE = 128
PACKED = ("mxfp4", "nvfp4")  # kinds of stored matrices with two codes in a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOptions:
    """What the names of the formats leave open.

    fp8: e4m3fn, or e4m3fnuz for PTPC and block scales (the MX formats are OCP's, so e4m3fn). `block`: rows and columns
    of per_block_fp8's tiles. Scale modes: see engine.quant.mx.
    """

    fp8: torch.dtype = FP8
    block: tuple[int, int] = (TILE, TILE)
    mxfp4_scale: str = "even"
    mxfp8_scale: str = "down"


Parts = tuple[Tensor, Tensor]  # codes and scales


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """`encode` makes codes and scales of a matrix float32 [N, K]; `decode` gives float32 [N, K] of them.

    `multiple`: K has to be one of it. `tiled`: rows share scales, so matrices packed into one are encoded one by one.
    """

    name: str
    encode: Callable[[Tensor, WeightOptions], Parts]
    decode: Callable[[Tensor, Tensor, WeightOptions], Tensor]
    multiple: int = 1
    tiled: bool = False


def encode_tiles(w: Tensor, rows: int = TILE, columns: int = TILE, dtype: torch.dtype = FP8) -> tuple[Tensor, Tensor]:
    """codes [N, K] in `dtype` and scales float32 [ceil(N / rows), ceil(K / columns)]: one scale a tile.

    scale = amax / the dtype's largest number, at least the smallest normal float32; tiles at the edges may be partial.
    A tile with a NaN or an infinity decodes to NaN.
    """
    top = torch.finfo(dtype).max
    n, k = w.shape
    tiles = F.pad(w.float(), (0, -k % columns, 0, -n % rows))
    tiles = tiles.view(tiles.shape[0] // rows, rows, tiles.shape[1] // columns, columns)
    scales = (tiles.abs().amax((1, 3)) / top).clamp_(min=torch.finfo(torch.float32).tiny)
    codes = (tiles / scales[:, None, :, None]).clamp_(-top, top)
    return codes.reshape(-1, codes.shape[2] * columns)[:n, :k].to(dtype).contiguous(), scales


def decode_tiles(codes: Tensor, scales: Tensor, rows: int = TILE, columns: int = TILE) -> Tensor:
    """float32 [N, K] of codes [N, K] (float8) and scales [ceil(N / rows), ceil(K / columns)]."""
    n, k = codes.shape
    factor = scales.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    return decode_fp8(codes, factor)


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "ptpc_fp8": WeightFormat(
        name="ptpc_fp8",
        encode=lambda w, o: encode_fp8(w, o.fp8),
        decode=lambda codes, scales, o: decode_fp8(codes, scales),
    ),
    "per_block_fp8": WeightFormat(
        name="per_block_fp8",
        encode=lambda w, o: encode_tiles(w, *o.block, o.fp8),
        decode=lambda codes, scales, o: decode_tiles(codes, scales, *o.block),
        tiled=True,
    ),
    "per_block128_fp8": WeightFormat(
        name="per_block128_fp8",
        encode=lambda w, o: encode_tiles(w, dtype=o.fp8),
        decode=lambda codes, scales, o: decode_tiles(codes, scales),
        tiled=True,
    ),
    "mxfp4": WeightFormat(
        name="mxfp4",
        encode=lambda w, o: encode_mxfp4(w, o.mxfp4_scale),
        decode=lambda codes, scales, o: decode_mxfp4(codes, scales),
        multiple=MX_BLOCK,
    ),
    "mxfp8": WeightFormat(
        name="mxfp8",
        encode=lambda w, o: encode_mxfp8(w, o.mxfp8_scale),
        decode=lambda codes, scales, o: decode_mxfp8(codes, scales),
        multiple=MX_BLOCK,
    ),
}


def scale_grid(name: str, kind: str, shape: tuple[int, int], scale: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a stored matrix [N, K] that have a scale together, by the shape of its scales.

    Arguments as in decode_stored. Raises EngineError where the shapes do not belong together or the kind is unknown.
    """
    if kind not in ("fp8", "mxfp8", "mxfp4", "nvfp4"):
        raise EngineError(f"{name} is stored as {kind!r}", "use fp8, mxfp8, mxfp4 or nvfp4")
    n, k = shape
    block = {"mxfp8": MX_BLOCK, "mxfp4": MX_BLOCK, "nvfp4": FP4_BLOCK}.get(kind)
    grids: dict[tuple[int, ...], tuple[int, int]]
    if block:
        grids = {(n, k // block): (1, block)}
    else:
        grids = {(-(-n // TILE), -(-k // TILE)): (TILE, TILE), (n,): (1, k), (n, 1): (1, k), (): (n, k), (1,): (n, k)}
    if scale not in grids or (block and k % block):
        shapes = " or ".join(str(list(s)) for s in reversed(grids))
        raise EngineError(f"{name} ({kind}, {n} x {k}) has scales of shape {list(scale)}, not {shapes}",
                          "use a checkpoint whose scales belong to its weights")  # fmt: skip
    return grids[scale]


def decode_stored(
    name: str, kind: str, weight: Tensor, scale: Tensor, *, scale_2: Tensor | None = None, fp8: torch.dtype = FP8
) -> Tensor:
    """float32 [N, K] of a quantised matrix as checkpoints store it.

    kind: fp8 (one scale, one for each row, or one for each 128 x 128 tile: told apart by the scale's shape), mxfp8,
    mxfp4 or nvfp4 (with `scale_2`, the tensor's global_scale_dec). weight: float8, or uint8 that holds it or two E2M1
    codes. scale: float32, or E8M0 bytes for the MX kinds. `name` is for the message. Raises EngineError where the
    shapes do not belong together or the kind is unknown.
    """
    n, k = weight.shape[0], weight.shape[-1] * (2 if kind in PACKED else 1)
    scale_grid(name, kind, (n, k), tuple(scale.shape))
    if kind == "nvfp4":
        if scale_2 is None or scale_2.numel() != 1:
            raise EngineError(f"{name} (nvfp4) lacks its global scale", "give the checkpoint's weight_scale_2")
        return decode_nvfp4(weight, scale, global_scale_dec=float(scale_2))
    if kind in ("mxfp4", "mxfp8"):
        bytes_ = scale.view(torch.uint8) if scale.element_size() == 1 else _e8m0_bytes(name, scale)
        return decode_mxfp4(weight, bytes_) if kind == "mxfp4" else decode_mxfp8(weight, bytes_)
    codes = weight.view(fp8) if weight.dtype == torch.uint8 else weight
    if scale.dim() == 2 and tuple(scale.shape) != (n, 1):
        return decode_tiles(codes, scale.float())
    return decode_fp8(codes, scale.float().reshape(-1, 1) if scale.numel() > 1 else scale.float())


def _e8m0_bytes(name: str, scale: Tensor) -> Tensor:
    """Bytes of E8M0 scales that were stored as float32 powers of two."""
    bits = scale.float().view(torch.int32)
    if bool((bits & 0x807FFFFF).any()):
        raise EngineError(f"{name} has MX scales that are no powers of two", "use a checkpoint in the OCP form")
    return (bits >> 23).to(torch.uint8)

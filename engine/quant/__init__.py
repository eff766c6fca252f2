"""Number formats, bit for bit, in plain torch: of cached vectors, of weights, of activations. Works on any device."""

from engine.quant.fake import fake_fp8, fake_nvfp4
from engine.quant.formats import FORMATS, INDEX_FORMATS, KVFormat, Part
from engine.quant.fp4 import FP4_MAX, FP4_VALUES, pack_fp4, round_fp4, unpack_fp4
from engine.quant.fp8 import (
    DIALECTS,
    FP8,
    FP8_FNUZ,
    FP8_MAX,
    cast_fp8,
    decode_fp8,
    encode_fp8,
    fn_to_fnuz,
    round_fp8,
)
from engine.quant.linear import ACTIVATIONS, QuantLinear, linear_rows, quantise_rows
from engine.quant.mx import (
    MX_BLOCK,
    SCALE_MODES,
    decode_e8m0,
    decode_mxfp4,
    decode_mxfp8,
    e8m0_scales,
    encode_mxfp4,
    encode_mxfp8,
)
from engine.quant.nvfp4 import FP4_BLOCK, decode_nvfp4, encode_nvfp4, nvfp4_global_scale
from engine.quant.weights import (
    WEIGHT_FORMATS,
    WeightFormat,
    WeightOptions,
    decode_stored,
    decode_tiles,
    encode_tiles,
)

__all__ = [
    "ACTIVATIONS",
    "DIALECTS",
    "FORMATS",
    "FP4_BLOCK",
    "FP4_MAX",
    "FP4_VALUES",
    "FP8",
    "FP8_FNUZ",
    "FP8_MAX",
    "INDEX_FORMATS",
    "MX_BLOCK",
    "SCALE_MODES",
    "WEIGHT_FORMATS",
    "KVFormat",
    "Part",
    "QuantLinear",
    "WeightFormat",
    "WeightOptions",
    "cast_fp8",
    "decode_e8m0",
    "decode_fp8",
    "decode_mxfp4",
    "decode_mxfp8",
    "decode_nvfp4",
    "decode_stored",
    "decode_tiles",
    "e8m0_scales",
    "encode_fp8",
    "encode_mxfp4",
    "encode_mxfp8",
    "encode_nvfp4",
    "encode_tiles",
    "fake_fp8",
    "fake_nvfp4",
    "fn_to_fnuz",
    "linear_rows",
    "nvfp4_global_scale",
    "pack_fp4",
    "quantise_rows",
    "round_fp4",
    "round_fp8",
    "unpack_fp4",
]

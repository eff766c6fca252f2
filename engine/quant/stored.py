"""Quantised checkpoints: which of a folder's tensors are codes, and the matrices they stand for.

config.json's quantization_config names the method; a matrix is quantised where its scales are beside it, so lists of
layers left alone are not needed. Scales of activations are dropped: activations are quantised as the run says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.config_fields import table
from engine.errors import EngineError
from engine.quant.weights import PACKED, decode_stored, scale_grid
from engine.tensor_files import Cut, TensorFiles

# what the methods call their formats -> ours
_ALGOS = {"fp8": "fp8", "fp8_pb_wo": "fp8", "fp8_pb_real": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4"}
_PACKED = {"float-quantized": "fp8", "naive-quantized": "fp8", "nvfp4-pack-quantized": "nvfp4",
           "mxfp4-pack-quantized": "mxfp4", "mxfp8-quantized": "mxfp8"}  # fmt: skip
_QUARK = {"fp8_e4m3": "fp8", "fp4": "mxfp4", "mxfp4": "mxfp4"}
_SCALES = ("weight_scale", "weight_scale_inv")  # of either name, what codes are multiplied with
_ACTIVATION = ("input_scale", "input_global_scale")


@dataclass(frozen=True, slots=True)
class StoredQuant:
    """Formats of a checkpoint's matrices, in decode_stored's words: `kind`, and `experts` where they differ."""

    kind: str
    experts: str

    @classmethod
    def of(cls, raw: dict[str, Any], folder: Path) -> StoredQuant | None:
        """The one of a config.json, None where it has no quantization_config. Raises EngineError for an unknown one."""
        path = folder / "config.json"
        inner = table(table(raw, path, "text_config"), path, "quantization_config")
        found = table(raw, path, "quantization_config") or inner
        if not found:
            return None
        kind = _kind(found)
        algo = str(found.get("moe_quant_algo") or "").lower()
        experts = _ALGOS.get(algo, "") if algo else kind
        if not kind or not experts:
            raise EngineError(f"{folder} is quantised as {_words(found)}",
                              "use a checkpoint in fp8 (rows or 128 x 128 tiles), mxfp8, mxfp4 or nvfp4, or a plain one"
                              )  # fmt: skip
        return cls(kind, experts)

    def of_layer(self, name: str) -> str:
        return self.experts if ".experts." in name else self.kind


def _kind(found: dict[str, Any]) -> str:
    """Our word for the method, "" where there is none."""
    method, block = str(found.get("quant_method", "")).lower(), found.get("weight_block_size")
    if method in ("fp8", "mxfp8"):
        if block in ([1, 32], (1, 32)):
            return "mxfp8"
        return method if block is None or (method == "fp8" and list(block) == [128, 128]) else ""
    if method == "modelopt":
        return _ALGOS.get(str(found.get("quant_algo", "")).lower(), "")
    if method == "compressed-tensors":
        formats = {found.get("format"), *(g.get("format") for g in (found.get("config_groups") or {}).values())}
        kinds = {_PACKED.get(str(f), "") for f in formats - {None}}
        return kinds.pop() if len(kinds) == 1 else ""
    if method == "quark":
        weight = (found.get("global_quant_config") or {}).get("weight") or {}
        weight = weight[0] if isinstance(weight, list) and weight else weight
        return _QUARK.get(str(weight.get("dtype", "")).lower(), "") if isinstance(weight, dict) else ""
    return method if method == "mxfp4" else ""


def _words(found: dict[str, Any]) -> str:
    names = ("quant_method", "quant_algo", "moe_quant_algo", "format", "weight_block_size", "fmt")
    return ", ".join(f"{n} {found[n]}" for n in names if found.get(n) is not None) or "an unknown method"


class StoredTensors:
    """TensorFiles in which a quantised matrix is one tensor: `X.weight`, decoded to float32 as it is popped.

    sources: `X` -> format, of the matrices decoded so far.
    """

    def __init__(self, files: TensorFiles, quant: StoredQuant | None) -> None:
        self.files, self.quant = files, quant
        self.sources: dict[str, str] = {}
        if quant is not None:
            files.drop(n for n in files.names() if n.rpartition(".")[2] in _ACTIVATION)

    def __contains__(self, name: object, /) -> bool:
        return name in self.files or (self.quant is not None and f"{name}_packed" in self.files)

    def names(self) -> list[str]:
        """Those not popped yet, sorted."""
        return self.files.names()

    def order(self, name: str) -> str:
        """Sorts tensors by the file that they are in."""
        return self.files.order(name if name in self.files else f"{name}_packed")

    def drop(self, names: Iterable[str]) -> None:
        """Leave these out, unread."""
        self.files.drop(names)

    def shape(self, name: str, /) -> tuple[int, ...]:
        """Of the tensor, or of the matrix that its codes stand for; not popped yet. Raises EngineError."""
        scales = self._scales(name)
        found = self.files.shape(self._codes(name, scales))
        two = found and scales and self.quant is not None and self.quant.of_layer(name) in PACKED
        return (*found[:-1], found[-1] * 2) if two else found

    def pop(self, name: str, cut: Cut | None = None, /) -> Tensor:
        """The tensor as stored, or the matrix that its codes and scales stand for; whole or a part. Raises EngineError.

        Of a part only the codes and scales are read that it needs, up to the bounds of the scales' blocks.
        """
        scales = self._scales(name)
        codes = self._codes(name, scales)
        if self.quant is None or not scales:
            return self.files.pop(name, cut)
        base, kind, words = name.rpartition(".")[0], self.quant.of_layer(name), f"{self.files.folder}: {name}"
        self.sources[base] = kind
        if cut is None:
            of_codes, of_scales, inner = None, None, slice(None)
        else:
            n, k = self.shape(name)
            grid = scale_grid(words, kind, (n, k), self.files.shape(scales[0]))[cut.dim]
            of_codes, of_scales, inner = _aligned(cut, grid, 2 if kind in PACKED and cut.dim == 1 else 1)
        weight, scale = self.files.pop(codes, of_codes), self.files.pop(scales[0], of_scales)
        found = decode_stored(words, kind, weight, scale, scale_2=self._second(base))
        return found if cut is None else found[inner] if cut.dim == 0 else found[:, inner]

    def _codes(self, name: str, scales: list[str]) -> str:
        """The tensor that holds the codes of `name`, or `name` itself."""
        packed = f"{name}_packed"
        if packed in self.files and name not in self.files and not scales:
            raise EngineError(f"{self.files.folder}: {packed} has no scales", "use a complete checkpoint")
        if self.quant is not None and scales and (len(scales) > 1 or (packed in self.files and name in self.files)):
            raise EngineError(f"{self.files.folder} holds {name.rpartition('.')[0]} in two forms", "keep one of them")
        return name if name in self.files else packed

    def _scales(self, name: str) -> list[str]:
        """The tensors that hold the scales of `name`, of all spellings."""
        base, _, leaf = name.rpartition(".")
        return [f"{base}.{s}" for s in _SCALES if f"{base}.{s}" in self.files] if leaf == "weight" else []

    def _second(self, base: str) -> Tensor | None:
        """NVFP4's global scale on the decoding side: stored so, or as its inverse (compressed-tensors)."""
        for leaf, inverse in (("weight_scale_2", False), ("weight_global_scale", True)):
            if f"{base}.{leaf}" in self.files:
                scale = self.files.pop(f"{base}.{leaf}").float()
                return scale.reciprocal() if inverse else scale
        return None


def _aligned(cut: Cut, grid: int, codes: int) -> tuple[Cut, Cut | None, slice]:
    """What of the codes and of the scales `cut` needs, and where it lies in what they decode to.

    grid: places that share a scale; codes: places in one element of the codes. None: all scales.
    """
    if grid >= cut.whole and codes == 1:  # one scale serves all places
        return cut, None, slice(None)
    start, stop = cut.start // grid * grid, min(-(-cut.stop // grid) * grid, cut.whole)
    of_codes = replace(cut, start=start // codes, stop=stop // codes, whole=cut.whole // codes)
    of_scales = replace(cut, start=start // grid, stop=-(-stop // grid), whole=-(-cut.whole // grid))
    return of_codes, of_scales, slice(cut.start - start, cut.stop - start)

"""Linear layers replaced by quantised ones after loading, and the account of what that left in memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kernels import Kernels
from engine.layers import packed_rows
from engine.mode import QuantMode
from engine.quant.experts import QuantExperts
from engine.quant.fp8 import DIALECTS
from engine.quant.linear import ACTIVATIONS, QuantLinear
from engine.quant.online import RECIPE_EXCLUDE, OnlineQuantConfig, Resolved, linear_names, resolve, warnings
from engine.quant.weights import WEIGHT_FORMATS, WeightOptions

# format -> quant_type and quant_dtype of the record
KINDS = {
    "ptpc_fp8": ("per_token", "fp8"),
    "per_block_fp8": ("per_block", "fp8"),
    "per_block128_fp8": ("per_1x128", "fp8"),
    "mxfp8": ("per_1x32", "fp8"),
    "mxfp4": ("per_1x32", "fp4"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReport:
    """Weights in memory: bytes and matrices by format, and what reading them fast takes on top.

    `nbytes` of each format counts codes, scales and biases; "plain" is everything not quantised, embeddings and norms
    included, whatever its dtype. `cached` are decoded copies beside the codes.
    """

    nbytes: Mapping[str, int]
    layers: Mapping[str, int]
    cached: int

    @property
    def total(self) -> int:
        return sum(self.nbytes.values()) + self.cached


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineQuant:
    """What quantise_models did: the record that ATOM writes as online_quant_info, and sentences to show."""

    info: Mapping[str, Any]
    notes: tuple[str, ...]


def config_of(config: EngineConfig, mode: QuantMode) -> OnlineQuantConfig:
    """online_quant_config where it is given, else the mode's weights for all layers but experts, as the recipe has it.

    Raises EngineError where both name a weight format.
    """
    online = mode.w in WEIGHT_FORMATS
    if not config.online_quant_config:
        return OnlineQuantConfig(global_format=mode.w if online else None, exclude=RECIPE_EXCLUDE)
    if online:
        raise EngineError(f"weights are asked for twice: w={mode.w} and online_quant_config", "leave one of them away")
    return OnlineQuantConfig.parse(config.online_quant_config)


def scales_rows(config: EngineConfig, mode: QuantMode) -> bool:
    """Whether any layer may get one scale for a whole row, which a rank that has a part of the row must know."""
    online = config_of(config, mode)
    return "ptpc_fp8" in (online.global_format, *(name for _, name in online.layers))


def quantise_models(
    config: EngineConfig, mode: QuantMode, models: Mapping[str, tuple[nn.Module, Mapping[str, tuple[str, ...]]]],
    kernels: Kernels | None = None,
) -> OnlineQuant:  # fmt: skip
    """Quantise "target" and, where there is one, "draft" in place, as the mode or online_quant_config says.

    models: name -> module and its map of parameters to checkpoint tensors. Decoded copies are kept on a CPU, where
    decoding at each step would take longer than the product, unless kernels multiply there. Raises EngineError for a
    configuration that does not fit.
    """
    start = time.perf_counter()
    online = config_of(config, mode)
    found: dict[str, Resolved] = {}
    for name, (module, tensors) in models.items():
        prefix = "" if name == "target" else f"{name}."
        sources = {prefix + layer: kind for layer, kind in getattr(module, "stored", {}).items()}
        found[name] = resolve(online, linear_names(module, tensors, prefix), sources)
        device = next(module.parameters()).device
        quantise_module(module, found[name], mode=mode, cache=device.type == "cpu", kernels=kernels)
    notes = warnings(online, found["target"], found.get("draft")) if config.online_quant_config else ()
    info = {
        "model": str(config.model),
        "online_quant_config": online.to_json(),
        "elapsed_seconds": round(time.perf_counter() - start, 3),
        **online_quant_layers(found.values()),
    }
    return OnlineQuant(info=info, notes=notes)


def quantise_module(
    module: nn.Module, resolved: Resolved, *, mode: QuantMode, cache: bool = False, kernels: Kernels | None = None
) -> None:
    """Replace the layers that `resolved` names by QuantLinear, stacked experts by a list of them, in place.

    Old weights are freed. Raises EngineError for a layer whose width is no multiple of its format's block.
    """
    options = weight_options(mode)
    for layer in resolved.layers:
        if (name := resolved.formats.get(layer.path)) is None:
            continue
        parent, _, last = layer.path.rpartition(".")
        owner = module.get_submodule(parent)
        old = getattr(owner, last)
        weight = old.weight if isinstance(old, nn.Linear) else old
        if weight.shape[-1] % WEIGHT_FORMATS[name].multiple:
            raise EngineError(f"{layer.name} is {weight.shape[-1]} wide, {name} needs a multiple of "
                              f"{WEIGHT_FORMATS[name].multiple}", f"exclude {layer.name}")  # fmt: skip
        make = partial(QuantLinear, format=name, act=act_of(name, mode), options=options, cache=cache, kernels=kernels)
        if isinstance(old, nn.Linear):
            rows = packed_rows(module, f"{layer.path}.weight")
            new = make(weight, bias=old.bias, packed=rows, row_amax=getattr(old, "row_amax", None))
        else:
            rows = packed_rows(module, layer.path)[: len(layer.parts) // len(weight)]
            amax = getattr(owner, f"{last}_amax", [None] * len(weight))
            made = (make(w, packed=rows, row_amax=a) for w, a in zip(weight, amax, strict=True))
            new = QuantExperts(made, len(weight))
        delattr(owner, last)  # a parameter gives way to no module
        setattr(owner, last, new)


def act_of(name: str, mode: QuantMode) -> str:
    """Activations of a layer in format `name`: as the mode says, where it says it of this format."""
    if mode.w in WEIGHT_FORMATS:
        return mode.quantised_act
    return "" if name == "mxfp4" else ACTIVATIONS[name][0]


def weight_options(mode: QuantMode) -> WeightOptions:
    return WeightOptions(fp8=DIALECTS[mode.fp8], mxfp4_scale=mode.mxfp4_scale, mxfp8_scale=mode.mxfp8_scale)


def online_quant_layers(found: Any) -> dict[str, Any]:
    """num_layers and layers of the online_quant_info record. The experts of a layer are one layer, as in ATOM."""
    pairs = [(x.name, kind) for one in found for x in one.layers if (kind := one.formats.get(x.path))]
    layers = [
        {"layer": name, "quant_type": KINDS[kind][0], "quant_dtype": KINDS[kind][1]}
        for name, kind in dict.fromkeys(pairs)
    ]
    return {"num_layers": len(layers), "layers": layers}


def weight_report(*modules: nn.Module) -> WeightReport:
    """The account of these modules; what two of them share counts once."""
    nbytes: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    seen: set[int] = set()
    cached = 0
    for module in modules:
        for child in module.modules():
            if isinstance(child, QuantLinear):
                nbytes[child.format.name] += child.nbytes
                layers[child.format.name] += 1
                cached += child.cached_nbytes
                continue
            for p in child.parameters(recurse=False):
                if p.data_ptr() not in seen:
                    seen.add(p.data_ptr())
                    nbytes["plain"] += p.nbytes
    return WeightReport(nbytes=dict(nbytes), layers=dict(layers), cached=cached)

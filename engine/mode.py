"""QuantMode: the storage format of each tensor family, by a preset's name or as `w=ptpc_fp8 kv=nvfp4`.

Standard library only: engine.quant has the formats themselves.

What public sources leave open is a word of its own with a stated default, so that a run's record says what was taken:

kv[dense]     kv=nvfp4 in a target that has block-sparse layers keeps its dense layers in fp8; elsewhere as kv
kv[draft]     the draft's own keys and values, in the compute dtype
index_fp4     nv (72 bytes for 128 values, the size in deployment notes) or mx (68 bytes)
kv_scale      global_scale_dec of nvfp4 keys and values; 1, as public cache records carry none
mxfp4_scale   how mxfp4 picks a block's scale online: even, as ATOM does
mxfp8_scale   the same for mxfp8: down, the OCP default, since ATOM's rule was not found
fp8           e4m3fn, or e4m3fnuz as on gfx942
act           of mxfp4 weights: as they are, unless mxfp4 or mxfp8 is asked for
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from engine.errors import EngineError, nearest

DTYPES = ("float32", "bf16")
AUTO = "auto"  # a dtype that depends on the device: float32 on a CPU, bf16 on an accelerator
KV_FORMATS = (*DTYPES, "fp8", "nvfp4")
INDEX_FORMATS = (*DTYPES, "fp8", "fp4")
ONLINE_FORMATS = ("ptpc_fp8", "per_block_fp8", "per_block128_fp8", "mxfp4", "mxfp8")
ACT_OF = {  # weight format -> quantised activations that go with it
    "ptpc_fp8": ("fp8",),
    "per_block_fp8": ("fp8",),
    "per_block128_fp8": ("fp8",),
    "mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4", "mxfp8"),
}
_INDEX_OF = {"fp8": "fp8", "nvfp4": "fp4"}  # the index follows the KV cache
_CHOICES = {  # word -> what may follow its =
    "w": (*DTYPES, *ONLINE_FORMATS),
    "act": (*DTYPES, "fp8", "mxfp8", "mxfp4"),
    "kv": KV_FORMATS,
    "index": INDEX_FORMATS,
    "index_fp4": ("nv", "mx"),
    "mxfp4_scale": ("even", "down", "ceil", "up"),
    "mxfp8_scale": ("even", "down", "ceil", "up"),
    "fp8": ("e4m3fn", "e4m3fnuz"),
}
_FAMILIES = ("w", "act", "kv", "index")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What a band of the published MiniMax-M3.1-Flash recipe asks for beside its formats.

    concurrency: of the band, both ends in it. The switches name paths of the engine; a run's record says which of
    them served it. prefill_decode_interval: the prefill delayer's, 0 is off.
    """

    concurrency: tuple[int, int]
    mono: bool = False
    fused_verify_topk: bool = False
    prefill_decode_interval: int = 0
    k: int = 7


@dataclass(frozen=True, slots=True)
class QuantMode:
    """Storage format of each tensor family: weights, activations, KV cache, index cache.

    `dtype` is what is computed in, and what weights and activations are in that are not quantised. `name` is how the
    mode was asked for, in its shortest form. `kv_layers` holds formats of single target layers.
    """

    name: str
    w: str
    act: str
    kv: str
    index: str
    dtype: str
    kv_dense: str = AUTO
    kv_draft: str = AUTO
    kv_layers: tuple[tuple[int, str], ...] = ()
    index_fp4: str = "nv"
    kv_scale: float = 1.0
    mxfp4_scale: str = "even"
    mxfp8_scale: str = "down"
    fp8: str = "e4m3fn"
    band: Band | None = field(default=None)

    @classmethod
    def parse(cls, words: str, dtype: str = "float32") -> QuantMode:
        """The mode of a preset's name, or of words such as `w=ptpc_fp8 kv=nvfp4 kv[draft]=bf16`.

        Spaces or commas part the words. Activations follow the weights and the index the KV cache, unless named. A
        preset's name may come first and be changed by what follows. `dtype` is what a family is in that is not named;
        it may be "auto". Raises EngineError for a word that is not known or does not fit the others.
        """
        if dtype not in (*DTYPES, AUTO):
            raise EngineError(f"unknown dtype {dtype!r}", f"use {AUTO} or one of {', '.join(DTYPES)}")
        given: dict[str, str] = {}
        start: dict[str, str] = {}
        band = None
        for at, word in enumerate(re.split(r"[\s,]+", words.strip())):
            key, mark, value = word.partition("=")
            if mark and key in given:
                raise EngineError(f"quant mode {words!r} gives {key} twice", "give it once")
            if mark:
                given[key] = value
            elif at == 0 and word in PRESETS:
                text, band = PRESETS[word]
                start = _split(text)
            else:
                hint = nearest(word, tuple(PRESETS)) if word not in PRESETS else "put the one preset first; "
                raise EngineError(f"unknown quant mode {word!r}",
                                  f"{hint}use one of {', '.join(PRESETS)}, or words such as kv=nvfp4")  # fmt: skip
        name = _shortest(_made(start | given, AUTO, words), band)
        return replace(_made(start | given, dtype, words), name=name, band=band)

    @classmethod
    def canonical(cls, words: str) -> str:
        """The one spelling of a mode: a preset's name where it is one, else the words that differ from defaults."""
        return cls.parse(words, AUTO).name

    def kv_dtype(self, layer: int, *, sparse: Sequence[bool]) -> str:
        """Name in engine.quant.FORMATS of a target layer's keys and values; `sparse` says of each layer if it is."""
        kind = dict(self.kv_layers).get(layer, self.kv if sparse[layer] else self._dense(any(sparse)))
        return self._stored(kind)

    def kv_formats(self, *, sparse: Sequence[bool], draft_layers: int = 0) -> tuple[str, ...]:
        """Formats of all target layers, then of the draft's. Raises EngineError for a layer that is not there."""
        bad = [layer for layer, _ in self.kv_layers if layer >= len(sparse)]
        if bad:
            raise EngineError(f"quant mode {self.name!r} names layer {bad[0]}, the target has {len(sparse)}",
                              f"use kv[0] to kv[{len(sparse) - 1}]")  # fmt: skip
        draft = self._stored(self.dtype if self.kv_draft == AUTO else self.kv_draft)
        return (*(self.kv_dtype(i, sparse=sparse) for i in range(len(sparse))), *[draft] * draft_layers)

    @property
    def index_format(self) -> str:
        """Name in engine.quant.INDEX_FORMATS of the indexer's keys."""
        if self.index == "fp4":
            return f"fp4_{self.index_fp4}"
        return self._stored(self.index)

    @property
    def quantised_act(self) -> str:
        """The activations' format, or "" where they stay in the compute dtype."""
        return "" if self.act in (*DTYPES, AUTO) else self.act

    def families(self) -> dict[str, str]:
        """The four formats by family, "auto" where the device decides."""
        return {name: getattr(self, name) for name in _FAMILIES}

    def __str__(self) -> str:
        return " ".join([f"{name}={value}" for name, value in self.families().items()] + _details(self))

    def _dense(self, hybrid: bool) -> str:
        if self.kv_dense != AUTO:
            return self.kv_dense
        return "fp8" if hybrid and self.kv == "nvfp4" else self.kv

    def _stored(self, kind: str) -> str:
        if kind == "fp8" and self.fp8 == "e4m3fnuz":
            return "fp8_fnuz"
        return f"nvfp4@{self.kv_scale:g}" if kind == "nvfp4" and self.kv_scale != 1.0 else kind


PRESETS: Mapping[str, tuple[str, Band | None]] = {
    "float32": ("w=float32 kv=float32", None),
    "bf16": ("w=bf16 kv=bf16", None),
    "fp8": ("kv=fp8", None),
    "nvfp4": ("kv=nvfp4", None),
    "ptpc-fp8": ("w=ptpc_fp8", None),
    "m31flash-c1-4": ("w=ptpc_fp8 kv=fp8", Band(concurrency=(1, 4), mono=True, prefill_decode_interval=20000)),
    "m31flash-c8-16": ("w=ptpc_fp8 kv=fp8", Band(concurrency=(8, 16), mono=True)),
    "m31flash-c32-48": ("w=ptpc_fp8 kv=nvfp4", Band(concurrency=(32, 48), fused_verify_topk=True)),
}


def _made(given: dict[str, str], dtype: str, words: str) -> QuantMode:
    """A QuantMode of words that are known by key, with every default filled in."""
    for key, value in given.items():
        if key.startswith("kv[") or key == "kv_scale":
            continue
        if key not in _CHOICES:
            keys = (*_CHOICES, "kv[dense]", "kv[draft]", "kv[LAYER]", "kv_scale")
            raise EngineError(
                f"unknown word {key!r} in quant mode {words!r}", f"{nearest(key, keys)}use {', '.join(keys)}"
            )
        if value not in _CHOICES[key]:
            raise EngineError(
                f"quant mode {words!r} has {key}={value}",
                f"{nearest(value, _CHOICES[key])}use one of {', '.join(_CHOICES[key])}",
            )
    plain = {given[f] for f in ("w", "act") if given.get(f) in DTYPES}
    if len(plain) > 1:
        raise EngineError(f"quant mode {words!r} computes in float32 and in bf16", "give w and act one dtype")
    dtype = next(iter(plain), dtype)
    w = given.get("w", dtype)
    act = given.get("act") or (ACT_OF[w][0] if w in ACT_OF and w != "mxfp4" else dtype)
    if act not in (*DTYPES, AUTO, *ACT_OF.get(w, ())):
        fits = ", ".join((*DTYPES, *ACT_OF.get(w, ())))
        raise EngineError(f"quant mode {words!r}: w={w} does not go with act={act}", f"use act={fits}")
    kv = given.get("kv", dtype)
    dense, draft, layers = _layer_formats(given, words)
    mode = QuantMode(
        name="", w=w, act=act, kv=kv, index=given.get("index", _INDEX_OF.get(kv, kv)), dtype=dtype,
        kv_dense=dense, kv_draft=draft, kv_layers=layers, kv_scale=_scale(given.get("kv_scale", "1"), words),
    )  # fmt: skip
    options = {key: given[key] for key in ("index_fp4", "mxfp4_scale", "mxfp8_scale", "fp8") if key in given}
    return replace(mode, **options)  # pyright: ignore[reportArgumentType]


def _layer_formats(given: dict[str, str], words: str) -> tuple[str, str, tuple[tuple[int, str], ...]]:
    """kv[dense], kv[draft] and the formats of single layers, from kv[3] and kv[0-2]."""
    dense = draft = AUTO
    layers: dict[int, str] = {}
    for key, value in given.items():
        if not key.startswith("kv["):
            continue
        if value not in KV_FORMATS:
            raise EngineError(f"quant mode {words!r} has {key}={value}", f"use one of {', '.join(KV_FORMATS)}")
        found = re.fullmatch(r"kv\[(?:(dense)|(draft)|(\d+)(?:-(\d+))?)\]", key)
        if found is None or (found[4] and int(found[4]) < int(found[3])) or int(found[4] or 0) > 10_000:
            raise EngineError(f"quant mode {words!r} has {key}", "use kv[dense], kv[draft], kv[3] or kv[0-2]")
        if found[1]:
            dense = value
        elif found[2]:
            draft = value
        else:
            layers |= dict.fromkeys(range(int(found[3]), int(found[4] or found[3]) + 1), value)
    return dense, draft, tuple(sorted(layers.items()))


def _scale(word: str, words: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise EngineError(f"quant mode {words!r} has kv_scale={word}", "give a positive number")
    return value


def _details(mode: QuantMode) -> list[str]:
    """The words beyond the four families that differ from their defaults."""
    out = [
        f"kv[{name}]={value}" for name, value in (("dense", mode.kv_dense), ("draft", mode.kv_draft)) if value != AUTO
    ]
    out += [f"kv[{layers}]={value}" for layers, value in _ranges(mode.kv_layers)]
    defaults = {f.name: f.default for f in fields(QuantMode)}
    for name in ("index_fp4", "kv_scale", "mxfp4_scale", "mxfp8_scale", "fp8"):
        value = getattr(mode, name)
        if value != defaults[name]:
            out.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return out


def _ranges(layers: Sequence[tuple[int, str]]) -> list[tuple[str, str]]:
    """Neighbours of one format as a range: ("0-2", "fp8") for layers 0, 1 and 2."""
    found: list[tuple[int, int, str]] = []
    for layer, value in layers:
        if found and found[-1][1:] == (layer - 1, value):
            found[-1] = (found[-1][0], layer, value)
        else:
            found.append((layer, layer, value))
    return [(str(first) if first == last else f"{first}-{last}", value) for first, last, value in found]


def _shortest(mode: QuantMode, band: Band | None) -> str:
    """How to ask for `mode`, which was made with dtype "auto": a preset's name, or the fewest words."""
    for name, (text, its_band) in PRESETS.items():
        if its_band == band and _made(_split(text), AUTO, name) == mode:
            return name
    base = next((name for name, (_, its_band) in PRESETS.items() if band and its_band == band), "")
    start = _split(PRESETS[base][0]) if base else {}
    words = {name: value for name, value in mode.families().items() if value != AUTO and start.get(name) != value}
    words |= _split(" ".join(_details(mode)))
    for name in ("index", "act", "w", "kv"):
        fewer = {key: value for key, value in words.items() if key != name}
        with contextlib.suppress(EngineError):  # some words only go together
            if name in words and _made(start | fewer, AUTO, base) == mode:
                words = fewer
    return " ".join([base] * bool(base) + [f"{key}={value}" for key, value in words.items()])


def _split(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())

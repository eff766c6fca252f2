"""Which linear layers are quantised after loading, and into what: the meaning of ATOM's `--online_quant_config`.

A JSON object with `global_quant_config` (a format), `layer_quant_config` (pattern -> format, the first that matches
counts) and `exclude_layer` (a pattern or a list). Layers go by the checkpoint's names; the draft's have `draft.` in
front. A packed layer answers to its own name (`...self_attn.qkv_proj`) and to those of its parts (`...q_proj`), which
must agree. The experts of a layer are two stacks, of w1 and w3 and of w2; both answer to `...block_sparse_moe.experts`.

An exclusion matches a name that equals it or lies below it (`prefix.`), as a glob, as a glob with `.*` behind it,
or after `re:` as a regular expression from the name's start. A layer's pattern is a glob where it has a `*`, else a
name or what the name lies below. (ATOM asks there if the layer's name is part of the pattern; this does not.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from engine.errors import EngineError, nearest
from engine.quant.weights import WEIGHT_FORMATS

KEYS = ("global_quant_config", "layer_quant_config", "exclude_layer")
# Never quantised, whatever is asked for: embeddings, logits, routers, and of a draft all but its decoder layers.
ALWAYS = ("lm_head", "model.embed_tokens", "*.gate", "draft.fc", "draft.markov_head", "draft.confidence_head",
          "draft.lm_head", "draft.embed_tokens")  # fmt: skip
RECIPE_EXCLUDE = ("*block_sparse_moe",)  # of the published recipe: experts keep what they were loaded in, shared too


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineQuantConfig:
    """The parsed object. `global_format` None quantises only what `layers` names."""

    global_format: str | None = None
    layers: tuple[tuple[str, str], ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> OnlineQuantConfig:
        """The configuration of JSON text. Raises EngineError for anything it does not know."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise EngineError(
                f"online_quant_config is no JSON ({e})", 'give {"global_quant_config": "ptpc_fp8"}'
            ) from None
        if not isinstance(raw, dict):
            raise EngineError(f"online_quant_config is a {type(raw).__name__}", "give a JSON object")
        for key in raw:
            if key not in KEYS:
                raise EngineError(f"online_quant_config has {key!r}", f"{nearest(key, KEYS)}use {', '.join(KEYS)}")
        layers, exclude = raw.get("layer_quant_config") or {}, raw.get("exclude_layer") or []
        exclude = [exclude] if isinstance(exclude, str) else exclude
        if not isinstance(layers, dict) or not isinstance(exclude, list) or any(type(e) is not str for e in exclude):
            raise EngineError("online_quant_config: layer_quant_config must be an object of pattern to format, "
                              "exclude_layer a string or a list of strings", "see docs/quant.md")  # fmt: skip
        for pattern in exclude:
            _check_regex(pattern)
        whole = raw.get("global_quant_config")
        return cls(
            global_format=None if whole is None else _format(whole),
            layers=tuple((pattern, _format(value)) for pattern, value in layers.items()),
            exclude=tuple(exclude),
        )

    def to_json(self) -> dict[str, Any]:
        """The object again, in its own words."""
        return {
            "global_quant_config": self.global_format,
            "layer_quant_config": dict(self.layers),
            "exclude_layer": list(self.exclude),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerName:
    """A linear layer or a stack of experts: where it is in its module, what a checkpoint calls it, and its parts."""

    path: str
    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """formats: path of a layer -> its format; kept: layer's name -> why it stays; matched: patterns that name one."""

    layers: tuple[LayerName, ...]
    formats: Mapping[str, str]
    kept: Mapping[str, str] = field(default_factory=dict)
    matched: frozenset[str] = frozenset()


def linear_names(module: nn.Module, names: Mapping[str, tuple[str, ...]], prefix: str = "") -> Iterator[LayerName]:
    """Every nn.Linear and every stack of experts of `module`. names: parameter -> checkpoint tensors, as
    weights.target_names gives it."""
    for path, child in module.named_modules():
        if isinstance(child, nn.Linear):
            tensors = names.get(f"{path}.weight", (f"{path}.weight",))
            parts = tuple(prefix + t.removesuffix(".weight") for t in tensors)
            yield LayerName(path=path, name=_packed_name(parts), parts=parts)
        for leaf, p in child.named_parameters(recurse=False):
            if p.ndim == 3:
                parts = tuple(prefix + t.removesuffix(".weight") for t in names[f"{path}.{leaf}"])
                yield LayerName(path=f"{path}.{leaf}", name=parts[0].rsplit(".", 2)[0], parts=parts)


def resolve(
    config: OnlineQuantConfig, layers: Iterable[LayerName], sources: Mapping[str, str] | None = None
) -> Resolved:
    """What becomes of each layer: kept, or the first format that names it, or the global one.

    sources: format a layer, or a part of it, was stored in, by name; one stored as mxfp4 is not quantised again.
    Raises EngineError where parts of a packed layer would differ.
    """
    formats: dict[str, str] = {}
    kept: dict[str, str] = {}
    seen: set[str] = set()
    found = tuple(layers)
    for layer in found:
        decisions = {part: _decide(config, (part, layer.name), seen) for part in layer.parts}
        if len({what for what, _ in decisions.values()}) > 1:
            parent = layer.name if layer.parts[0].startswith(f"{layer.name}.") else layer.name.rpartition(".")[0]
            first: dict[tuple[str, str], str] = {}
            for part, decision in decisions.items():
                first.setdefault(decision, part.removeprefix(f"{parent}."))
            said = ", ".join(f"{part}: {what or why}" for (what, why), part in first.items())
            raise EngineError(f"online_quant_config treats the parts of {layer.name} differently ({said})",
                              f"name {layer.name}, or all of its parts alike")  # fmt: skip
        what, why = next(iter(decisions.values()))
        if what and any((sources or {}).get(name) == "mxfp4" for name in (layer.name, *layer.parts)):
            what, why = "", "stored as mxfp4"
        if what:
            formats[layer.path] = what
        else:
            kept[layer.name] = why
    return Resolved(layers=found, formats=formats, kept=kept, matched=frozenset(seen))


def warnings(config: OnlineQuantConfig, target: Resolved, draft: Resolved | None = None) -> tuple[str, ...]:
    """What a reader of the configuration might not expect, a sentence each."""
    matched = target.matched | (draft.matched if draft else frozenset())
    patterns = dict.fromkeys([*config.exclude, *(pattern for pattern, _ in config.layers)])
    out = []
    if lost := [pattern for pattern in patterns if pattern not in matched]:
        out.append(f"online_quant_config: no layer matches {', '.join(lost)}")
    if draft and target.formats and not draft.formats:
        out.append("online_quant_config: the target is quantised, the draft is not; its layers are draft.layers.*")
    return tuple(out)


def excludes(pattern: str, name: str) -> bool:
    """Does an entry of exclude_layer match a layer's name?"""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if name == pattern or name.startswith(pattern + "."):
        return True
    return "*" in pattern and (fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*"))


def names_layer(pattern: str, name: str) -> bool:
    """Does a key of layer_quant_config match a layer's name?"""
    return fnmatchcase(name, pattern) if "*" in pattern else name == pattern or name.startswith(pattern + ".")


def _decide(config: OnlineQuantConfig, names: tuple[str, str], seen: set[str]) -> tuple[str, str]:
    """(format, "") or ("", why it stays). Adds the patterns that match to `seen`, the ones without effect too."""
    hits = [p for p in config.exclude if any(excludes(p, n) for n in names)]
    wanted = [(p, f) for p, f in config.layers if any(names_layer(p, n) for n in names)]
    seen.update(hits, (p for p, _ in wanted))
    if any(excludes(p, n) for p in ALWAYS for n in names):
        return "", "never quantised"
    if hits:
        return "", f"excluded by {hits[0]}"
    if wanted:
        return wanted[0][1], ""
    return (config.global_format, "") if config.global_format else ("", "not named")


def _packed_name(parts: tuple[str, ...]) -> str:
    """`...self_attn.qkv_proj` of q, k, v (and index) parts, `...gate_up_proj` of gate and up; else the one part."""
    if len(parts) == 1:
        return parts[0]
    parent, last = parts[0].rpartition(".")[0], [part.rpartition(".")[2].removesuffix("_proj") for part in parts]
    joined = {("q", "k", "v"): "qkv", ("index_q", "index_k"): "index_qk"}.get(tuple(last), "_".join(last))
    return f"{parent}.{joined}_proj"


def _format(word: Any) -> str:
    known = tuple(WEIGHT_FORMATS)
    if not isinstance(word, str) or word.lower() not in known:
        hint = nearest(str(word).lower(), known)
        raise EngineError(f"online_quant_config has the format {word!r}", f"{hint}use one of {', '.join(known)}")
    return word.lower()


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
    except re.error as e:
        raise EngineError(f"online_quant_config excludes {pattern!r}, no regular expression ({e})", "mend it") from None

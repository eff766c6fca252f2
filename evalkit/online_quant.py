"""Weights quantised after loading (`--online-quant-config`): what was asked, in one spelling. Standard library only.

`float32` with such a configuration is not float32: whatever names a quant mode or compares two settings has to know it.
A configuration that can quantise nothing (`{}`, only exclusions), or of which the engine says that no layer matched, is
the setting without one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELD = "online_quant_config"
WHOLE, LAYERS, EXCLUDE = "global_quant_config", "layer_quant_config", "exclude_layer"


def canonical(config: str | Mapping[str, Any] | None) -> str:
    """The one JSON text of a configuration (text or object); "" where it asks for nothing.

    Formats in small letters, exclusions sorted, layers in their order (the first that matches counts), what is empty
    left out. What is no such object stays as it is: it is something else than nothing.
    """
    raw: Any = config
    if isinstance(config, str):
        try:
            raw = json.loads(config) if config.strip() else {}
        except (ValueError, RecursionError):
            return config.strip()
    if not raw:
        return ""
    if not isinstance(raw, Mapping):
        return json.dumps(raw)
    out = {name: value for name, value in sorted(raw.items()) if name not in (WHOLE, LAYERS, EXCLUDE) and value}
    whole, layers, exclude = raw.get(WHOLE), raw.get(LAYERS), raw.get(EXCLUDE)
    if not (out or whole or layers):
        return ""
    out |= {WHOLE: _format(whole)} if whole else {}
    out |= (
        {LAYERS: {n: _format(v) for n, v in layers.items()} if isinstance(layers, Mapping) else layers}
        if layers
        else {}
    )
    if exclude:
        listed = [exclude] if isinstance(exclude, str) else exclude
        out[EXCLUDE] = sorted({str(e) for e in listed}) if isinstance(listed, list | tuple) else listed
    return json.dumps(out)


def asked(cell: Mapping[str, Any], provenance: Mapping[str, Any] | None = None) -> str:
    """What a run's cell asks for, canonical; "" for nothing, and where the engine recorded that no layer matched."""
    info = (provenance or {}).get("online_quant_info")
    matched = info.get("num_layers") if isinstance(info, Mapping) else None
    return "" if type(matched) is int and matched == 0 else canonical(cell.get(FIELD))


def words(config: str) -> str:
    """A canonical configuration in a word for labels and ids: `online=ptpc_fp8`; with the start of its hash where it
    does not treat all layers alike. "" for nothing."""
    if not config:
        return ""
    try:
        raw = json.loads(config)
    except ValueError:
        raw = {}
    known = raw if isinstance(raw, dict) else {}
    layers = known.get(LAYERS)
    named = [known.get(WHOLE), *(layers.values() if isinstance(layers, dict) else ())]
    formats = "+".join(dict.fromkeys(str(f) for f in named if f)) or "other"
    return f"online={formats}" + (
        "" if set(known) == {WHOLE} else f"~{hashlib.sha256(config.encode()).hexdigest()[:6]}"
    )


def quant_name(cell: Mapping[str, Any], provenance: Mapping[str, Any] | None = None) -> str:
    """The quant mode of a cell for people, with what was quantised after loading: `float32 online=ptpc_fp8`."""
    mode = cell.get("quant")
    return " ".join(w for w in ("" if mode is None else str(mode), words(asked(cell, provenance))) if w)


def _format(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value

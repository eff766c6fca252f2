"""Reading config.json: one JSON object, fields with several spellings. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import EngineError

# what a multimodal config.json may say beside its text_config, and must not say otherwise
_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises EngineError when it is absent, unreadable or no object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path} does not exist", "give the folder of a checkpoint") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise EngineError(f"{path} cannot be read as JSON ({e})", "restore the file") from None
    if not isinstance(data, dict):
        raise EngineError(f"{path} holds a {type(data).__name__}, not an object", "restore the file")
    return data


def field(raw: dict[str, Any], path: Path, *names: str, default: Any = None) -> Any:
    """The value under the first of `names` that is there; an error where two are there and disagree."""
    found = {n: raw[n] for n in names if raw.get(n) is not None}
    if len({json.dumps(v) for v in found.values()}) > 1:
        raise EngineError(f"{path} gives {' and '.join(found)} different values", "keep one of them")
    if found:
        return next(iter(found.values()))
    if default is None:
        raise EngineError(f"{path} has no {' or '.join(names)}", "use a complete config.json")
    return default


def flags(values: list[Any], name: str, layers: int, path: Path) -> tuple[bool, ...]:
    """A list with one number a layer, as flags."""
    if len(values) != layers:
        raise EngineError(f"{path} has {len(values)} entries in {name} for {layers} layers", "give one a layer")
    return tuple(bool(v) for v in values)


def architecture(raw: dict[str, Any]) -> str:
    """The name a config.json gives its model: the first of `architectures`, else model_type."""
    inner = raw.get("text_config") or {}
    named = raw.get("architectures") or inner.get("architectures") or [raw.get("model_type") or inner.get("model_type")]
    return str(named[0])


def text_config(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of the text model: those of `text_config` before those around it. Raises EngineError on a conflict."""
    inner = raw.get("text_config")
    if not isinstance(inner, dict):
        return raw
    for name in _SHAPE:
        if name in raw and name in inner and raw[name] != inner[name]:
            raise EngineError(f"{path} gives {name} as {raw[name]} and in text_config as {inner[name]}",
                              "keep one of them")  # fmt: skip
    # transformers writes its own default of tie_word_embeddings around a text_config, which is not about the text model
    kept = {k: v for k, v in raw.items() if k not in ("text_config", "architectures", "tie_word_embeddings")}
    return kept | inner | {"architectures": [architecture(raw)]}

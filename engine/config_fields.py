"""Reading config.json: one JSON object, fields with several spellings. Standard library only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from engine.errors import EngineError

MAX_POSITIONS = 2**24  # of a context: RoPE's table has a row for each
MAX_LAYERS = 10_000
MAX_EXPERTS = 2**20  # of all layers together
MAX_DEPTH = 64  # of objects and lists in one another
# what a multimodal config.json may say beside its text_config, and must not say otherwise
_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises EngineError when it is absent, unreadable or no object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path} does not exist", "give the folder of a checkpoint") from None
    except (OSError, ValueError) as e:  # of JSON, of UTF-8, of a number with thousands of digits
        raise EngineError(f"{path} cannot be read as JSON ({e})", "restore the file") from None
    except RecursionError:
        raise _too_deep(path) from None
    if not isinstance(data, dict):
        raise EngineError(f"{path} holds a {type(data).__name__}, not an object", "restore the file")
    if any(isinstance(value, dict | list) and _deeper(value, MAX_DEPTH) for value in data.values()):
        raise _too_deep(path)
    return data


def _deeper(value: dict[str, Any] | list[Any], limit: int) -> bool:
    """Whether objects and lists stand in one another more than `limit` times."""
    level: list[Any] = [value]
    for _ in range(limit):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [x for values in inner for x in values if isinstance(x, dict | list)]
        if not level:
            return False
    return True


def _too_deep(path: Path) -> EngineError:
    return EngineError(f"{path} cannot be read as JSON (nested more than {MAX_DEPTH} deep)", "restore the file")


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


def whole(
    raw: dict[str, Any], path: Path, *names: str, default: int | None = None, low: int = 0, high: int = 2**53
) -> int:
    """A whole number from `low` to `high` under one of `names`, see field. Raises EngineError for anything else."""
    value = field(raw, path, *names, default=default)
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not is_whole or not low <= value <= high:
        upto = "" if high == 2**53 else f" to {high}"
        raise EngineError(f"{path} gives {_spelt(raw, names)} as {json.dumps(value)}",
                          f"give a whole number from {low}{upto}")  # fmt: skip
    return int(value)


def real(raw: dict[str, Any], path: Path, *names: str, default: float | None = None, above: float = -math.inf) -> float:
    """A finite number greater than `above`, likewise."""
    value = field(raw, path, *names, default=default)
    is_real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_real or value <= above:
        more = "" if above == -math.inf else f" above {above:g}"
        raise EngineError(f"{path} gives {_spelt(raw, names)} as {json.dumps(value)}", f"give a number{more}")
    return float(value)


def switch(raw: dict[str, Any], path: Path, name: str, default: bool) -> bool:
    """true or false, likewise; null is the default."""
    value = raw.get(name)
    if value is None:
        return default
    if value not in (0, 1) or isinstance(value, float):
        raise EngineError(f"{path} gives {name} as {json.dumps(value)}", "give true or false")
    return bool(value)


def table(raw: dict[str, Any], path: Path, name: str) -> dict[str, Any]:
    """An object, likewise; {} where there is none."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise EngineError(f"{path} gives {name} as {json.dumps(value)[:40]}", "give an object, or leave it out")
    return value


def listed(raw: dict[str, Any], path: Path, *names: str, default: list[Any] | None = None) -> list[Any]:
    """A list, likewise."""
    value = field(raw, path, *names, default=default)
    if not isinstance(value, list):
        raise EngineError(f"{path} gives {_spelt(raw, names)} as {json.dumps(value)[:40]}", "give a list")
    return value


def flags(raw: dict[str, Any], path: Path, name: str, layers: int, default: int) -> tuple[bool, ...]:
    """A list with one number a layer, as flags; `default` in each where there is none."""
    values = listed(raw, path, name, default=[default] * layers)
    if len(values) != layers:
        raise EngineError(f"{path} has {len(values)} entries in {name} for {layers} layers", "give one a layer")
    if bad := [v for v in values if not isinstance(v, int)]:
        raise EngineError(f"{path} has {json.dumps(bad[0])} in {name}", "give 0 or 1 a layer")
    return tuple(bool(v) for v in values)


def _spelt(raw: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((n for n in names if raw.get(n) is not None), names[0])


def architecture(raw: dict[str, Any]) -> str:
    """The name a config.json gives its model: the first of `architectures`, else model_type.

    Raises EngineError where they are no list of names and no name.
    """
    inner = raw.get("text_config")
    places = (raw, inner) if isinstance(inner, dict) else (raw,)
    lists = [p["architectures"] for p in places if p.get("architectures") is not None]
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise EngineError(f"config.json gives architectures as {json.dumps(names)[:40]}", "give a list of names")
    types = [p["model_type"] for p in places if p.get("model_type") is not None]
    if bad := [t for t in types if not isinstance(t, str)]:
        raise EngineError(f"config.json gives model_type as {json.dumps(bad[0])[:40]}", "give a name")
    return next((n for n in [*(names[0] for names in lists if names), *types] if n), "")


def text_config(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of the text model: those of `text_config` before those around it. Raises EngineError on a conflict."""
    inner = table(raw, path, "text_config")
    if not inner:
        return raw
    for name in _SHAPE:
        if name in raw and name in inner and raw[name] != inner[name]:
            raise EngineError(f"{path} gives {name} as {raw[name]} and in text_config as {inner[name]}",
                              "keep one of them")  # fmt: skip
    # transformers writes its own default of tie_word_embeddings around a text_config, which is not about the text model
    kept = {k: v for k, v in raw.items() if k not in ("text_config", "architectures", "tie_word_embeddings")}
    return kept | inner | {"architectures": [architecture(raw)]}

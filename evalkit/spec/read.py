"""A specification's YAML, checked against schema.json and made into records. Every error is one line with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import nearest
from evalkit.errors import EvalkitError
from evalkit.spec.build import build_cells
from evalkit.spec.model import CellSpec, Spec

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMA_FILE = Path(__file__).parent / "schema.json"
KINDS = ("run", "setting", "sweep", "published", "figures")
GUIDE = "docs/gate-spec.md has every key"
SHOWN = 5  # unknown keys that are named


def looks_like_spec(word: str) -> bool:
    """Whether a word of the command line names a specification: a YAML file, never a run's folder or id."""
    path = Path(word)
    return path.suffix.lower() in (".yaml", ".yml") and not path.is_dir()


def read_spec(path: Path) -> Spec:
    """The specification in a file. Raises EvalkitError with the place of what is wrong, and the nearest known name."""
    data = _parsed(path)
    check(data, path.name)
    common = data.get("setting", {})
    cells: list[CellSpec] = []
    for i, cell in enumerate(data["cells"]):
        cells += build_cells(cell, data, common, f"{path.name}: cells[{i}]")
    if data.get("in_order") and data.get("holm"):
        raise EvalkitError(f"{path.name} has both holm and in_order: true", "keep one of them")
    names = [c.name for c in cells]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise EvalkitError(f"{path.name}: two cells are called {twice[0]!r}", "give each its own name")
    return Spec(
        name=data["name"], path=path, folder=path.resolve().parent, alpha=data.get("alpha", 0.05),
        holm=data.get("holm", True), in_order=data.get("in_order", False), cells=tuple(cells),
        scores=data.get("scores", "golden/reference_scores.yaml"),
    )  # fmt: skip


def load_schema() -> dict[str, Any]:
    """The published schema: the file beside this module, read at each call."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def check(data: Any, name: str) -> None:
    """Refuses what the schema does not allow, the deepest error of the first place."""
    from jsonschema import Draft202012Validator

    errors = sorted(
        Draft202012Validator(load_schema()).iter_errors(data), key=lambda e: [str(p) for p in e.absolute_path]
    )
    if errors:
        first = _error(errors[0], name)
        places = {tuple(e.absolute_path) for e in errors[1:]}
        more = f" (wrong at {len(places) + 1} places, this the first)" if places else ""
        raise EvalkitError(f"{first.what}{more}", first.fix)
    for i, cell in enumerate(data["cells"]):
        given = [kind for kind in KINDS if kind in cell]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise EvalkitError(f"{name}: cells[{i}] has {found} of {', '.join(KINDS)}", "give exactly one of them")


def _error(e: ValidationError, name: str) -> EvalkitError:
    place = _place(e.absolute_path)
    where = f"{name}: {place}" if place else name
    schema = e.schema if isinstance(e.schema, Mapping) else {}
    asked: Any = e.validator_value
    given: Any = e.instance
    if e.validator == "additionalProperties" and "properties" in schema:
        known = tuple(schema["properties"])
        odd = sorted(str(key) for key in set(given) - set(known))
        noun = "an unknown key" if len(odd) == 1 else f"{len(odd)} unknown keys"
        hints = "".join(nearest(name, known) for name in odd[:SHOWN])
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        words = ", ".join(map(repr, odd[:SHOWN])) + more
        return EvalkitError(f"{where} has {noun} {words}", f"{hints}use {', '.join(known)}")
    if e.validator == "required":
        missing = next(key for key in asked if key not in given)
        return EvalkitError(f"{where} has no {missing!r}", GUIDE)
    if e.validator == "dependentRequired":
        return EvalkitError(f"{where}: {e.message}", GUIDE)
    if e.validator in ("enum", "const"):
        known = tuple(map(str, asked)) if e.validator == "enum" else (str(asked),)
        hint = nearest(str(given), known)
        return EvalkitError(f"{where} is {given!r}", f"{hint}use {', '.join(known)}")
    told = schema.get("description", "")
    return EvalkitError(f"{where}: {e.message}", f"{told} {GUIDE}".strip())


def _place(path: Any) -> str:
    """`cells[2].margins.accuracy`"""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _days_as_text(value: Any) -> Any:
    """YAML reads 2026-12-31 as a date; the schema knows text."""
    if isinstance(value, dict):
        return {key: _days_as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_days_as_text(inner) for inner in value]
    return value.isoformat() if isinstance(value, date) else value


def _parsed(path: Path) -> Any:
    from evalkit.yamlfile import parse_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EvalkitError(f"no specification {path}", "give a YAML file; docs/examples/ has some") from None
    except (OSError, UnicodeDecodeError) as e:
        raise EvalkitError(f"{path} cannot be read ({e})", "give a YAML file") from None
    try:
        data = _days_as_text(parse_yaml(text))
    except ValueError as e:
        raise EvalkitError(f"{path.name}: {e}", "mend it") from None
    if not isinstance(data, dict):
        raise EvalkitError(f"{path.name} is no specification: it holds no keys", GUIDE)
    if "cells" not in data and "schema" not in data:
        keys = ", ".join(map(str, list(data)[:3]))
        raise EvalkitError(f"{path.name} is no gate specification: it has {keys} and no cells",
                           "give a specification (docs/gate-spec.md), or a stored run's id or folder")  # fmt: skip
    return data

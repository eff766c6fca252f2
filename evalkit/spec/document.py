"""docs/gate-spec.md: the keys of a specification, made from schema.json by `python -m evalkit.spec.document`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalkit.config import ROOT
from evalkit.spec.read import load_schema

PAGE = ROOT / "docs" / "gate-spec.md"
SECTIONS = ("cell", "margins", "caps", "setting", "sweep", "figures", "expect", "waiver")
HEAD = """# Gate specifications

Made from `evalkit/spec/schema.json`, the schema that `evalkit gate SPEC` checks a file against, by `make fix`; nothing
here is typed by hand. Shares are in %, losses of a score in points, losses of a length in % of golden. A key that the
schema does not know is refused with the nearest one. Files are looked for from where you stand, beside the
specification, and in the checkout. Examples: `docs/examples/`.

- A check passes or fails by a one-sided test at alpha; what neither shows is inconclusive, with the amount of data that
  would tell.
- What can be compared is judged. A check that compares nothing (no baseline, another setting, no histogram) leaves the
  cell inconclusive, and is a **fail** where `checks` demands it. `evalkit gate RUN` and `evalkit run` demand what is
  named to them (`--baseline`, `--golden`); without, a task that ships no baseline, or data of your own, is inconclusive
  and says what to record.
- Runs are comparable when their fingerprints agree; a mismatch compares nothing and prints each field with both values.
- A known loss that is lived with for a while is a cell's `waiver`: an owner, a reason, a last day, and the wider margin
  at which the same tests are asked until then. It passes nothing that was not shown.
- Many faults need a batch or a layout to be seen: `twin: batch=1` or `tp=2` with `checks: [layout]` and `--run-missing`
  makes the cell's setting a second time so laid out, and asks for the same texts.
"""


def rendered() -> str:
    """The page."""
    schema = load_schema()
    out = [HEAD, "## The file", "", *_table(schema, schema)]
    for name in SECTIONS:
        part = schema["$defs"][name]
        title = "cells[]" if name == "cell" else name
        out += ["", f"## `{title}`", "", part.get("description", ""), "", *_table(part, schema)]
    against = schema["$defs"]["against"]
    out += ["", "## `against[]`", "", against["description"], "", *_table(against["items"], schema)]
    return "\n".join(out) + "\n"


def _table(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield "| key | value | default | what it says |"
    yield "|---|---|---|---|"
    must = part.get("required", ())
    for key, value in part["properties"].items():
        known = {**_followed(value, schema), **{k: v for k, v in value.items() if k != "$ref"}}
        default = "required" if key in must else _shown(known.get("default"))
        words = known.get("description", "").replace("|", "\\|")
        yield f"| `{key}` | {_kind(known, schema)} | {default} | {words} |"


def _followed(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = value.get("$ref", "")
    return schema["$defs"][ref.removeprefix("#/$defs/")] if ref else value


def _kind(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if value.get("type") == "array":
        return f"list of {_kind(_followed(value['items'], schema), schema)}"
    if value.get("type") == "object":
        return "keys"
    bounds = {"from": "minimum", "above": "exclusiveMinimum", "to": "maximum", "below": "exclusiveMaximum"}
    words = [f"{word} {value[key]:g}" for word, key in bounds.items() if key in value]
    names = {"string": "text", "boolean": "true or false", "integer": "whole number"}
    return " ".join([names.get(value["type"], "number"), *words])


def _shown(value: Any) -> str:
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main(page: Path = PAGE) -> None:
    page.write_text(rendered(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Which interrupted run a command continues: the one of the same setting, made by the same engine. Standard library.

Answers of two settings in one run would be judged as answers of the one that ended it. So everything in the cell must
be equal, but for what can change neither an answer nor its acceptance nor what serves it, and what a hash in the
fingerprint says better than a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from engine.config import EngineConfig
from evalkit.online_quant import FIELD, canonical
from evalkit.servers.spec import ServerSpec

# Threads and memory are the machine's and change the speed. Target and draft are compared by the hashes of their files.
FREE = ("threads", "memory_limit_mb", "model", "draft_path")
# How a server is reached, for how long, and whether its first answers are doubted: not what it answers.
FREE_OF_SERVER = (
    "base_url", "host", "port", "api_key_env", "api_key_file", "request_timeout", "stall_timeout", "retries", "grace",
    "start_timeout", "smoke",
)  # fmt: skip
PACKAGES = ("torch", "triton")


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why a run that was interrupted is not continued, as a clause; "" where it is. Both are heads as run.json has
    them: `cell`, `fingerprint` and `provenance`, plain JSON values."""
    if _of(old, "code") != _of(new, "code"):
        return "the engine's code has changed since"
    found = [*_cells(old["cell"], new["cell"]), *_served(old, new)]
    if found:
        return f"its setting is another one ({', '.join(f'{name} {a} / {b}' for name, a, b in found)})"
    return "" if old["fingerprint"] == new["fingerprint"] else "its fingerprint is another one"


def _cells(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, here, there) of every fact in which two cells are apart."""
    one, two = old.get("server"), new.get("server")
    if (one is None) != (two is None):
        yield "server", _word(one), _word(two)
    free = FREE if two is None else tuple(name for name in FREE if name not in ("model", "draft_path"))
    yield from _apart(_plain(old), _plain(new), (*free, "server"), _defaults(EngineConfig))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        yield from _apart(one, two, FREE_OF_SERVER, _defaults(ServerSpec))


def _plain(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {**cell, FIELD: canonical(cell.get(FIELD))}


def _apart(
    one: Mapping[str, Any], two: Mapping[str, Any], free: tuple[str, ...], defaults: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*two, *one]):
        a, b = (side.get(name, defaults.get(name)) for side in (one, two))
        if name not in free and a != b:
            yield name, _word(a), _word(b)


def _served(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What ran them besides the engine's own code: the image, and the packages or the server."""
    pairs = [("image", _of(old, "image") or "", _of(new, "image") or "")]
    if "server" in new["cell"]:
        told = [(_of(head, "server") or {}).get("version") for head in (old, new)]
        pairs += [("server version", *told)] if all(told) else []
    else:
        packages = [_of(head, "versions") or {} for head in (old, new)]
        pairs += [(name, packages[0].get(name), packages[1].get(name)) for name in PACKAGES]
    yield from ((name, _word(a), _word(b)) for name, a, b in pairs if a != b)


def _of(head: Mapping[str, Any], name: str) -> Any:
    return head["provenance"].get(name)


def _defaults(kind: Any) -> dict[str, Any]:
    """What a run is that was stored before a setting existed."""
    found = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return json.loads(json.dumps(found))


def _word(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

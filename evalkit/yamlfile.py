"""YAML as people write it, read strictly: no key twice, no alias that holds itself or grows without end, no NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

MAX_NODES = 100_000  # values of a file with its aliases written out
MAX_DEPTH = 60


def parse_yaml(text: str) -> Any:
    """The value of one YAML document. A ValueError says in one line what is wrong and where."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        _size(node, {}, [])
        _twice(node, set())
        value = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ValueError(f"it is no YAML: {' '.join(str(e).split())}") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if odd := next(_not_finite(value, ""), None):
        raise ValueError(f"{odd[0]} is {odd[1]}, expected a finite number")
    return value


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _size(node: yaml.Node, known: dict[int, int], above: list[int]) -> int:
    """Values below a node with its aliases written out; refuses a cycle, and more than there may be."""
    if id(node) in above:
        raise ValueError(f"the alias of line {node.start_mark.line + 1} holds itself")
    if len(above) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels (line {node.start_mark.line + 1})")
    if id(node) not in known:
        above.append(id(node))
        known[id(node)] = 1 + sum(_size(child, known, above) for child in _children(node))
        above.pop()
    if known[id(node)] > MAX_NODES:
        raise ValueError(f"its aliases make more than {MAX_NODES} values (line {node.start_mark.line + 1})")
    return known[id(node)]


def _twice(node: yaml.Node, done: set[int]) -> None:
    """Refuses a key that stands twice in one mapping: YAML's reader would take the last one."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise ValueError(f"it has {key.value!r} twice (line {key.start_mark.line + 1})")
            seen.add((key.tag, str(key.value)))
    for child in _children(node):
        _twice(child, done)


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path.lstrip(".") or "it", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_finite(key, f"{path}.(key)")
            yield from _not_finite(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _not_finite(inner, f"{path}[{i}]")

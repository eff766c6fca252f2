"""YAML that is odd is one line, never a traceback, a hang or a silent choice."""

from __future__ import annotations

import time

import pytest

from evalkit.yamlfile import parse_yaml

BOMB = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 15)
)


@pytest.mark.parametrize(("text", "words"), [
    ("a: &x [*x]", "the alias of line 1 holds itself"), ("a: &x {b: {c: *x}}", "holds itself"),
    (BOMB, "its aliases make more than"), ("[" * 3000 + "]" * 3000, "nested deeper than"),
    ("[" * 80 + "]" * 80, "nested deeper than"), ("a: 1\nb: 2\na: 3", "it has 'a' twice (line 3)"),
    ("a: {b: [{c: 1, c: 2}]}", "'c' twice"), ("a: {b: [1, .nan]}", "a.b[1] is nan, expected a finite number"),
    ("a: -.inf", "a is -inf"), ("a: [", "it is no YAML"), ("? [1]\n: 2", "unhashable key"),
    ("a: \x00", "it is no YAML"), ("!!python/object:os.system x", "it is no YAML"),
])  # fmt: skip
def test_odd_yaml_is_a_line(text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError) as said:
        parse_yaml(text)
    assert words in str(said.value) and "\n" not in str(said.value)
    assert time.process_time() - began < 5


def test_aliases_of_a_sound_file_are_followed() -> None:
    text = "a: &x {k: 3}\nb: *x\nc: [*x, *x]\n"
    assert parse_yaml(text) == {"a": {"k": 3}, "b": {"k": 3}, "c": [{"k": 3}, {"k": 3}]}
    assert parse_yaml("") is None and parse_yaml("1: a\n'1': b") == {1: "a", "1": "b"}

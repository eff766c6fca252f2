"""Text is laid out for its window: folded between words, never inside a number or a name, and not at all for a pipe."""

from __future__ import annotations

import io
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit import layout
from evalkit.layout import JOINTS, LEAST, fold, fold_lines, pairs, table, window

WORDS = st.lists(
    st.sampled_from(["a", "verdict", "0.9431 ± 0.0064", "-0.4 .. +0.2 pt", "99.8 %", "1300/1319", "p 4.5e-05"]),
    min_size=1, max_size=40,
)  # fmt: skip
RUN = "gradeschool-gradeschool-m3-dspark-k7-nvfp4-55e02bfe"
ROWS = [(RUN, "1319/1319", "0.9856 (1300/1319)", "6.446"), (f"{RUN}-2", "8/8", "-", "forced")]
COLUMNS = ("id", "samples", "strict-match", "accepted length")


@given(words=WORDS, width=st.integers(LEAST, 130), first=st.sampled_from(["", "  pass          ", "name   "]))
def test_a_fold_keeps_every_word_and_joint_and_fits(words: list[str], width: int, first: str) -> None:
    text = " ".join(words)
    lines = fold(text, width, first).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join((first + text).split())
    assert all(len(line) <= width for line in lines)
    assert not [line for line in lines[:-1] if line.endswith((" ±", " .."))]
    assert not [line for line in lines if line.split() and line.split()[0] in ("%", "pt", "±", "..")]
    assert fold(text, 0, first) == first + text


def test_a_name_wider_than_its_place_starts_a_line_of_its_own_and_is_never_cut() -> None:
    assert fold(RUN, 60, "inconclusive  ") == f"inconclusive\n    {RUN}"
    assert fold(f"{RUN} is gone", 40) == f"{RUN}\nis gone"  # wider than the window: the terminal has to break it
    assert fold("", 60, "name   ") == "name"


def test_lines_are_folded_under_themselves() -> None:
    assert fold_lines("short\n  a b c d e f g h i j k l m n", 24) == "short\n  a b c d e f g h i j k\n    l m n"
    assert fold_lines("x " * 200, 0) == "x " * 200


def test_pairs_stand_under_one_another_and_go_on_under_their_value() -> None:
    rows = [("a", "1"), ("longer", "one two three four five six")]
    assert pairs(rows) == "  a        1\n  longer   one two three four five six"
    assert pairs(rows, 36).split("\n")[1:] == ["  longer   one two three four five", "           six"]
    assert all(len(line) <= 26 for line in pairs([("a rather long name", "one two three four")], 26).split("\n"))


def test_a_table_is_one_line_a_row_then_two_then_names_and_values() -> None:
    wide = table(COLUMNS, ROWS, "lrll")
    assert len(wide.split("\n")) == 3 and max(map(len, wide.split("\n"))) > 80
    assert table(COLUMNS, ROWS, "lrll", width=200) == wide
    two = table(COLUMNS, ROWS, "lrll", width=80).split("\n")
    assert len(two) == 6 and two[0].split() == ["id"] and two[1].split()[0] == "samples"
    assert two[1].index("strict-match") == two[3].index("0.9856"), "a header stands over its column"
    named = table(COLUMNS, ROWS, "lrll", width=56).split("\n")[: 1 + len(COLUMNS)]
    assert table(("a", "b", "c"), [("1" * 20, "2" * 20, "3" * 20)], width=30).split("\n") == [
        f"a {'1' * 20}", f"  b   {'2' * 20}", f"  c   {'3' * 20}"
    ]  # fmt: skip
    assert named[0] == "id" and RUN in named[2]
    assert table((), []) == ""


@given(st.integers(LEAST, 140))
def test_no_cell_of_a_table_is_ever_cut(width: int) -> None:
    shown = table(COLUMNS, ROWS, "lrll", width)
    for row in ROWS:
        assert all(word in shown for cell in row for word in cell.split())
    narrow = [line for line in shown.split("\n") if RUN not in line]
    assert all(len(line) <= width for line in narrow)


def test_the_window_is_that_of_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert window(io.StringIO()) == 0
    closed = io.StringIO()
    closed.close()
    assert window(closed) == 0

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert window(Tty()) == layout.UNKNOWN, "a terminal that does not tell its size"
    for columns, found in (("61", 61), ("3", LEAST), ("0", layout.UNKNOWN), ("x", layout.UNKNOWN)):
        monkeypatch.setenv("COLUMNS", columns)
        assert window(Tty()) == found
    assert window(io.StringIO()) == 0, "COLUMNS folds no pipe"


def test_joints_are_those_of_numbers() -> None:
    assert JOINTS and all(re.fullmatch(r" \S+ ?", joint) for joint in JOINTS)
    assert layout.joined("0.9 ± 0.1, 1 .. 2 pt, 5 %", "_") == "0.9_±_0.1, 1_.._2_pt, 5_%"
    assert layout.joined("p 0.5, p < 1e-300, step 3, p of", "_") == "p_0.5, p_< 1e-300, step 3, p of"


def test_an_empty_cell_takes_no_line_in_a_narrow_window() -> None:
    text = table(("id", "started", "layout"), [("a" * 30, "x" * 30, ""), ("b" * 30, "y" * 30, "batch=1")], width=40)
    assert text.count("started") == 2 and text.count("layout") == 1 and "layout    batch=1" in text

"""A generated part goes between its marks again and again, and nowhere else."""

from __future__ import annotations

import pytest

from evalkit.marked import between

MARKS = ("<!-- a -->", "<!-- /a -->")


def test_the_part_is_replaced_and_the_rest_stays() -> None:
    once = between("top\n<!-- a -->\nold\n<!-- /a -->\nend", MARKS, "new")
    assert once == "top\n<!-- a -->\nnew\n<!-- /a -->\nend" and between(once, MARKS, "new") == once


@pytest.mark.parametrize("document", ["", "<!-- a -->", "<!-- a --> <!-- /a --> <!-- a -->"])
def test_marks_that_are_not_there_once_are_told(document: str) -> None:
    with pytest.raises(ValueError, match=r"needs exactly one <!-- a --> \.\.\. <!-- /a -->"):
        between(document, MARKS, "new")

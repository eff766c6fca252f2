"""The table of categories names the one that a mean hides, in both directions, and not those that vary by chance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from evalkit.baseline import STRICT
from evalkit.records import Run
from evalkit.report import compare, subsets
from evalkit.report.markdown import page_markdown
from evalkit.report.render import render, render_page
from tests.evalkit.report.makers import HOSTILE, Reader, make_baseline, make_run, make_subject

NAMES = ("age", "change", "share")


def in_categories(n: int, wrong: Iterable[int]) -> Run:
    """A run with three categories in turn and these documents wrong."""
    run, bad = make_run(n, wrong=0), set(wrong)
    return replace(run, samples=tuple(
        replace(s, category=NAMES[s.doc_id % 3], scores={STRICT: float(s.doc_id not in bad)}) for s in run.samples
    ))  # fmt: skip


def test_c71_a_subset_that_gains_is_named_though_the_rest_stays() -> None:
    """24 of 144 questions, all of one category: 45.8 -> 95.8 % of its 48."""
    run = in_categories(144, (0, 3))
    before = range(0, 78, 3)  # 26 wrong of category age, two of them still
    page = render(run, None, baseline=make_baseline(run, before))
    found = subsets.by_category(run, make_baseline(run, before))
    assert [(s.name, s.scored, s.told, s.up, s.down) for s in found] == [
        ("age", 48, True, 24, 0), ("change", 48, False, 0, 0), ("share", 48, False, 0, 0)]  # fmt: skip
    words = Reader(page).text
    assert "category age gains 50.0 points (0 lost, 24 gained of 48 pairs" in words
    assert "a lossless draft gives no gain" in words and "strict-match by category: 3" in words
    told = page_markdown([make_subject(run, None, baseline=make_baseline(run, before))])
    assert "category age gains 50.0 points" in told and "strict-match by category" in told


def test_a_subset_that_loses_is_named_without_a_baseline_too() -> None:
    a, b = in_categories(150, ()), in_categories(150, range(1, 76, 3))
    made = compare.compare(a, replace(b, id="b"))
    assert next((s.name, s.told, s.down) for s in made.categories) == ("change", True, 25)
    page = render_page([make_subject(r, None, label=f"run {i}", index=i) for i, r in enumerate((a, b))])
    assert "strict-match by category: 3" in Reader(page).text
    (worst, *_), table = made.categories, subsets.table(made.categories, "B", "A")
    assert "a lossless" not in worst.words and table.rows[0][4:] == ("-50.0", "25 / 0", f"{worst.p:.2g}", "yes")


def test_the_error_with_categories_as_clusters_is_told_and_larger_where_they_differ() -> None:
    alike, apart = in_categories(150, range(0, 30)), in_categories(150, range(0, 90, 3))  # 30 wrong: of all, of one
    both = [subsets.clustered_words(subsets.by_category(run, None)) for run in (alike, apart)]
    effects = [float(words.split("design effect ")[1].split(")")[0]) for words in both]
    assert effects[0] < 0.1 < 10 < effects[1]
    # three categories of 50 with 20, 50 and 50 right: residuals -20, 10, 10; sqrt(3 / 2 * 600) / 150 = 0.2
    assert both[1].startswith(
        "With its 3 categories as clusters strict-match is 0.8000 \u00b1 0.2000, 95 % 0.0000 .. 1.0"
    )
    assert both[1] in Reader(render(apart, None)).text.replace("\u00a0", " ")
    assert "categories as clusters" in page_markdown([make_subject(apart, None)])
    for silent in (in_categories(150, ()), in_categories(150, range(150)), make_run(30)):
        assert subsets.clustered_words(subsets.by_category(silent, None)) == ""


def test_no_category_or_one_makes_no_table() -> None:
    run = make_run(30)
    assert subsets.by_category(run, make_baseline(run)) == ()
    assert subsets.by_category(replace(run, samples=()), None) == ()
    assert "strict-match by category" not in Reader(render(run, None, baseline=make_baseline(run))).text


def test_without_a_baseline_nothing_is_compared_and_names_are_inert() -> None:
    run = in_categories(30, (1, 2))
    odd = replace(run.samples[0], category=HOSTILE)
    run = replace(run, samples=(odd, *run.samples[1:]))
    found = subsets.by_category(run, None)
    assert all(s.p is None and not s.told for s in found)
    table = subsets.table(found)
    assert table.rows[0][3:] == ("not compared",) * 5 and any("\\u202e" in row[0] for row in table.rows)
    assert "<script>alert" not in render(run, None)


@pytest.mark.stat
def test_categories_that_do_not_differ_are_rarely_named() -> None:
    """Seeds 0..299: 9 categories of 40 questions, each flipped with chance 0.1 in either direction. With Holm at 5 %
    at most 15 of 300 are expected to name any; a binomial of 300 at 0.05 exceeds 28 with chance 0.0007."""
    alarms = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        there = rng.integers(0, 2, size=360)
        here = np.where(rng.random(360) < 0.1, 1 - there, there)
        rows = [(str(i % 9), int(h), int(t)) for i, (h, t) in enumerate(zip(here, there, strict=True))]
        alarms += any(s.told for s in subsets.subsets(rows))
    assert alarms <= 28

"""Two runs, and the best of several: what is said follows from the samples, and is not said where they can't tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.records import Outcome, Run
from evalkit.report import best, compare
from evalkit.report.markdown import page_markdown
from evalkit.report.render import render_page
from tests.evalkit.report.makers import (
    Reader,
    make_run,
    make_subject,
    make_verdict,
)


def wrong_at(run: Run, docs: set[int], name: str) -> Run:
    """The run with these answers wrong and all others right."""
    samples = tuple(
        replace(
            s, scores={STRICT: float(s.doc_id not in docs)}, extracted={STRICT: "7" if s.doc_id in docs else s.gold}
        )
        for s in run.samples
    )
    return replace(run, samples=samples, id=name)


def test_flips_both_ways_with_the_exact_test() -> None:
    run = make_run(200)
    a, b = wrong_at(run, {1, 2, 3}, "a"), wrong_at(run, {3, 4, 5, 6, 7, 8, 9}, "b")
    found = compare.compare(a, b)
    assert {y.doc_id for _, y in found.lost} == {4, 5, 6, 7, 8, 9} and {y.doc_id for _, y in found.gained} == {1, 2}
    assert found.paired == 200 and found.both_right == 191 and found.p == pytest.approx(stats.mcnemar_exact(2, 6))
    table = compare.flip_table(found)
    assert [row[1:] for row in table.rows] == [("191", "6 lost"), ("2 gained", "1")]
    assert f"p {found.p:.3g}" in table.caption
    assert compare.flipped_table("lost", found.lost).rows[0] == ("#4", run.samples[4].gold, run.samples[4].gold, "7")


def test_other_prompts_are_compared_with_nothing() -> None:
    a = make_run(30)
    other = tuple(replace(s, prompt_hash="0" * 64) for s in a.samples[:10])
    found = compare.compare(a, replace(a, samples=(*other, *a.samples[10:])))
    assert found.paired == 20 and found.alone == (10, 10)
    assert any(row[0] == "without a partner" for row in compare.figures_table(found).rows)
    nothing = compare.compare(a, replace(a, samples=other))
    assert nothing.p is None and "nothing is paired" in compare.flip_table(nothing).caption


def test_a_failed_request_is_no_flip() -> None:
    a = make_run(30, wrong=0)
    dead = replace(a.samples[0], error="timed out", scores={}, text="")
    found = compare.compare(a, replace(a, samples=(dead, *a.samples[1:])))
    assert found.paired == 29 and not found.lost


def test_first_divergence_is_by_token_where_tokens_are_stored() -> None:
    a = replace(make_run(1).samples[0], text="one two three", pieces=("one", " two", " three"))
    b = replace(a, text="one two four", pieces=("one", " two", " four"))
    found = compare.first_divergence(a, b, "lost")
    assert found is not None and (found.unit, found.at, found.left, found.right) == ("token", 3, " three", " four")
    assert found.gaps == (None, None)
    told = compare.first_divergence(replace(a, gaps=(3.0, 2.0, 0.25)), replace(b, gaps=(3.0, 2.0, 0.125, 4.0)))
    assert told is not None and told.gaps == (0.25, 0.125)
    found = compare.first_divergence(replace(a, pieces=()), b)
    assert found is not None and (found.unit, found.at, found.left) == ("character", 9, "three")
    shorter = compare.first_divergence(a, replace(a, text="one two", pieces=a.pieces[:2]))
    assert shorter is not None and shorter.right == "(ended)"
    assert compare.first_divergence(a, a) is None


def test_flips_and_gaps_are_on_the_page_and_in_its_markdown() -> None:
    a = make_run(60, wrong=0)
    pieces = ("So", " it", " is", " 4")
    a = replace(a, samples=tuple(
        replace(s, pieces=pieces, text="".join(pieces), gaps=(9.0, 8.0, 7.0, 0.0625), scores={STRICT: float(i != 5)})
        for i, s in enumerate(a.samples)
    ))  # fmt: skip
    other = {"pieces": (*pieces[:3], " 5"), "text": "So it is 5", "gaps": (9.0, 8.0, 7.0, 3.5)}
    changed = {i: replace(a.samples[i], **other, scores={STRICT: float(i == 5)}) for i in (3, 4, 5, 9)}
    b = replace(a, id="b", samples=tuple(changed.get(i, s) for i, s in enumerate(a.samples)))
    found = [make_subject(r, None, label=f"run {i}", index=i) for i, r in enumerate((a, b))]
    page, markdown = Reader(render_page(found)).text, page_markdown(found)
    for told in (page, markdown.replace("&#35;", "#").replace(" | ", " ")):
        told = told.replace("\u201c", '"').replace("\u201d", '"')
        assert "60 pairs, exact McNemar p 0.625, mid-p 0.375" in told and "3 lost" in told and "1 gained" in told
        assert "#3 lost token 4" in told and "#5 gained token 4" in told and '" 4"' in told and '" 5"' in told
        assert told.count("0.0625 3.5000") == 4 and "First divergence of 4 texts" in told
    assert "right in A, wrong in B (3)" in markdown and "wrong in A, right in B (1)" in markdown


def test_best_is_named_only_where_every_difference_is_shown() -> None:
    run = make_run(400, 7)
    good, bad = wrong_at(run, set(), "good"), wrong_at(run, set(range(40)), "bad")
    near = wrong_at(run, {1}, "near")
    found = best.best_of([make_subject(r, label=r.id, index=i) for i, r in enumerate((bad, good))])[0]
    assert (found.top, found.best, found.tied) == (1, True, ()) and "good is best" in found.words(["bad", "good"])
    three = [make_subject(r, label=r.id, index=i) for i, r in enumerate((bad, good, near))]
    found = best.best_of(three)[0]
    assert (found.top, found.best, found.tied) == (1, False, (2,))
    words = found.words([s.label for s in three])
    assert "no best run" in words and "can't be told from near" in words and "bad" not in words
    assert best.mentions(best.best_of(three), 1) == "" and best.best_of(three[:1]) == ()


def test_runs_of_other_questions_are_never_ranked() -> None:
    a, b = make_run(50), make_run(50, wrong=40)
    other = tuple(replace(s, doc_hash=f"{i:064d}") for i, s in enumerate(b.samples))
    found = best.best_of([make_subject(a), make_subject(replace(b, samples=other), index=1)])
    assert all(b.top is not None and not b.best and b.apart == (1 - b.top,) for b in found)
    assert "too few documents" in found[0].words(["a", "b"])


def in_setting(run: Run, **cell: object) -> Run:
    marks = {k: v for k, v in cell.items() if k in run.fingerprint}
    return replace(run, cell={**run.cell, **cell}, fingerprint={**run.fingerprint, **marks})


def test_no_run_is_best_among_settings_that_are_not_comparable() -> None:
    run = make_run(400)
    good, bad = wrong_at(run, set(), "good"), wrong_at(run, set(range(40)), "bad")
    hot = in_setting(bad, temperature=1.0)
    found = best.best_of([make_subject(good), make_subject(hot, index=1)])[0]
    assert not found.best and found.other == ((1, "temperature"),)
    words = found.words(["good", "bad"])
    assert "good is highest and is not comparable with bad, which differs in temperature." in words
    moved = replace(bad, fingerprint={**bad.fingerprint, "target_sha": "99" * 32})
    assert best.differing(good, moved) == ["target_sha"]
    assert best.differing(good, in_setting(bad, verify="threshold")) == ["verify"]
    assert best.differing(good, in_setting(bad, k=3, quant="fp8", draft="other")) == []


def test_a_failing_run_is_never_best_and_is_named() -> None:
    run = make_run(400)
    good, bad = wrong_at(run, set(), "good"), wrong_at(run, set(range(40)), "bad")
    fails, passes = make_verdict(good, Outcome.FAIL), make_verdict(bad, Outcome.PASS)
    found = best.best_of([make_subject(good, fails), make_subject(bad, passes, index=1)])[0]
    assert (found.top, found.best, found.failed) == (1, False, (0,))
    assert "left out, since the verdict is a fail: good" in found.words(["good", "bad"])
    none = best.best_of([make_subject(good, fails), make_subject(bad, fails, index=1)])[0]
    assert none.top is None and "no best run; left out" in none.words(["good", "bad"])
    assert best.mentions([none], 0) == ""


def test_runs_with_the_same_highest_value_share_it() -> None:
    run = make_run(100)
    three = [make_subject(replace(run, id=name), label=name, index=i) for i, name in enumerate("abc")]
    words = best.best_of(three)[0].words(["a", "b", "c"])
    assert "no best run. a, b and c share the highest." in words


def test_a_comparison_of_other_settings_warns() -> None:
    a = make_run(30)
    b = in_setting(make_run(30, id="b"), temperature=1.0, draft="dspark-weak")
    words = "the two runs differ in temperature and draft"
    assert compare.warning(a, b).startswith(words) and compare.warning(a, in_setting(a, k=3, quant="fp8")) == ""
    found = [make_subject(a), make_subject(b, index=1)]
    assert words[1:] in Reader(render_page(found)).text and words in page_markdown(found)
    weights = replace(a, fingerprint={**a.fingerprint, "draft_sha": "98" * 32})
    assert "differ in draft" in compare.warning(a, weights)


@pytest.mark.stat
def test_equal_runs_are_rarely_told_apart_by_length() -> None:
    """Seeds 0..199: two runs of the same law on 120 documents; 5 % false alarms expected, at most 11 % allowed (a
    binomial of 200 at 0.05 exceeds 22 with chance 0.0003)."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rate = rng.beta(8, 3, size=120)
        runs = []
        for _ in range(2):
            sizes = rng.integers(4, 20, size=120)
            runs.append({str(i): (float(rng.binomial(7 * n, p)), float(n)) for i, (n, p) in
                         enumerate(zip(sizes, rate, strict=True))})  # fmt: skip
        alarms += best.difference_of(*runs).p < 0.05
    assert alarms <= 22


def test_length_difference_sees_a_lost_token() -> None:
    a = make_run(80)
    steps = [replace(s, steps=tuple(replace(x, accepted=max(0, x.accepted - 1), accepted_trimmed=0) for x in s.steps))
             for s in a.samples]  # fmt: skip
    found = best.length_difference(replace(a, samples=tuple(steps)), a)
    assert found is not None and found.difference < -0.5 and found.interval.high < 0 and found.p < 1e-6
    same = best.length_difference(a, a)
    assert same is not None and same.difference == 0 and same.p == 1.0

"""The page's plots: which runs share one, what each says, and that they are inline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from evalkit.gate import judge
from evalkit.records import Run
from evalkit.report import drafts, figures, text
from evalkit.report.render import render_page
from evalkit.report.subject import Subject
from evalkit.show import run_text
from tests.evalkit.report.makers import RECORDED, Reader, make_baseline, make_curve, make_pair, make_run, make_subject


@pytest.fixture(scope="module")
def pair() -> list[Subject]:
    return make_pair()


def test_many_runs_are_spread_over_plots_and_labels_tell_them_apart() -> None:
    runs: list[Run] = [
        make_run(40, k, id=f"{k}-{quant}", cell={**make_run(1, k).cell, "quant": quant})
        for quant in ("float32", "fp8", "nvfp4") for k in (3, 5, 7)
    ]  # fmt: skip
    found = [make_subject(r, label=f"K={r.cell['k']} {r.cell['quant']}", index=i) for i, r in enumerate(runs)]
    groups = figures.groups(found)
    assert [name for name, _ in groups] == ["float32", "fp8", "nvfp4"] and all(len(g) == 3 for _, g in groups)
    names = [p.name for p in figures.plots(found)]
    assert len(names) == len(set(names)) and "survival-fp8" in names


def test_a_plot_is_inline_follows_the_style_and_says_what_it_shows(pair: list[Subject]) -> None:
    plot = next(p for p in figures.plots(pair) if p.name == "histogram")
    (made,) = figures.drawn([plot])
    assert made.markup.startswith("<svg") and 'role="img"' in made.markup and plot.alt.split(";")[0] in made.markup
    assert "xmlns" not in made.markup and "http" not in made.markup and len(made.markup) < 40_000
    assert "var(--s0)" in made.markup and "#1111" not in made.markup and "#0" not in made.markup.replace("url(#", "")
    share = next(r["share"] for r in plot.data if r["run"] == "K=7" and r["accepted"] == 7)
    assert share == pytest.approx(pair[1].acceptance.histogram[7] / pair[1].acceptance.steps)


def test_kept_given_those_before_is_one_number_in_plot_and_tables(pair: list[Subject]) -> None:
    """Drafts past a stop are left out of it everywhere, and the page says how many blocks a stop cut."""
    s = pair[0]
    plot = next(p for p in figures.plots(pair) if p.name == "conditional")
    drawn = [row["rate"] for row in plot.data if row["run"] == s.label]
    confident = [c.rate for c in s.acceptance.calibration if c.kind == "conditional"]
    table = drafts.survival_table(s.curve, s.view, s.by_draft)
    assert drawn == pytest.approx(confident, abs=1e-12) and s.acceptance.cut_at_stop > 0
    assert [row[-1] for row in table.rows] == [text.share(v) for v in drawn]
    with_them = s.curve[-1].survival / s.curve[-2].survival
    assert drawn[-1] != pytest.approx(with_them, abs=1e-6), "with them it is another number"
    shown = [line.split() for line in run_text(s.run).split("by position")[1].split("\n")[2 : 2 + s.k]]
    assert [row[7] for row in shown] == [row[-1] for row in table.rows], "the terminal has the page's numbers"
    assert [row[6] for row in shown] == [row[-2] for row in table.rows] == [str(p.judged) for p in s.curve]
    assert s.acceptance.conditional == tuple(p.conditional for p in s.curve)
    said = drafts.cut_words(s.acceptance)
    assert said in run_text(s.run) and said in Reader(render_page(pair)).text
    cut, steps = (sum(getattr(x.acceptance, name) for x in pair) for name in ("cut_at_stop", "steps"))
    assert f"{text.count(cut)} of {text.count(steps)} blocks ended by a stop" in plot.note
    assert f"{text.count(s.acceptance.cut_at_stop)} of " in drafts.cut_words(s.acceptance)
    for row in plot.data:
        assert row["low"] <= row["rate"] <= row["high"]


def test_a_picture_names_the_runs_that_it_leaves_out_and_why() -> None:
    run = make_run(60)
    baseline, curve = make_baseline(run), make_curve(RECORDED)
    judged = make_subject(run, judge(run, baseline=baseline, golden=curve), label="a", baseline=baseline, golden=curve)
    plain = make_run(60, 0)
    own = replace(baseline, run_id=plain.id)
    others = [
        make_subject(plain, judge(plain, baseline=own, golden=None), label="b", index=1, baseline=own),
        make_subject(run, None, label="c", index=2, baseline=baseline, golden=curve),
        make_subject(run, judge(run, baseline=None, golden=None), label="d", index=3),
    ]
    loss, lengths = figures.loss.plot([judged, *others]), figures.lengths.plot([judged, *others])
    assert loss is not None and lengths is not None
    assert loss.note == "Not shown: b (it is the baseline). Not shown: c (not judged). Not shown: d (no baseline)."
    assert "Not shown: b (K=0, nothing was drafted)" in lengths.note and "d (no golden at its K)" in lengths.note
    alone = figures.loss.plot([judged])
    assert alone is not None and alone.note == ""


@pytest.mark.parametrize("others", [False, True])
def test_a_baseline_is_common_only_where_the_questions_are(others: bool) -> None:
    """A run of the first 40 questions, which the baseline answers rightly, says nothing of a run of all 120."""
    whole = make_run(120, 7, wrong=11)
    part = replace(make_run(120, 5, wrong=11), id="part")
    baseline = make_baseline(whole, wrong=range(60, 72))
    if others:
        part = replace(part, samples=part.samples[:40], expected=40)
    found = [
        make_subject(r, judge(r, baseline=baseline, golden=None), label=name, index=i, baseline=baseline)
        for i, (name, r) in enumerate((("part", part), ("whole", whole)))
    ]
    plot = figures.scores.plot(found)
    assert plot is not None
    marks, score = [(r["baseline"], r["margin_at"]) for r in plot.data], plot.data[1]["score"]
    first = (1.0, 0.99) if others else (0.9, 0.89)
    assert marks == [pytest.approx(first), pytest.approx((0.9, 0.89))]
    ax = Figure().add_subplot()
    plot.draw(ax)
    upright = {
        (round(float(seg[0][0]), 6), round(float(seg[:, 1].mean()), 6))
        for c in ax.collections if isinstance(c, LineCollection)
        for seg in map(np.asarray, c.get_segments()) if seg[0][0] == seg[1][0]
    }  # fmt: skip
    lines = [
        (np.asarray(line.get_ydata()).tolist(), [float(v) for v in np.asarray(line.get_xdata())]) for line in ax.lines
    ]
    across = sorted(x[0] for y, x in lines if y == [0, 1] and x[0] == x[1] and round(x[0], 6) != round(100 * score, 6))
    assert upright == ({(100, 0), (99, 0), (90, 1), (89, 1)} if others else set())
    assert across == pytest.approx([] if others else [89, 90])
    assert ("own baseline" in plot.note) is others


def test_what_could_be_shown_says_of_which_run_in_english() -> None:
    run = make_run(120)
    baseline = make_baseline(run)
    s = make_subject(run, judge(run, baseline=baseline, golden=None), label="K=7 nvfp4", baseline=baseline)
    alone = figures.detectable.plot([s])
    assert alone is not None
    ax = Figure().add_subplot()
    alone.draw(ax)
    (label,) = [t for t in ax.texts if t.get_text().startswith("this run: ")]
    assert label.get_bbox_patch() is not None, "it stays readable where the margin's line goes through it"
    both = figures.detectable.plot([s, replace(s, label="b", index=1)])
    assert alone.note.endswith("if the true loss of this run were just the margin.")
    assert both is not None
    assert both.note.endswith("if the true loss of K=7 nvfp4, the run that differs most, were just the margin.")

"""The questions that a page answers, and what it says where nothing was compared."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import evalkit
from evalkit.gate import GateSpec, judge
from evalkit.golden import Standards
from evalkit.records import Check, Outcome, Run
from evalkit.report import cards, grid, tables
from evalkit.report.render import render_page
from evalkit.report.subject import subjects
from evalkit.sweep import HOLM, adjust
from tests.evalkit import verdicts
from tests.evalkit.report.makers import (
    RECORDED,
    Reader,
    make_baseline,
    make_curve,
    make_run,
    make_subject,
    make_verdict,
)

MAKERS = ("checked", "share_check", "_share")  # the functions of the gate that take a check's name first
SOURCES = ("gate/*.py", "answers.py", "servercheck.py", "sweep.py")


def gate_names() -> set[str]:
    """Every check's name that the gate's source gives, the ends that are filled in left away."""
    root = Path(evalkit.__file__).parent
    found: set[str] = set()
    for pattern in SOURCES:
        for path in root.glob(pattern):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call):
                    found |= {name for node in _name_nodes(call) if (name := _text(node))}
    return found | {HOLM}


def _name_nodes(call: ast.Call) -> list[ast.expr]:
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    if called == "Check":
        return [k.value for k in call.keywords if k.arg == "name"]
    return call.args[:1] if called in MAKERS else []


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value)
    return ""


def test_every_check_of_the_gate_is_under_a_question() -> None:
    names = gate_names()
    assert {"accuracy", "accepted length", "accept rate by position", "reference ", "stop cut", "format"} <= names
    assert names <= set(cards.QUESTION_OF), names - set(cards.QUESTION_OF)


@pytest.mark.parametrize(
    ("name", "question"),
    [("accept rate by position", cards.DRAFT), ("step counts", cards.EVIDENCE), ("real acceptance", cards.EVIDENCE),
     ("reference SGLang", cards.ANSWERS),
     ("floor", cards.ANSWERS), ("path mono", cards.EVIDENCE), ("something new", cards.EVIDENCE)],
)  # fmt: skip
def test_a_check_is_under_its_question(name: str, question: str) -> None:
    check = Check(name=name, outcome=Outcome.PASS, expected="", found="", message="")
    assert cards.question_of(check) == question


def test_a_reason_has_number_interval_and_margin_however_long_its_message() -> None:
    run = make_run(120, wrong=30)
    verdict = judge(run, baseline=make_baseline(run), golden=make_curve(replace(RECORDED, accepted_length=5.5)))
    reasons = [r for c in cards.cards(make_subject(run, verdict)) for r in c.reasons]
    accuracy = next(r for r in reasons if r.startswith("accuracy: "))
    length = next(r for r in reasons if r.startswith("accepted length: "))
    spread = next(r for r in reasons if r.startswith("accepted drafts distribution: "))
    assert all(word in accuracy for word in ("strict-match 0.", " pt, interval -", "pt (90 %), margin 1 pt"))
    assert "tokens a step lost, interval at most 0." in spread and "margin 0.275 tokens; about 360 documents" in spread
    assert all(word in length for word in ("4.035 against golden 5.500", "90 % 0.714 .. 0.754", "a loss over 5 %"))


def plain() -> Run:
    return make_run(60, 0)


def test_plain_decoding_never_goes_to_a_performance_run() -> None:
    verdict = make_verdict(plain(), Outcome.PASS)
    assert "performance run" not in cards.headline([make_subject(plain(), verdict)])
    drafted = make_run(60)
    assert "performance run" in cards.headline([make_subject(drafted, make_verdict(drafted, Outcome.PASS))])


def test_a_run_that_is_the_baseline_says_so_and_answers_as_well_as_nothing() -> None:
    run = plain()
    own = replace(make_baseline(run), run_id=run.id)
    s = make_subject(run, judge(run, baseline=own, golden=None), baseline=own)
    card = cards.cards(s)[0]
    assert card.outcome == cards.NOT_JUDGED and "this run is the baseline" in card.words
    (row,) = grid.rows([s], ())
    shown = dict(zip([name for name, _ in grid.columns([s])], row.entries, strict=True))
    assert shown["difference to baseline, pt"].text == "is the baseline"


def test_what_was_there_and_not_judged_is_not_called_absent() -> None:
    run = make_run(60)
    base, curve = make_baseline(run), make_curve(RECORDED)
    answers, draft, _ = cards.cards(make_subject(run, None, baseline=base, golden=curve))
    assert "the difference was not judged" in answers.words and base.source in answers.words
    assert "the difference was not judged" in draft.words and f"{RECORDED.accepted_length:.3f}" in draft.words
    answers, draft, _ = cards.cards(make_subject(run, None))
    assert "compared with no baseline" in answers.words and "compared with no golden" in draft.words


def test_nothing_scored_is_not_nothing_in_common() -> None:
    run = make_run(20)
    dead = replace(run, samples=tuple(replace(s, error="refused", scores={}) for s in run.samples))
    s = make_subject(dead, None, baseline=make_baseline(run))
    (row,) = grid.rows([s], ())
    assert "no scored answer" in {e.note for e in row.entries}
    words = [cell for line in tables.score_table(dead, s.partner).rows for cell in line]
    assert "no scored answer" in words and "no question in common" not in words


def test_a_caption_says_what_a_number_is() -> None:
    found = []
    for i, (heat, draft) in enumerate([(0.0, "dspark"), (1.0, "dspark"), (0.0, "dspark-weak")]):
        run = make_run(20, id=f"run {i}")
        found.append(make_subject(replace(run, cell={**run.cell, "temperature": heat, "draft": draft}), index=i))
    names = {m.name for m in grid.matrices(grid.rows(found, ()))}
    assert names == {"dspark temperature 0", "dspark temperature 1", "dspark-weak temperature 0"}


def test_a_golden_that_differs_is_said_in_english() -> None:
    run = make_run(20)
    forced = replace(run, cell={**run.cell, "verify": "forced", "forced_length": 3.0})
    marks = {k: run.fingerprint[k] for k in ("target_sha", "task_sha", "draft_width", "temperature")}
    s = make_subject(forced, None, golden=make_curve(replace(RECORDED, fingerprint=marks)))
    assert s.golden_differs == "verify rule and forced length"
    assert s.view.missing[0].endswith("differs from this run in verify rule and forced length")


@pytest.mark.parametrize(("in_order", "words"), [(False, "Holm's correction"), (True, "in a fixed order")])
def test_the_headline_says_how_the_number_of_runs_was_allowed_for(in_order: bool, words: str) -> None:
    runs = [replace(make_run(4), id=f"run-{i}") for i in range(2)]
    passed = [verdicts.make_verdict(verdicts.make_check(p=0.01), run_id=run.id) for run in runs]
    found = adjust(passed, in_order=in_order)
    standards = Standards(golden=None, baseline=None, references=())
    made = subjects([(run, verdict, standards) for run, verdict in zip(runs, found, strict=True)])
    assert words in cards.headline(made) and cards.headline(made).startswith("Of 2 runs, 2 pass.")


def test_evidence_that_looks_forced_is_not_trusted_and_says_that_every_step_is_the_same() -> None:
    """Every step keeps the same number of drafts, as no prompts do; the steps' card is the evidence, not the draft."""
    run = make_run(120, 7)
    samples = [replace(s, steps=tuple(replace(x, accepted=6, accepted_trimmed=6, cut="") for x in s.steps))
               for s in run.samples]  # fmt: skip
    run = replace(run, samples=tuple(samples))
    verdict = judge(run, baseline=make_baseline(run), golden=make_curve(RECORDED))
    steps = sum(len(s.steps) for s in run.samples)
    evidence = next(c for c in cards.cards(make_subject(run, verdict)) if c.question == cards.EVIDENCE)
    assert evidence.outcome == "fail"
    assert any(f"6 accepted drafts in every one of {steps} steps" in r for r in evidence.reasons)


def test_what_is_too_good_is_in_the_band_and_the_headline_of_one_run_and_of_two() -> None:
    run = make_run(2000, wrong=10)
    base, curve = make_baseline(run, wrong=range(100)), make_curve(replace(RECORDED, accepted_length=2.6))
    spec = replace(GateSpec(), against=())
    judged = judge(run, baseline=base, golden=curve, spec=spec)
    passed = tuple(c for c in judged.checks if c.outcome is Outcome.PASS)
    verdict = replace(judged, outcome=Outcome.PASS, checks=passed)
    s = make_subject(run, verdict, baseline=base, golden=curve)
    first, second = s.remarks
    assert first.startswith("accepted length is 54 % above golden: too good to be believed unread")
    assert second.startswith("accuracy: a gain of +4.5 pt is no chance") and second.endswith("or another setting")
    assert s.warnings[:2] == (first, second)
    said = cards.headline([s])
    assert first in said and second in said and "It may go" not in said and said.startswith("Yes: all ")
    band = [Reader(line).text for line in render_page([s]).split("\n") if '<p class="warning">' in line]
    assert "54 % above golden" in band[0] and "is no chance" in band[1]
    plain = make_subject(run, replace(verdict, notes=(), checks=passed[:1]), index=1, label="b")
    assert plain.remarks == () and "It may go to a performance run." in cards.headline([plain])
    assert cards.headline([s, plain]).endswith(f"To be explained before a performance run: {s.label}.")


def test_of_several_drafts_the_panel_of_plain_decoding_says_that_it_has_none() -> None:
    runs = [make_run(5, 0), *(replace(r, id=d, cell={**r.cell, "draft": d}) for d in ("a", "b") for r in [make_run(5)])]
    made = grid.matrices(grid.rows([make_subject(r, index=i) for i, r in enumerate(runs)], ()))
    assert [m.name for m in made] == ["no draft", "a", "b"]
    one = grid.matrices(grid.rows([make_subject(r, index=i) for i, r in enumerate(runs[:2])], ()))
    assert [m.name for m in one] == [""]

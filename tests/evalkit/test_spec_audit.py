"""The self-audit: its tests are the gate's own, and the whole gate passes what lies on a margin at most alpha."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from evalkit import stats
from evalkit.cli import main
from evalkit.config import ROOT
from evalkit.gate import GateSpec
from evalkit.records import StepRecord
from evalkit.spec import CellSpec, Spec
from evalkit.spec.audit import rates, truths
from evalkit.spec.read import read_spec
from evalkit.spec.simulate import Effect, Truth, acceptance_tests, draw, draw_counts, geometric, outcome, slack
from tests.evalkit.test_gate import make_baseline, make_golden, make_run, make_sample, verdict

SHARES = (0.10, 0.10, 0.12, 0.13, 0.15, 0.15, 0.12, 0.13)
TRUTH = Truth(n=300, score=0.95, discordant=0.01, histogram=SHARES, golden_documents=300, steps=6.0, design_effect=1.3)
WIDE = GateSpec(accuracy_margin=0.03, length_margin=0.1, distribution_margin=0.1, position_margin=0.1)


def spec_of(cells: int, holm: bool = True) -> tuple[Spec, list[tuple[CellSpec, Truth]]]:
    made = tuple(CellSpec(name=f"c{i}", limits=WIDE, run=f"r{i}") for i in range(cells))
    spec = Spec(name="s", path=Path("s.yaml"), folder=Path(), alpha=0.05, holm=holm, scores="", cells=made)
    return spec, [(c, TRUTH) for c in made]


@pytest.mark.stat
@pytest.mark.parametrize(("effect", "seed"), [(Effect(accuracy=0.03), 31), (Effect(length=0.1), 32),
                                              (Effect(accuracy=0.03, length=0.1), 33)])  # fmt: skip
def test_the_whole_gate_passes_a_loss_on_the_margin_at_most_alpha(effect: Effect, seed: int) -> None:
    """Three cells, all checks (accuracy, length, distribution, positions), Holm; truth exactly on the margin in each.

    300 gates; a pass of any cell is a false pass. Allowed: alpha + 3 simulation errors = 0.088; a gate whose rate is
    alpha exceeds that in 0.2 % of the seeds, and never on these.
    """
    spec, cells = spec_of(3)
    found = rates("", cells, [effect] * 3, spec, 300, (seed,))
    assert found.any_passed <= 0.05 + slack(0.05, 300)
    assert found.passed <= 0.05


@pytest.mark.stat
def test_a_fixed_order_passes_a_loss_on_the_margin_at_most_alpha_and_more_sound_cells_than_holm() -> None:
    """Seeds 37 and 38, 300 gates of three cells: allowed are alpha + 3 simulation errors = 0.088, as above."""
    spec, cells = spec_of(3)
    ordered = dataclasses.replace(spec, in_order=True)
    found = rates("", cells, [Effect(accuracy=0.03)] * 3, ordered, 300, (37,))
    assert found.any_passed <= 0.05 + slack(0.05, 300)
    sound = [rates("", cells, [Effect()] * 3, s, 60, (38,)).passed for s in (ordered, spec)]
    assert sound[0] >= sound[1] > 0.5


@pytest.mark.stat
def test_a_sound_configuration_passes_and_a_bad_one_fails() -> None:
    """Seed 34, 60 gates: the simulation is not deaf, and a loss of four margins fails nearly always."""
    spec, cells = spec_of(3)
    assert rates("", cells, [Effect()] * 3, spec, 60, (34,)).passed > 0.5
    assert rates("", cells, [Effect(accuracy=0.12)] * 3, spec, 60, (35,)).failed > 0.95
    assert rates("", cells, [Effect(length=0.4)] * 3, spec, 60, (36,)).failed > 0.95


def test_the_simulated_cell_is_judged_as_the_gate_judges_records() -> None:
    """The slow twin: the same counts as samples and a golden value, through judge()."""
    rng = np.random.default_rng(40)
    for loss in (0.0, 0.03, 0.08):
        here, golden = draw_counts(TRUTH, loss, 300, rng), draw_counts(TRUTH, 0.0, 300, rng)
        fast = acceptance_tests(here, golden, TRUTH, WIDE, rng)
        histogram = tuple(int(x) for x in golden.sum(axis=0))
        length = 1 + float(np.dot(histogram, range(8))) / sum(histogram)
        values = np.arange(8)
        se = stats.clustered_ratio(golden @ values, golden.sum(axis=1)).se
        assert se is not None
        value = make_golden(length, se=se, histogram=histogram, clusters=300,
                            covariance=tuple(map(tuple, stats.survival_covariance(golden).tolist())))  # fmt: skip
        samples = tuple(
            make_sample(
                i, steps=tuple(StepRecord(k=7, accepted=a, accepted_trimmed=a) for a in range(8) for _ in range(row[a]))
            )
            for i, row in enumerate(here)
        )
        run = dataclasses.replace(make_run(300), samples=samples)
        slow = {c.name: c for c in verdict(run, golden=value, baseline=make_baseline(300), spec=WIDE).checks}
        for name, (p, worse) in fast.items():
            assert slow[name].numbers["p"] == pytest.approx(p, abs=1e-6), (name, loss)
            assert slow[name].numbers["p_worse"] == pytest.approx(worse, abs=1e-6), (name, loss)


def test_drawn_losses_are_what_they_are_called() -> None:
    rng = np.random.default_rng(41)
    for loss in (0.0, 0.05, 0.2):
        counts = draw_counts(dataclasses.replace(TRUTH, design_effect=2.0), loss, 20_000, rng)
        mean = 1 + float(np.dot(SHARES, range(8)))
        assert 1 + counts.sum(axis=0) @ np.arange(8) / counts.sum() == pytest.approx((1 - loss) * mean, rel=0.01)
    assert 1 + float(np.dot(geometric(4.04, 7), range(8))) == pytest.approx(4.04)
    found = draw(dataclasses.replace(TRUTH, published=((300, 0.02),)), Effect(), WIDE, rng)
    assert {"accuracy", "reference 1", "accepted length", "accept rate by position"} <= set(found)
    assert outcome({"a": (0.01, 0.99)}, 0.05) == "pass" and outcome({}, 0.05) == "inconclusive"
    assert outcome({"a": (0.01, 0.99), "b": (0.99, 0.01)}, 0.05) == "fail"


def test_the_audit_of_the_published_figures_says_what_can_never_pass(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "examples" / "m31flash.yaml"
    assert [t.published for _, t in truths(read_spec(path))][-1] == ((1319, 0.01), (1319, 0.01), (1319, 0.02))
    assert main(["gate", str(path), "--audit", "--draws", "40", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "the gate can't pass them" in said and "<- on the margin" in said and "seed 3" in said
    assert main(["gate", str(path), "--audit", "--draws", "40", "--seed", "3"]) == 0
    assert capsys.readouterr().out == said


def test_stored_runs_give_the_realised_rate_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    from tests.evalkit.test_spec import store

    for i in range(4):
        bad = {"scores": {"strict-match": 0.0, "flexible-extract": 1.0}} if i == 0 else {}
        run = make_run(change=lambda j, bad=bad: bad)
        store(tmp_path / "runs", dataclasses.replace(run, id=f"r{i}", provenance={"started": f"2026-01-0{i + 1}"}))
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "name": "n", "floor": 90, "cells": [
        {"name": "a", "run": "r*", "against": [{"score": "sglang"}]}]}))  # fmt: skip
    assert main(["gate", str(path), "--audit", "--draws", "10", "--runs-dir", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "history: 1 of 4 stored runs raise the alarm: 25.0 %" in said and "No threshold is changed" in said
    assert "not defensible from this history: 4 runs, fewer than 20" in said

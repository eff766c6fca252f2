"""A page of a stored verdict stands beside what that verdict compared with, or beside nothing and says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from evalkit import golden as goldens
from evalkit.baseline import load_baseline, record_baseline
from evalkit.cli import main
from evalkit.compared import standard_sha
from evalkit.errors import EvalkitError
from evalkit.golden import record_curve
from evalkit.judging import Judged, judge_run, report_subjects, with_verdicts
from evalkit.outputs.document import SCHEMA_FILE, write_json
from evalkit.records import Check, Outcome, Run, Standard, Verdict
from evalkit.report import figures
from evalkit.report.render import render_page
from evalkit.report.subject import Subject
from evalkit.reread import other_values
from evalkit.runfile import read_json
from evalkit.store import load_run
from tests.evalkit.report.makers import REFERENCES, Reader
from tests.evalkit.test_golden import make_run
from tests.evalkit.test_spec import store

RUN = make_run(3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Standards of one's own, other than golden/'s: a curve of another run and a worse baseline."""
    monkeypatch.chdir(tmp_path)
    record_curve([make_run(3, seed=5)], tmp_path / "own.yaml")
    plain = make_run(0, seed=7)
    worse = [replace(s, scores={**s.scores, "strict-match": 0.0}) if s.doc_id < 9 else s for s in plain.samples]
    record_baseline(replace(plain, samples=tuple(worse)), tmp_path / "own.json")
    return tmp_path


def gated(place: Path, baseline: str = "own.json", golden: str = "own.yaml") -> tuple[Judged, Path]:
    """The verdict by these standards ("": by golden/'s), as `evalkit gate --json` writes it."""
    judged = judge_run(RUN, baseline=Path(baseline) if baseline else None, golden=Path(golden) if golden else None)
    return judged, write_json([judged.verdict], [RUN], place / "verdict.json")


def subject(file: Path, run: Run = RUN, runs_dir: Path | None = None) -> Subject:
    (judged,) = with_verdicts([run], file, runs_dir)
    (made,) = report_subjects([(run, judged)])
    return made


def test_the_pictures_use_what_the_verdict_compared_with(place: Path) -> None:
    judged, file = gated(place)
    made, usual = subject(file), goldens.defaults_for(RUN)
    assert made.golden == judged.standards.golden != usual.golden
    assert made.baseline == judged.standards.baseline and made.baseline is not None and usual.baseline is not None
    assert made.baseline.run_id != usual.baseline.run_id
    own = goldens.lookup(goldens.read_curve(place / "own.yaml"), 3)
    drawn = {p.name: p for p in figures.plots([made])}
    assert drawn["survival"].data[0]["golden"] == pytest.approx(1 - own.histogram[0] / sum(own.histogram))  # type: ignore[index, arg-type]
    assert made.check("accepted length")["golden"] == own.accepted_length == made.view.value.accepted_length  # type: ignore[union-attr]
    words = Reader(render_page([made])).text
    assert "own.yaml" in words and "own.json" in words and "nothing is drawn" not in words and not made.lost
    schema = read_json(SCHEMA_FILE.read_text())
    jsonschema.validate(read_json(file.read_text()), schema)


@pytest.mark.parametrize("name", ["own.yaml", "own.json"])
@pytest.mark.parametrize("change", ["other", "gone"])
def test_a_standard_that_changed_or_went_is_no_picture_and_is_said(place: Path, name: str, change: str) -> None:
    _, file = gated(place)
    (place / name).unlink()
    if change == "other" and name == "own.yaml":
        goldens.evidence_path(place / name).unlink()
        record_curve([make_run(3, seed=6)], place / name)
    elif change == "other":
        record_baseline(make_run(0, seed=8), place / name)
    made = subject(file)
    assert (made.golden is None) == (name == "own.yaml") and (made.baseline is None) == (name == "own.json")
    (said,) = made.lost
    assert name in said and "nothing is drawn beside it" in said
    assert said in Reader(render_page([made])).text, "and golden/'s own does not stand in"


def test_a_standard_is_found_beside_the_verdict_and_in_the_folder_of_runs(place: Path, tmp_path: Path) -> None:
    judged, file = gated(place)
    other = tmp_path / "elsewhere"
    other.mkdir()
    for part in ("own.json", "own.yaml", goldens.evidence_path(Path("own.yaml")).name):
        (place / part).rename(other / part)
    assert len(subject(file).lost) == 2
    assert subject(file, runs_dir=other).golden == judged.standards.golden
    moved = file.rename(other / file.name)
    assert subject(moved).golden == judged.standards.golden and not subject(moved).lost


def test_the_usual_standards_are_found_by_name(place: Path) -> None:
    judged, file = gated(place, "", "")
    assert {s.place.split("/")[0] for s in judged.verdict.standards} == {"golden"}
    made = subject(file)
    assert made.golden == judged.standards.golden is not None and made.baseline == judged.standards.baseline
    assert made.references == judged.standards.references and not made.lost


def older(file: Path) -> Path:
    """The same document as written before standards were recorded."""
    values = json.loads(file.read_text())
    for verdict in values["verdicts"]:
        del verdict["standards"]
    file.write_text(json.dumps(values))
    jsonschema.validate(values, read_json(SCHEMA_FILE.read_text()))
    return file


def test_a_verdict_of_before_is_shown_beside_golden_only_where_its_figures_are_of_it(place: Path) -> None:
    # marks of the usual golden and baseline, so that they are compared
    golden, baseline = (goldens.defaults_for(RUN).golden, goldens.defaults_for(RUN).baseline)
    assert golden is not None and baseline is not None
    _, file = gated(place)
    made = subject(older(file))
    assert made.golden is None and "the verdict compared with a golden of" in made.lost[0]
    _, file = gated(place, "", "")
    again = subject(older(file))
    assert again.golden == golden and again.baseline == baseline and not again.lost


def test_a_standards_hash_is_of_what_it_holds(place: Path) -> None:
    one = goldens.read_curve(place / "own.yaml")
    assert standard_sha(one) == standard_sha(goldens.read_curve(place / "own.yaml"))
    record_curve([make_run(3, seed=6)], place / "b.yaml")
    assert standard_sha(one) != standard_sha(goldens.read_curve(place / "b.yaml"))
    assert standard_sha(goldens.published()) != standard_sha(())


def test_a_verdict_holds_no_standard_that_it_did_not_have() -> None:
    judged = judge_run(make_run(0))
    assert "golden" not in {s.role for s in judged.verdict.standards}
    assert Verdict(outcome=judged.verdict.outcome, checks=(), run_id="r").standards == ()


def test_a_verdict_by_a_specification_records_what_its_cell_names(place: Path) -> None:
    """Through the command line: a cell with standards of its own; the page shows those and no others."""
    run = load_run(store(place / "runs", RUN))
    (place / "gate.yaml").write_text(
        f"schema: 1\nname: own\ncells:\n  - {{run: {run.id}, golden: own.yaml, baseline: own.json}}\n"
    )
    assert main(["gate", "gate.yaml", "--json", "v.json", "--runs-dir", "runs"]) in (0, 1, 3)
    made = subject(place / "v.json", run)
    assert made.golden == goldens.read_curve(place / "own.yaml") and made.baseline == load_baseline(place / "own.json")
    assert made.references == goldens.published() and not made.lost
    assert main(["report", run.id, "--gate", "v.json", "--runs-dir", "runs", "-o", "page.html"]) == 0
    page = Reader((place / "page.html").read_text(encoding="utf-8")).text
    assert "own.yaml" in page and f"{made.view.value.accepted_length:.3f}" in page  # type: ignore[union-attr]
    usual = goldens.lookup(goldens.read_curve(goldens.golden_path("gradeschool-m3", "dspark")), 3)
    assert f"{usual.accepted_length:.3f}" not in page and "gradeschool-m3_dspark.yaml" not in page


@pytest.mark.parametrize(
    ("check", "number", "words"), [("accuracy", "baseline", "own.json has"), ("accepted length", "golden", "own.yaml")]
)
def test_a_printed_value_is_held_against_the_standard_that_the_verdict_names(
    place: Path, check: str, number: str, words: str
) -> None:
    _, file = gated(place)
    document = json.loads(file.read_text())
    numbers = next(c["numbers"] for c in document["verdicts"][0]["checks"] if c["name"] == check)
    numbers[number] -= 0.25
    file.write_text(json.dumps(document))
    with pytest.raises(EvalkitError, match="contradicts the standards that it names") as caught:
        with_verdicts([RUN], file)
    assert f"{check} has a {number} of {numbers[number]}" in caught.value.what and words in caught.value.what
    assert "\n" not in caught.value.what and "evalkit gate" in caught.value.fix


def test_a_published_score_is_held_against_its_file_too() -> None:
    ref = REFERENCES[0]
    check = Check(name=f"reference {ref.name}", outcome=Outcome.PASS, expected="", found="", message="",
                  numbers={"reference": ref.correct / ref.n})  # fmt: skip
    found = goldens.Standards(golden=None, baseline=None, references=(ref,))
    rests = (Standard(role="scores", name="s.yaml", place="s.yaml", sha256=""),)
    verdict = Verdict(outcome=Outcome.PASS, checks=(check,), run_id=RUN.id, standards=rests)
    assert other_values(verdict, RUN, found) == ""
    edited = replace(verdict, checks=(replace(check, numbers={"reference": 0.5}),))
    assert other_values(edited, RUN, found).startswith(f"{check.name} has a reference of 0.5, {ref.name} has 0.9")

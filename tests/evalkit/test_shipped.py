"""The golden is the draft's, by its method and files: what its folder is called chooses nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evalkit.checkpoint import checkpoint_hash
from evalkit.commands.certify import _standards
from evalkit.config import DRAFTS, Cell
from evalkit.errors import EvalkitError
from evalkit.golden import curve_place, defaults_for, golden_path, lookup, read_curve, record_curve
from evalkit.judging import golden_place, judge_run, places
from evalkit.records import Outcome, Run
from evalkit.shipped import draft_fault, named_draft, shipped_draft
from tests.evalkit.goldens import GOLDEN, make_run, marked, with_cell

SHA = {name: checkpoint_hash(spec.path) for name, spec in DRAFTS.items() if spec.path}
OTHER = "0" * 64


def drafted(name: str, method: str, sha: str, *, share: float = 0.7, n: int = 120) -> Run:
    path = f"/tmp/x/{name}" if sha == OTHER else None
    run = with_cell(make_run(7, n=n, share=share), draft=name, draft_path=path, draft_method=method)
    return marked(run, draft_method=method, draft_sha=sha)


@pytest.mark.parametrize(("run", "curve"), [
    (drafted("dspark", "dspark", SHA["dspark"]), "dspark"),
    (drafted("copy", "dspark", SHA["dspark"]), "copy"),  # a draft of one's own, by its name
    (drafted("ngram", "dspark", SHA["dspark-weak"]), "dspark"),
    (drafted("eagle3", "dspark", SHA["dspark"]), "dspark"),
    (drafted("dspark", "eagle3", SHA["eagle3"]), "eagle3"),
    (drafted("ngram", "ngram", "ngram"), "ngram"),
    (drafted("ngram", "dspark", OTHER), None),
    (drafted("dspark", "dspark", OTHER), None),
    (drafted("dspark-weak", "dspark", OTHER), None),
    (drafted("dspark", "dspark", "served:dspark"), "dspark"),
    (drafted("ngram", "dspark", "served:ngram"), None),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_method_and_files_choose_the_golden(run: Run, curve: str | None) -> None:
    expected = golden_path("gradeschool-m3", curve) if curve else None
    assert curve_place(run) == expected and places(run).get("golden") == expected
    assert dict(_standards(run, None, None)).get("golden") == (expected if expected and expected.exists() else None)


def test_a_weak_draft_in_a_folder_called_ngram_is_no_pass() -> None:
    ngram = lookup(read_curve(GOLDEN / "gradeschool-m3_ngram.yaml"), 7)
    run = drafted("ngram", "dspark", OTHER)
    facts = {key: value for key, value in (ngram.fingerprint or {}).items() if key != "draft_sha"}
    run = marked(run, **facts, mode=ngram.mode)
    check = next(c for c in judge_run(run).verdict.checks if c.name == "accepted length")
    assert check.outcome is Outcome.INCONCLUSIVE and "golden" not in check.numbers
    assert "no golden value" in check.message and "--draft ngram" not in check.message
    named = judge_run(run, golden=GOLDEN / "gradeschool-m3_ngram.yaml").verdict
    check = next(c for c in named.checks if c.name == "accepted length")
    assert check.outcome is Outcome.FAIL and "draft_method ngram / dspark" in check.message
    assert any("is not the one of that name" in m for m in defaults_for(run).missing)
    with pytest.raises(EvalkitError, match="no golden curve"):
        golden_place(GOLDEN, marked(run, draft_method="none"))


def test_a_recorded_golden_knows_its_method(tmp_path: Path) -> None:
    path = tmp_path / "gradeschool-m3_ngram.yaml"
    record_curve([drafted("ngram", "dspark", OTHER)], path)
    value = lookup(read_curve(path), 7)
    assert (value.fingerprint or {})["draft_method"] == "dspark"
    own = judge_run(drafted("ngram", "dspark", OTHER), golden=path).verdict
    other = judge_run(drafted("ngram", "ngram", "ngram"), golden=path).verdict
    found = [next(c for c in v.checks if c.name == "accepted length") for v in (own, other)]
    assert found[0].outcome is Outcome.PASS and found[1].outcome is Outcome.FAIL
    assert "draft_method dspark / ngram" in found[1].message


def test_shipped_drafts() -> None:
    assert {shipped_draft(DRAFTS[n].method, sha): n for n, sha in SHA.items()} == {n: n for n in SHA}
    assert shipped_draft("ngram", "ngram") == "ngram" and not shipped_draft("eagle3", SHA["dspark"])


@pytest.mark.parametrize("name", ["dspark", "dspark-weak", "eagle3", "ngram"])
def test_a_shipped_name_s_own_cell_is_named(name: str) -> None:
    cell = Cell.make(draft=name).to_json()
    told = {"draft_method": DRAFTS[name].method, "draft_sha": SHA.get(name, name)}
    assert named_draft(cell) and draft_fault(cell, told) == ""
    assert not named_draft(cell | {"draft_path": f"/tmp/x/{name}"})
    plain = Cell.make(draft=name, k=0).to_json()
    assert draft_fault(plain, {"draft_method": "none", "draft_sha": "none"}) == ""


@pytest.mark.parametrize(("cell", "told", "words"), [
    ({"draft": "ngram"}, {}, "draft is 'ngram' in its cell, and its folder 'draft-weak'"),
    ({"draft": "ngram", "draft_path": None}, {}, "draft is 'ngram' in its cell, without a folder"),
    ({"draft_method": "ngram"}, {}, "draft_method is 'ngram' in its cell and 'dspark' in its fingerprint"),
    ({"draft": "ngram", "draft_path": None, "draft_method": "ngram"}, {"draft_method": "ngram"}, "draft_sha is"),
    ({"draft": "draft-weak"}, {"draft_sha": "dspark"}, "draft_sha says no weights"),
], ids=["name", "folder", "method", "weights", "none"])  # fmt: skip
def test_a_cell_that_contradicts_its_fingerprint_was_edited(cell: dict, told: dict, words: str) -> None:
    own = Cell.make(draft="dspark-weak").to_json()
    facts = {"draft_method": "dspark", "draft_sha": SHA["dspark-weak"]}
    assert draft_fault(own, facts) == "" and words in draft_fault(own | cell, facts | told)
    assert draft_fault(dataclasses.asdict(make_run())["cell"], {}) == ""  # a run of before says neither


def test_a_folder_s_name_is_no_edit(tmp_path: Path) -> None:
    folder = tmp_path / "ngram"
    folder.symlink_to(DRAFTS["dspark-weak"].path or "")
    copy = Cell.make(draft=str(folder)).to_json() | {"draft": "ngram", "draft_path": str(folder)}
    assert draft_fault(copy, {"draft_method": "dspark", "draft_sha": SHA["dspark-weak"]}) == ""


def test_a_length_far_above_golden_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "curve.yaml"
    record_curve([drafted("own", "dspark", OTHER, share=0.5)], path)
    runs = [drafted("own", "dspark", OTHER, share=share) for share in (0.5, 0.7)]
    told = [
        any(n.startswith("warning: accepted length") for n in judge_run(r, golden=path).verdict.notes) for r in runs
    ]
    assert told == [False, True]

"""Gate specifications: schema and errors, the published figures replayed, stored runs found, refusals expected."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.mode import PRESETS
from evalkit import provenance
from evalkit.checkpoint import checkpoint_hash
from evalkit.cli import main
from evalkit.config import ROOT, Cell
from evalkit.errors import EvalkitError
from evalkit.fingerprint import sha256_json
from evalkit.gate.limits import DEMANDS, GateSpec
from evalkit.gate.names import BEGIN, CHECKS, is_check
from evalkit.records import Check, Outcome, Run, Verdict
from evalkit.report.cards import QUESTION_OF
from evalkit.runfile import dump, pack_sample
from evalkit.spec import SCHEMA_FILE, looks_like_spec, read, read_spec
from evalkit.spec.document import PAGE, rendered
from evalkit.spec.find import find_setting, find_word
from evalkit.spec.judge import REFUSAL, SpecResult, judge_spec
from evalkit.spec.text import spec_text
from tests.evalkit.test_gate import make_run, named, steps

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
M31 = ROOT / "docs" / "examples" / "m31flash.yaml"
NOW = "2026-11-30T12:00:00+00:00"
ROWS = {"schema": 1, "name": "n", "cells": [{"run": "r1"}]}


def written(folder: Path, **change: Any) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({**ROWS, **change}))
    return path


# --- the file


def test_the_published_schema_is_the_one_the_code_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text()))
    changed = json.loads(SCHEMA_FILE.read_text())
    del changed["properties"]["alpha"]
    (tmp_path / "schema.json").write_text(json.dumps(changed))
    path = written(tmp_path, alpha=0.1)
    assert read_spec(path).alpha == 0.1
    monkeypatch.setattr(read, "SCHEMA_FILE", tmp_path / "schema.json")
    with pytest.raises(EvalkitError, match="unknown key 'alpha'"):
        read_spec(path)
    assert set(json.loads(SCHEMA_FILE.read_text())["$defs"]["checks"]["items"]["enum"]) == set(DEMANDS)


def test_the_page_of_keys_is_current() -> None:
    assert PAGE.read_text() == rendered(), "fix: make fix"


def test_defaults_of_the_schema_are_those_of_the_gate(tmp_path: Path) -> None:
    (cell,) = read_spec(written(tmp_path)).cells
    assert dataclasses.replace(cell.limits, golden_draft="any") == GateSpec()
    schema = json.loads(SCHEMA_FILE.read_text())
    spelled: dict[str, Any] = {key: v["default"] for key, v in schema["properties"].items() if "default" in v}
    for key in ("margins", "caps"):
        spelled[key] = {name: v["default"] for name, v in schema["$defs"][key]["properties"].items()}
    (same,) = read_spec(written(tmp_path, **spelled)).cells
    assert same == cell


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_are_read(path: Path) -> None:
    assert read_spec(path).cells


@pytest.mark.parametrize(("change", "what", "fix"), [
    ({"alhpa": 0.1}, "spec.yaml has an unknown key 'alhpa'", "did you mean alpha?"),
    ({"margins": {"acuracy": 1}}, "spec.yaml: margins has an unknown key 'acuracy'", "did you mean accuracy?"),
    ({"cells": [{"run": "a"}, {"run": "b", "expcet": {}}]}, "cells[1] has an unknown key 'expcet'", "mean expect?"),
    ({"cells": [{"run": "a", "floor": 101}]}, "cells[0].floor: 101 is greater", ""),
    ({"cells": [{"name": "a"}]}, "cells[0] has none of run, setting", "exactly one"),
    ({"cells": [{"run": "a", "published": "b"}]}, "cells[0] has run and published", "exactly one"),
    ({"cells": [{"run": "a"}, {"run": "a"}]}, "two cells are called 'a'", "its own name"),
    ({"cells": [{"setting": {"quant": "nvpf4"}}]}, "cells[0].setting.quant is 'nvpf4'", "did you mean nvfp4?"),
    ({"checks": ["acuracy"]}, "checks[0] is 'acuracy'", "did you mean accuracy?"),
    ({"cells": [{"figures": {"source": "s", "correct": 3}}]}, "'n' is a dependency of 'correct'", ""),
    ({"cells": [{"figures": {"source": "s", "correct": 3, "n": 2}}]}, "3 right of 2", "right answers"),
    ({"cells": [{"figures": {"source": "s"}}]}, "neither a score nor a length", "give correct"),
    ({"schema": 2}, "schema is 2", "use 1"), ({"name": None}, "name: None is not of type 'string'", ""),
    ({"alpha": float("nan")}, "alpha is nan", ""),
    ({"holm": True, "in_order": True}, "spec.yaml has both holm and in_order: true", "keep one"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path: Path, change: dict, what: str, fix: str) -> None:
    with pytest.raises(EvalkitError) as e:
        read_spec(written(tmp_path, **change))
    assert what in e.value.what and fix in e.value.fix and "\n" not in str(e.value)


@pytest.mark.parametrize(("text", "what"), [
    ("schema: 1\nname: a\nname: b\ncells: []\n", "has 'name' twice (line 3)"), ("- 1\n", "holds no keys"),
    ("a: [\n", "is no YAML"),
    ("scores: []\n", "is no gate specification: it has scores"), ("name: x\ncells: [{run: a}]\n", "has no 'schema'"),
])  # fmt: skip
def test_files_that_are_no_specification(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(EvalkitError) as e:
        read_spec(tmp_path / "s.yaml")
    assert what in e.value.what


def test_a_yaml_is_a_specification_and_anything_else_a_run(tmp_path: Path) -> None:
    assert (
        looks_like_spec("a.yaml")
        and looks_like_spec("a.YML")
        and not looks_like_spec("runs/a")
        and not looks_like_spec("a.json")
    )
    (tmp_path / "run.yaml").mkdir()
    assert not looks_like_spec(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize(("words", "error"), [
    (["gate", "a.yaml", "b.yaml"], "with other arguments"), (["gate", "a.yaml", "--margin", "0.1"], "with --margin"),
    (["gate", "some-run", "--audit"], "need a specification"), (["gate", "nowhere.yaml"], "no specification nowhere"),
    (["gate", str(M31), "--audit", "--draws", "1"], "--draws is 1"),
])  # fmt: skip
def test_the_command_line_tells_them_apart(capsys: pytest.CaptureFixture[str], words: list[str], error: str) -> None:
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and error in lines[0]


# --- the published figures


@pytest.fixture(scope="module")
def replay() -> SpecResult:
    return judge_spec(read_spec(M31), runs_dir=ROOT / "runs", now=NOW)


def test_the_five_published_scores_and_their_errors(replay: SpecResult) -> None:
    from evalkit.spec.text import reference_line

    said = " ".join(reference_line(ref) for ref in replay.references)
    for words in ("0.9659 ± 0.0050 (1274/1319)", "0.9712 ± 0.0046 (1281/1319)", "0.9682 ± 0.0048 (1277/1319)",
                  "0.9644 ± 0.0051 (1272/1319)", "0.9598 ± 0.0054 (1266/1319)"):  # fmt: skip
        assert words in said
    assert len(replay.references) == 5


@pytest.mark.parametrize(("cell", "check", "difference", "interval", "p", "outcome"), [
    ("fp8 K=7", "reference sglang", "+0.0083", "-0.0060 .. +0.0230", "0.0064", "pass"),
    ("nvfp4 K=7", "reference sglang", "+0.0045", "-0.0102 .. +0.0195", "0.0266", "pass"),
    ("fp8 K=3", "reference sglang", "+0.0061", "-0.0085 .. +0.0209", "0.0157", "pass"),
    ("fp8 K=5", "reference sglang", "+0.0114", "-0.0026 .. +0.0258", "0.0016", "pass"),
    ("nvfp4 K=7", "reference atom-fp8-k7 at 1 pt", "-0.0038", "-0.0179 .. +0.0102", "0.190", "inconclusive"),
    ("nvfp4 K=7", "reference atom-fp8-k7 at 2 pt", "-0.0038", "-0.0179 .. +0.0102", "0.0127", "pass"),
])  # fmt: skip
def test_every_comparison_of_the_published_scores(
    replay: SpecResult, cell: str, check: str, difference: str, interval: str, p: str, outcome: str
) -> None:
    verdict = next(c.verdict for c in replay.cells if c.cell.name == cell)
    found = named(verdict, check)
    x = found.numbers
    assert f"{x['difference']:+.4f}" == difference
    assert "{:+.4f} .. {:+.4f}".format(*x["interval_95"]) == interval
    assert f"{x['p']:.{len(p) - 2}f}" == p and found.outcome == outcome


def test_published_lengths_are_marked_and_leave_the_gate_open(replay: SpecResult) -> None:
    for cell in replay.cells:
        found = named(cell.verdict, "accepted length")
        assert found.outcome is Outcome.INCONCLUSIVE and "curve only, uncertainty assumed" in found.message
    assert replay.outcome is Outcome.INCONCLUSIVE
    assert main(["gate", str(M31)]) == 3


# --- stored runs


def store(root: Path, run: Run) -> Path:
    """A run on disk as the writer leaves it."""
    import hashlib

    folder = root / run.id
    folder.mkdir(parents=True)
    data = b"".join(pack_sample(s) for s in run.samples)
    (folder / "samples.jsonl").write_bytes(data)
    head = {
        f.name: getattr(run, f.name)
        for f in dataclasses.fields(run)
        if f.name not in ("samples", "stopping", "stopped")
    }
    told = {n: v for n, v in run.fingerprint.items() if n != "hash"}
    head["fingerprint"] = {**told, "hash": sha256_json(told)}
    head["output_tokens"] = sum(s.tokens for s in run.samples)
    (folder / "run.json").write_text(dump({"schema": 1, **head, "samples_sha256": hashlib.sha256(data).hexdigest()}))
    return folder


def as_stored(name: str, k: int, quant: str, draft: str = "dspark", share: float = 0.55, n: int = 400) -> Run:
    """A made-up run of a setting, as if this engine and these weights had made it."""
    cell = Cell.make(k=k, quant=quant, draft=draft)
    run = make_run(n, change=lambda i: {"steps": steps(i, k, share)})
    told = {
        **run.fingerprint, "target_sha": checkpoint_hash(cell.engine.model), "quant": quant, "k": k,
        "draft_sha": checkpoint_hash(cell.engine.draft_path) if cell.engine.draft_path else draft,
    }  # fmt: skip
    made = {"started": NOW, "finished": NOW, "code": provenance.code_hash(), "data": {}}
    return dataclasses.replace(run, id=name, cell={**cell.to_json(), "shots": 0}, fingerprint=told, provenance=made)


def test_a_run_is_found_by_glob_and_the_newest_is_taken(tmp_path: Path) -> None:
    for name, when in (("a-k7-1", "2026-01-01T00:00:00+00:00"), ("a-k7-2", "2026-02-01T00:00:00+00:00")):
        store(tmp_path, dataclasses.replace(make_run(3), id=name, provenance={"started": when}))
    assert find_word("*-k7-*", tmp_path) == tmp_path / "a-k7-2" and find_word("a-k7-1", tmp_path) == tmp_path / "a-k7-1"
    assert find_word("*-k9-*", tmp_path) is None
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert find_word("*", tmp_path) == tmp_path / "a-k7-2"


@pytest.mark.parametrize(
    "change",
    [
        "none",
        "code",
        "target_sha",
        "draft_sha",
        "k",
        "quant",
        "limit",
        "incomplete",
        "data",
        "tp",
        "server",
        "online_quant_config",
    ],
)
def test_a_stored_run_of_other_weights_engine_or_setting_is_not_taken(tmp_path: Path, change: str) -> None:
    run = as_stored("r", 7, "fp8", n=3)
    told, cell, made = dict(run.fingerprint), dict(run.cell), dict(run.provenance)
    if change == "online_quant_config":  # recorded twice, as every setting
        told[change] = '{"global_quant_config": "ptpc_fp8"}'
    if change in told and change.endswith("sha"):
        told[change] = "other"
    elif change == "code":
        made["code"] = "other"
    elif change == "data":
        made["data"] = {"test": {"path": "nowhere.jsonl", "sha256": "x"}}
    elif change in cell or change == "server":
        cell[change] = {"k": 5, "quant": "nvfp4", "limit": 3, "tp": 2, "server": {"engine": "vllm"},
                        "online_quant_config": '{"global_quant_config": "ptpc_fp8"}'}[change]  # fmt: skip
    store(
        tmp_path,
        dataclasses.replace(run, fingerprint=told, cell=cell, provenance=made, complete=change != "incomplete"),
    )
    found = find_setting(Cell.make(k=7, quant="fp8"), tmp_path)
    assert (found == tmp_path / "r") is (change == "none")


def test_a_sweep_is_every_k_quant_mode_and_layout_and_each_has_its_own_runs(tmp_path: Path) -> None:
    over = {"k": [3, 7], "quant": ["fp8", "m31flash-c1-4"], "tp": [1, 2]}
    cells = read_spec(written(tmp_path, cells=[{"sweep": over}], setting={"draft": "dspark"})).cells
    assert [c.name for c in cells[:4]] == ["fp8 K=3 TP=1", "fp8 K=7 TP=1", "fp8 K=3 TP=2", "fp8 K=7 TP=2"]
    assert len({(c.setting["k"], c.setting["quant"], c.setting["tp"]) for c in cells}) == len(cells) == 8
    path = written(tmp_path, cells=[{"sweep": {"k": [7], "quant": ["fp8"], "tp": [1, 2]}}, {"setting": {"tp": 4}}])
    store(tmp_path / "runs", as_stored("stored", 7, "fp8"))
    with pytest.raises(EvalkitError, match=r"2 of 3 cells have no stored run: fp8 K=7 TP=2, TP=4"):
        judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
    with pytest.raises(EvalkitError, match=r"sweep.tp\[0\] is 3.*use 1, 2, 4"):
        read_spec(written(tmp_path, cells=[{"sweep": {"k": [7], "quant": ["fp8"], "tp": [3]}}]))


def test_a_sweep_takes_every_quant_mode_that_the_engine_has() -> None:
    assert json.loads(SCHEMA_FILE.read_text())["$defs"]["quant"]["enum"] == list(PRESETS)


def test_what_is_not_stored_is_named_and_run_on_demand(tmp_path: Path) -> None:
    path = written(tmp_path, cells=[{"setting": {"k": 7, "quant": "fp8"}}, {"setting": {"k": 3, "quant": "fp8"}}])
    store(tmp_path / "runs", as_stored("stored", 7, "fp8"))
    with pytest.raises(EvalkitError, match=r"1 of 2 cells have no stored run: fp8 K=3.*add --run-missing"):
        judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
    asked = []

    def make(cell: Cell) -> Run:
        asked.append((cell.k, cell.quant))
        return as_stored("made", cell.k, cell.quant)

    found = judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW, make=make)
    assert asked == [(3, "fp8")] and [v.run_id for v in found.verdicts] == ["stored", "made"]
    with pytest.raises(EvalkitError, match="no stored run: nothing"):
        judge_spec(
            read_spec(written(tmp_path, cells=[{"run": "nothing"}])), runs_dir=tmp_path / "runs", now=NOW, make=make
        )


def test_a_cell_broken_on_purpose_passes_only_when_it_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "runs", dataclasses.replace(make_run(change=lambda i: {"steps": ()}), id="dead"))
    store(tmp_path / "runs", dataclasses.replace(make_run(), id="sound"))
    for run, by, outcome in (
        ("dead", "draft", Outcome.PASS),
        ("sound", "draft", Outcome.FAIL),
        ("dead", "scores", Outcome.FAIL),
    ):
        path = written(tmp_path, cells=[{"run": run, "expect": {"refused_by": [by]}}])
        found = judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
        check = named(found.verdicts[0], REFUSAL)
        assert check.outcome is outcome and found.outcome is outcome and "broken on purpose" in check.message
    text = main(["gate", str(path), "--runs-dir", str(tmp_path / "runs")])
    assert text == 1


def test_a_refusal_is_expected_of_a_check_by_its_name(tmp_path: Path, capsys) -> None:
    path = written(tmp_path, cells=[{"run": "r", "expect": {"refused_by": ["accepted lenght"]}}])
    words = r"cells\[0\]\.expect\.refused_by has 'accepted lenght'.*; fix: did you mean accepted length"
    with pytest.raises(EvalkitError, match=words):
        read_spec(path)
    assert main(["gate", str(path)]) == 2 and "accepted length" in capsys.readouterr().err
    for name in ("reference gsm8k", "path mono", "sweep", "reference "):
        cells = [{"run": "r", "expect": {"refused_by": [name]}}]
        if is_check(name):
            assert read_spec(written(tmp_path, cells=cells)).cells[0].refused_by == (name,)
    assert is_check("path mono") and not is_check("sweep") and not is_check("path ")


def test_every_check_of_the_gate_is_known_by_name() -> None:
    call, keyword = r'(?:checked|check|share_check|_share)\(\s*"([a-z -]+)"', r'\bname="([a-z ]+)"'
    told = re.compile(f"{call}|{keyword}")
    folder = ROOT / "evalkit"
    files = [folder / "answers.py", folder / "servercheck.py", *(folder / "gate").glob("*.py")]
    found = {a or b for file in files for a, b in told.findall(file.read_text())}
    assert {"accepted length", "format", "served setting", "stop cut", "layout"} <= found <= set(CHECKS)
    assert {*CHECKS, *BEGIN, "sweep"} - {"reference"} == set(QUESTION_OF), "the report's list of the same names"
    assert {name.strip() for name in DEMANDS.values()} <= {*CHECKS, *(begin.strip() for begin in BEGIN)}


def test_a_cell_broken_on_purpose_has_no_place_in_the_order(tmp_path: Path) -> None:
    store(tmp_path / "runs", dataclasses.replace(make_run(change=lambda i: {"steps": ()}), id="dead"))
    for name in ("one", "two"):
        store(tmp_path / "runs", dataclasses.replace(make_run(), id=name))
    cells = [{"run": "dead", "expect": {"refused_by": ["draft"]}}, {"run": "one"}, {"run": "two"}]
    found = judge_spec(read_spec(written(tmp_path, cells=cells, in_order=True)), runs_dir=tmp_path / "runs", now=NOW)
    assert [c.name for c in found.verdicts[0].checks] == [REFUSAL]
    places = [named(v, "sweep") for v in found.verdicts[1:]]
    assert "number 1 of 2 in a fixed order" in places[0].message
    assert "number 2 of 2" in places[1].message and "one before it did not pass" in places[1].message
    assert "Cells with `expect` stand outside the order" in PAGE.read_text()


@pytest.mark.parametrize("more", [[], ["--run-missing"]], ids=["stored", "made"])
def test_the_plain_run_of_a_cell_without_a_setting_has_one_fix(tmp_path: Path, capsys, more: list[str]) -> None:
    store(tmp_path / "runs", dataclasses.replace(make_run(), id="stored"))
    path = written(tmp_path, cells=[{"run": "stored", "plain": "setting"}])
    assert main(["gate", str(path), "--runs-dir", str(tmp_path / "runs"), *more]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "fix: name a stored run at K=0 (setting is the plain run of a cell's own setting" in err
    assert "--run-missing" not in err


def test_a_cell_s_twin_is_its_own_setting_in_another_layout_or_a_stored_run(tmp_path: Path) -> None:
    facts = {"tokenizer_sha": "t", "prompts_sha": "p", "stop": [], "draft_method": "dspark"}
    for name, batch in (("wide", 64), ("one", 1)):
        run = as_stored(name, 7, "fp8", n=3)
        cell, told = {**run.cell, "max_batch": batch}, {**run.fingerprint, **facts}
        store(tmp_path / "runs", dataclasses.replace(run, cell=cell, fingerprint=told))

    for cell, words in (
        ({"run": "wide", "twin": "one"}, "3 of 3 texts are those of batch 64 / 1 in run one"),
        ({"run": "wide", "twin": "wide"}, "wide has the same layout"),
        ({"run": "wide"}, "no run of another layout is given"),
    ):
        path = written(tmp_path, cells=[{"checks": ["layout"], **cell}])
        found = judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
        assert words in named(found.verdicts[0], "layout").message

    asked = []

    def make(cell: Cell) -> Run:
        asked.append((cell.engine.max_batch, cell.engine.tp))
        return dataclasses.replace(as_stored("made", 7, "fp8", n=3), cell=cell.to_json() | {"shots": 0})

    for twin, made in (("batch=1", []), ("batch=2", [(2, 1)]), ("tp=2", [(64, 2)])):
        asked.clear()
        path = written(tmp_path, cells=[{"setting": {"k": 7, "quant": "fp8"}, "twin": twin}])
        judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW, make=make)
        assert asked == made, twin
    with pytest.raises(EvalkitError, match=r"no stored twin 'tp=2'.*add --run-missing"):
        judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
    with pytest.raises(EvalkitError, match=r"has the twin 'batch=x'.*give batch=N"):
        judge_spec(read_spec(written(tmp_path, cells=[{"setting": {}, "twin": "batch=x"}])), runs_dir=tmp_path, now=NOW,
                   make=make)  # fmt: skip


# --- waivers

# 25 of 1319 lost against the published 1266: -1.9 pt, a loss under 2 pt is not shown and one under 6 is.
LOWER = {"source": "s", "target": "minimax-m3.1-flash", "task": "gsm8k_inferencex", "shots": 5, "correct": 1241,
         "n": 1319}  # fmt: skip
WAIVER = {"owner": "ana", "reason": "issue 7", "until": "2026-12-10", "margins": {"published": 6}}


def judged_with(folder: Path, now: str = NOW, **change: Any) -> SpecResult:
    cell = {"name": "c", "figures": LOWER, "against": [{"score": "sglang"}], "waiver": {**WAIVER, **change}}
    return judge_spec(read_spec(written(folder, cells=[cell])), runs_dir=folder / "runs", now=now)


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (NOW, Outcome.PASS),
        ("2026-12-10T23:59:59+00:00", Outcome.PASS),
        ("2026-12-11T00:00:00+00:00", Outcome.INCONCLUSIVE),
        ("2026-12-10T23:00:00-02:00", Outcome.INCONCLUSIVE),
    ],
)
def test_a_waiver_widens_a_margin_to_the_end_of_its_day(tmp_path: Path, now: str, outcome: Outcome) -> None:
    found = judged_with(tmp_path, now)
    assert found.outcome is outcome
    check = named(found.verdicts[0], "reference sglang")
    held = outcome is Outcome.PASS
    assert check.numbers["margin"] == (0.06 if held else 0.02)
    note, told = found.verdicts[0].notes[0], "waiver of ana until 2026-12-10: published 2 -> 6 (issue 7)"
    assert note == told if held else note == f"warning: {told} is over: judged at the cell's own limits"
    text = str(spec_text(found))
    assert told in text and ("1 under a waiver" in text) is held


def test_a_waiver_passes_nothing_that_is_not_shown(tmp_path: Path) -> None:
    far = {**LOWER, "correct": 1000}
    cell = {"name": "c", "figures": far, "against": [{"score": "sglang"}], "waiver": WAIVER}
    found = judge_spec(read_spec(written(tmp_path, cells=[cell])), runs_dir=tmp_path, now=NOW)
    assert found.outcome is Outcome.FAIL
    store(tmp_path / "runs", dataclasses.replace(make_run(), id="r", complete=False))
    cell = {"run": "r", "waiver": {**WAIVER, "margins": {"accuracy": 40}, "caps": {"failed": 90, "empty": 90}}}
    found = judge_spec(read_spec(written(tmp_path, cells=[cell])), runs_dir=tmp_path / "runs", now=NOW)
    assert named(found.verdicts[0], "completeness").outcome is Outcome.FAIL and found.outcome is Outcome.FAIL


def test_a_waiver_that_is_not_needed_says_so(tmp_path: Path) -> None:
    cell = {"name": "c", "figures": {**LOWER, "correct": 1290}, "against": [{"score": "sglang"}], "waiver": WAIVER}
    found = judge_spec(read_spec(written(tmp_path, cells=[cell])), runs_dir=tmp_path, now=NOW)
    assert found.outcome is Outcome.PASS and found.verdicts[0].notes[0].endswith("the cell passes at its own limits")


@pytest.mark.parametrize(("change", "what"), [
    ({"margins": {"published": 2}}, "cells[0].waiver.margins.published is 2, the cell's own is 2"),
    ({"margins": {"accuracy": 0.5}}, "accuracy is 0.5, the cell's own is 1"),
    ({"margins": {}}, "waives nothing"), ({"until": "soon"}, "until is 'soon', expected a day"),
    ({"until": "2027-12-10"}, "more than 90 days ahead"), ({"owner": ""}, "waiver.owner"),
    ({"caps": {"drift": 3}}, "unknown key 'drift'"),
])  # fmt: skip
def test_what_is_no_waiver(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(EvalkitError) as e:
        judged_with(tmp_path, **change)
    assert what in e.value.what


def test_a_waiver_needs_its_owner_and_reads_a_plain_date(tmp_path: Path) -> None:
    text = "schema: 1\nname: n\ncells: [{run: r, waiver: {owner: a, reason: b, until: 2026-12-10, caps: {empty: 1}}}]\n"
    (tmp_path / "s.yaml").write_text(text)
    (cell,) = read_spec(tmp_path / "s.yaml").cells
    assert cell.waiver is not None and str(cell.waiver) == "waiver of a until 2026-12-10: empty 0.2 -> 1 (b)"
    assert cell.waiver.limits.answers.max_empty == 0.01 and cell.limits.answers.max_empty == 0.002
    (tmp_path / "s.yaml").write_text(text.replace("owner: a, ", ""))
    with pytest.raises(EvalkitError, match=r"waiver has no 'owner'"):
        read_spec(tmp_path / "s.yaml")


def test_cells_in_a_fixed_order_pass_where_holm_leaves_them_open_up_to_the_first_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(9):
        store(tmp_path / "runs", dataclasses.replace(make_run(4), id=f"run-{i}"))
    open_run = ""

    def judged(run: Run, **words: Any) -> Verdict:
        found = Outcome.INCONCLUSIVE if run.id == open_run else Outcome.PASS
        check = Check(name="accuracy", outcome=found, expected="e", found="f", message="m", numbers={"p": 0.01})
        return Verdict(outcome=found, checks=(check,), run_id=run.id)

    monkeypatch.setattr("evalkit.spec.judge.judge", judged)

    def outcomes(**change: Any) -> list[str]:
        path = written(tmp_path, cells=[{"run": f"run-{i}"} for i in range(9)], **change)
        found = judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
        return [named(v, "sweep").outcome.value for v in found.verdicts]

    assert outcomes() == ["inconclusive"] * 9, "9 times 0.01"
    assert outcomes(in_order=True) == outcomes(in_order=True, holm=False) == ["pass"] * 9
    open_run = "run-3"
    assert outcomes(in_order=True) == ["pass"] * 3 + ["inconclusive"] * 6


def test_yesterdays_run_and_an_unknown_score_in_a_specification(tmp_path: Path) -> None:
    store(
        tmp_path / "runs",
        dataclasses.replace(make_run(), id="old", provenance={"finished": "2026-11-29T00:00:00+00:00"}),
    )
    path = written(tmp_path, cells=[{"run": "old"}], max_age_days=1)
    found = judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)
    assert named(found.verdicts[0], "age").outcome is Outcome.FAIL
    path = written(tmp_path, cells=[{"run": "old", "against": [{"score": "sglng"}]}])
    with pytest.raises(EvalkitError, match=r"no published score 'sglng'.*did you mean sglang"):
        judge_spec(read_spec(path), runs_dir=tmp_path / "runs", now=NOW)


def test_nine_stored_cells_are_judged_without_torch_in_two_seconds_of_cpu(tmp_path: Path) -> None:
    """Processor time, since this machine may be shared: waiting is not the gate's."""
    for k in (3, 5, 7):
        for i in range(3):
            store(
                tmp_path / "runs", dataclasses.replace(as_stored("x", k, "fp8", n=1319), id=f"r{k}-{i}", task_size=1319)
            )
    path = written(tmp_path, cells=[{"run": f"r{k}-{i}"} for k in (3, 5, 7) for i in range(3)])
    shutil.copy(ROOT / "golden" / "gradeschool-m3_dspark.yaml", tmp_path)
    code = (
        "import sys, time; from evalkit.cli import main; "
        f"rc = main(['gate', {str(path)!r}, '--runs-dir', {str(tmp_path / 'runs')!r}, '--json', '-']); "
        "heavy = [m for m in ('torch', 'lm_eval', 'pandas', 'datasets') if m in sys.modules]; "
        "print(rc, heavy, time.process_time(), file=sys.stderr)"
    )
    used: list[float] = []
    while len(used) < 3 and not any(cpu < 2.0 for cpu in used):  # a busy neighbour costs processor time too: its caches
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        rc, plain = done.stderr.split(maxsplit=1)[0], "[]" in done.stderr
        used.append(float(done.stderr.split()[-1]))
        assert rc in ("1", "3") and plain and len(json.loads(done.stdout)["verdicts"]) == 9
    assert min(used) < 2.0, f"{used} s of processor time"

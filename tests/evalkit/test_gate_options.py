"""Options of the gate and of a run: none is dropped, a standard is found by id, what would fail later fails first."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evalkit import console, fingerprint
from evalkit import run as run_module
from evalkit.backends.scripted import Scripted
from evalkit.baseline import GOLDEN_DIR, REAL, baseline_command, refuse_unfit
from evalkit.ci.event import event_of
from evalkit.cli import main
from evalkit.commands import certificate as certificate_command
from evalkit.config import ROOT
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec
from evalkit.gate.accuracy import baseline_differences
from evalkit.gate.served import age_check
from evalkit.golden import curve_of
from evalkit.judging import find_standard, golden_place, spec_of
from evalkit.outputs.summary import summary_text
from evalkit.records import Outcome
from evalkit.store import load_run
from tests.evalkit import test_golden
from tests.evalkit.places import make_place
from tests.evalkit.test_gate import make_baseline, make_run, named, verdict
from tests.evalkit.test_gate_checks import histogram_golden
from tests.evalkit.test_spec import as_stored, store
from tests.evalkit.verdicts import make_check, make_verdict

RUN = ["run", "--model", "target", "--draft", "draft", "--data", "test.jsonl", "--device", "cpu", "--no-report"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A place to run in; the engines that were started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    started: list[Any] = []

    def backend(cell: Any) -> Scripted:
        started.append(Scripted(lambda r: f" that is , I think\n#### {int(r.id) + 1}", k=cell.k))
        return started[-1]

    monkeypatch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
    make_place(tmp_path, 6, answer="#### {n}")
    return started


def error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("fix: "), lines
    return lines[0]


@pytest.mark.parametrize(("words", "said"), [
    (["--baseline", "nope"], "--baseline nope is neither a file nor a stored run"),
    (["--margin", "nan"], "--margin is nan"),
    (["--margin", "inf"], "--margin is inf"), (["--margin", "1"], "--margin is 1, expected a fraction"),
    (["--margin", "-0.01"], "--margin is -0.01"), (["--no-gate", "--margin", "0.02"], "--margin with --no-gate"),
    (["--baseline", "test.jsonl"], "cannot be read"),
])  # fmt: skip
def test_what_would_fail_at_the_end_of_a_run_is_refused_before_it(
    asked: list[Any], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main([*RUN, *words]) == 2
    assert said in error(capsys) and not asked


def test_a_baseline_of_another_setting_is_refused_before_the_first_request(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--no-gate", "--k", "0"]) == 0
    plain = next(Path("runs").iterdir()).name
    capsys.readouterr()
    assert main([*RUN, "--baseline", plain, "--max-tokens", "9"]) == 2
    assert "of another setting than this run (max_tokens" in error(capsys) and not asked[-1].asked
    assert main([*RUN, "--baseline", plain]) in (1, 3)
    assert "6 paired, 0 lost and 0 won" in capsys.readouterr().out


def test_a_standard_is_found_by_path_and_by_id(tmp_path: Path) -> None:
    folder = store(tmp_path / "runs", make_run(3))
    assert find_standard(folder, tmp_path / "runs", "baseline") == folder
    assert find_standard(Path("run-1"), tmp_path / "runs", "baseline") == folder
    assert find_standard(None, tmp_path, "baseline") is None
    with pytest.raises(EvalkitError, match="neither a file nor a stored run"):
        find_standard(tmp_path, tmp_path / "runs", "baseline")  # a folder, and no run
    with pytest.raises(EvalkitError, match="no golden curve"):
        find_standard(Path("nope"), tmp_path, "golden")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 0.5])
def test_a_margin_that_is_none_names_its_option(value: float) -> None:
    with pytest.raises(EvalkitError, match=r"--margin is .*, expected a fraction above 0"):
        spec_of(value)
    assert spec_of(None) == GateSpec() and spec_of(0.02).accuracy_margin == 0.02


SPEC = "schema: 1\nname: n\ncells: [{published: sglang}]\n"


@pytest.mark.parametrize("words", [
    ["--json", "f.json"], ["--junit", "f.xml"], ["--summary", "f.md"], ["--benchmark", "f.json"], ["--step-summary"],
    ["--lm-eval", "f"], ["--run-missing"],
], ids=" ".join)  # fmt: skip
def test_an_audit_drops_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC)
    assert main(["gate", "s.yaml", "--audit", *words]) == 2
    assert f"--audit with {words[0]}" in error(capsys) and not Path(words[-1]).exists()


@pytest.mark.parametrize("words", [["--draws", "50"], ["--seed", "0"]], ids=" ".join)
def test_options_of_an_audit_need_one(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["gate", "s.yaml", *words]) == 2 and f"{words[0]} without --audit" in error(capsys)


# --- advice that works


def test_a_command_is_advised_only_where_names_say_the_setting() -> None:
    run = make_run()
    assert baseline_command(run).startswith("evalkit golden record --target gradeschool-m3 --task gradeschool --k 0")
    for change in ({"target": "folder"}, {"server": {"engine": "vllm"}}, {"data": "my.jsonl"}, {"temperature": 1.0}):
        other = make_run(cell={**run.cell, **change})
        assert "evalkit baseline record THAT_RUN" in baseline_command(other), change
        length = named(verdict(other, golden=None), "accepted length").message
        assert "golden record --target" not in length and "golden record THAT_RUN" in length


def test_a_forced_run_is_told_to_verify_and_not_to_record_a_golden() -> None:
    run = make_run(change=lambda i: {"forced": True, "scores": {}})
    found = verdict(run)
    assert found.outcome is Outcome.FAIL and "forced, so no text was scored" in named(found, "scores").message
    length = named(found, "accepted length").message
    assert REAL in length and "golden record" not in length
    with pytest.raises(EvalkitError, match="has forced acceptance: no golden; fix: run it again with real"):
        refuse_unfit(make_run(3, expected=9, change=lambda i: {"forced": True}), "golden")


# --- C54: two layouts, one draft


def test_c54_a_run_is_the_golden_of_another_layout(tmp_path: Path) -> None:
    one = test_golden.make_run(k=3, n=150, seed=1)
    same = test_golden.make_run(k=3, n=150, seed=2)
    worse = test_golden.make_run(k=3, n=150, seed=3, share=0.4)
    golden = curve_of(one)
    assert golden.place == f"run {one.id}" and golden.values["thinking_off"][3].histogram
    found = named(verdict(same, golden=golden, baseline=None), "accepted length")
    assert found.outcome is Outcome.PASS and found.numbers["golden"] == pytest.approx(3.1, abs=0.1)
    assert named(verdict(worse, golden=golden, baseline=None), "accepted length").outcome is Outcome.FAIL
    other = test_golden.marked(same, target_sha="t2")
    assert named(verdict(other, golden=golden, baseline=None), "accepted length").outcome is Outcome.INCONCLUSIVE


def test_c54_the_command_line_takes_a_run_as_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tp1", "tp2"):
        store(tmp_path, as_stored(name, 7, "float32"))
    words = ["gate", "tp2", "--runs-dir", str(tmp_path), "--golden"]
    main([*words, "tp1"])
    assert "against golden 4.80" in capsys.readouterr().out
    assert main([*words, "tp2"]) == 2 and "given as its own golden" in error(capsys)


# --- a folder of curves


def test_of_a_folder_of_curves_the_run_s_own_is_taken_and_never_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store(tmp_path, as_stored("r", 7, "float32"))
    store(tmp_path, as_stored("e", 7, "float32", draft="eagle3"))
    folder = tmp_path / "curves"
    shutil.copytree(GOLDEN_DIR, folder)

    def gate(run: str, golden: Path) -> tuple[int, str, str]:
        code = main(["gate", run, "--runs-dir", str(tmp_path), "--golden", str(golden)])
        out, err = capsys.readouterr()
        return code, out, err

    for run, name in (("r", "gradeschool-m3_dspark.yaml"), ("e", "gradeschool-m3_eagle3.yaml")):
        assert gate(run, folder) == gate(run, folder / name) and f"golden/{name}" in gate(run, folder)[1]
    Path("s.yaml").write_text(f"schema: 1\nname: n\ngolden: {folder}\ncells: [{{run: r}}]\n")
    main(["gate", "s.yaml", "--runs-dir", str(tmp_path)])
    assert "golden/gradeschool-m3_dspark.yaml" in capsys.readouterr().out

    text = (folder / "minimaxm31flash_dspark.yaml").read_text().replace("\nminimax-m3.1-flash:", "\ngradeschool-m3:")
    text = text.replace("# No uncertainty", "# draft: dspark\n# dataset: gradeschool | draft: dspark\n# No uncertainty")
    (folder / "other_dspark.yaml").write_text(text)
    code, _, err = gate("r", folder)
    assert code == 2 and "2 golden curves of gradeschool-m3 fit: gradeschool-m3_dspark.yaml" in err
    (folder / "other_dspark.yaml").unlink()
    (folder / "gradeschool-m3_dspark.yaml").unlink()
    code, _, err = gate("r", folder)
    assert code == 2 and "no golden curve of gradeschool-m3 with method dspark" in err and "eagle3" in err
    (folder / "broken.yaml").write_text("a: [")
    assert gate("e", folder)[0] == 2, "the file that can't be read may be the one that is meant"
    (tmp_path / "empty").mkdir()
    assert "has no golden curve" in gate("r", tmp_path / "empty")[2]


INFERENCEX = ROOT.parent / "shared" / "data" / "inferencex" / "golden_al_distribution"


@pytest.mark.skipif(not INFERENCEX.is_dir(), reason="InferenceX's curves are not part of the checkout")
def test_of_inferencex_s_own_folder_two_variants_of_one_model_are_told_apart_or_refused() -> None:
    run = dataclasses.replace(make_run(), cell={**make_run().cell, "target": "org/GLM-5.2-FP8", "draft": "mtp"})
    assert golden_place(INFERENCEX, run).name == "glm5.2_mtp.yaml"
    for target, draft, files in (("Kimi-K3", "dspark", 2), ("MiniMax-M3", "eagle3", 2)):
        run = dataclasses.replace(run, cell={**run.cell, "target": target, "draft": draft})
        with pytest.raises(EvalkitError, match=f"{files} golden curves of {target} fit"):
            golden_place(INFERENCEX, run)


# --- C20: one BOS policy


def test_c20_arms_of_another_bos_policy_are_not_compared() -> None:
    run = make_run()
    told = fingerprint.accuracy_fingerprint(run).fields
    assert told["bos"] == "tokenizer", "the engine in this process leaves it to the tokenizer, whose hash is compared"
    recorded = make_baseline(fingerprint={**make_baseline().fingerprint, "bos": "none"})
    served = make_run(fingerprint={**run.fingerprint, "bos": "first token 2"})
    assert [d.name for d in baseline_differences(recorded, served)] == ["bos"]
    found = named(verdict(served, baseline=recorded, spec=GateSpec(demands=("accuracy",))), "accuracy")
    assert found.outcome is Outcome.FAIL and "(bos none / first token 2)" in found.message
    same = make_run(fingerprint={**run.fingerprint, "bos": "none"})
    assert named(verdict(same, baseline=recorded), "accuracy").outcome is Outcome.PASS


# --- C75: n beside every score


def test_c75_a_list_of_runs_says_the_count_beside_every_score(tmp_path: Path) -> None:
    from rich.console import Console

    out = Console(width=200, record=True, file=io.StringIO())
    out.print(console.runs_table([make_run(), make_run(100, id="small", task_size=400)]))
    text = out.export_text()
    assert "0.9500 (380/400)" in text and "0.9500 (95/100)" in text and "100/100 of 400" in text


# --- words


def test_a_run_of_the_future_is_told_apart_from_an_old_one() -> None:
    now = "2026-11-30T12:00:00+00:00"

    def age(when: str) -> Any:
        return age_check(make_run(provenance={"finished": when}), 7, now)

    assert age("2026-11-30T12:05:00+00:00").outcome is Outcome.PASS, "two machines' clocks"
    ahead, old = age("2026-12-03T12:00:00+00:00"), age("2026-11-01T12:00:00+00:00")
    assert ahead.outcome is Outcome.FAIL and "3.0 days in the future" in ahead.message and "clocks" in ahead.message
    assert old.outcome is Outcome.FAIL and "29.0 days ago" in old.message and "run it again" in old.message


def test_a_summary_has_each_margin_in_its_unit() -> None:
    rows = {
        "accuracy": ({"difference": 0.0, "margin": 0.01}, "| 1 pt |"),
        "accepted length": ({"ratio": 1.0, "margin": 0.05}, "| 5 % |"),
        "accepted drafts distribution": ({"margin": 0.321}, "| 0.321 tokens |"),
        "accept rate by position": ({"margin": 0.05, "interval": [-0.01, 0.02]}, "| -1.0 .. +2.0 pt | 5 pt |"),
        "floor": ({"floor": 0.9, "interval": [0.95, 0.97]}, "| 0.9500 .. 0.9700 |"),
        "age": ({"limit": 7}, "| 7 days |"), "requests": ({"limit": 0.01}, "| 1 % |"),
    }  # fmt: skip
    for name, (numbers, cell) in rows.items():
        assert cell in summary_text([make_verdict(make_check(name, **numbers))], []), name


def test_a_failed_distribution_says_the_p_of_a_loss_over_the_margin() -> None:
    name = "accepted drafts distribution"
    good, bad = (named(verdict(golden=histogram_golden(shift)), name) for shift in (0, 1))
    assert good.outcome is Outcome.PASS and "for a loss under it" in good.message
    assert bad.outcome is Outcome.FAIL and "for a loss over it" in bad.message
    assert f"p {bad.numbers['p_worse']:.2g} for a loss over it" in bad.message
    rates = named(verdict(golden=histogram_golden(1)), "accept rate by position")
    assert "for a loss over 5 pt at one of 7 positions" in rates.message


def test_an_interrupt_without_a_sample_or_with_fresh_says_what_the_command_would_do(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(kept: int) -> Any:
        def run(*args: Any, **words: Any) -> None:
            raise run_module.Interrupted(kept=kept, total=6, number=2)

        return run

    monkeypatch.setattr(run_module, "run_cell", stop(0))
    assert main(RUN) == 130
    assert capsys.readouterr().err == "interrupted: no sample was finished; the same command starts again\n"
    monkeypatch.setattr(run_module, "run_cell", stop(4))
    assert main([*RUN, "--fresh"]) == 130
    assert "continues (without --fresh, which would start anew)" in capsys.readouterr().err


def test_an_interrupt_after_the_run_says_that_it_is_whole(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*args: Any, **words: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evalkit.judging.judge_run", stop)
    assert main(RUN) == 130
    made = next(Path("runs").iterdir()).name
    assert f"the run is whole and stored; evalkit gate {made} judges it" in capsys.readouterr().err
    assert load_run(Path("runs") / made).complete


# --- ci plan


def pull(**change: Any) -> dict[str, Any]:
    repo = {"full_name": "rocm/atom"}
    known = {"state": "open", "draft": False, "labels": [], "head": {"sha": "c" * 40, "repo": repo},
             "base": {"ref": "main", "repo": repo}}  # fmt: skip
    return {"action": "opened", "pull_request": {**known, **change}}


@pytest.mark.parametrize(("name", "payload", "said"), [
    ("pul_request", pull(), "'pul_request' is none that starts jobs here; fix: did you mean pull_request"),
    ("issue_comment", {}, "none that starts jobs"),
    ("pull_request", pull(labels={"name": "ci:full"}), "its labels is dict, expected a list"),
    ("pull_request", pull(labels=["ci:full"]), "its name is in str, expected an object"),
    ("pull_request", pull(head={"sha": None, "repo": {"full_name": "a/b"}}), "its sha is NoneType, expected text"),
    ("pull_request", pull(base={"ref": "main", "repo": None}), "its full_name is in NoneType"),
    ("pull_request", pull(draft=0), "its draft is int, expected true or false"),
    ("pull_request", pull(state=1), "its state is int"), ("pull_request", {"action": 3, "pull_request": None}, "event"),
])  # fmt: skip
def test_an_event_of_another_kind_decides_nothing(name: str, payload: dict[str, Any], said: str) -> None:
    with pytest.raises(EvalkitError) as found:
        event_of(name, payload)
    assert said in str(found.value)


# --- certificates


def test_a_certificate_by_specification_rests_on_it_and_its_margins_can_be_bounded(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--no-gate"]) == 0
    run = load_run(next(Path("runs").iterdir()))
    Path("s.yaml").write_text(f"schema: 1\nname: n\nmargins: {{accuracy: 3}}\ncells: [{{run: '{run.id}'}}]\n")
    seen: list[GateSpec] = []

    def judge(run: Any, **words: Any) -> Any:
        seen.append(words["spec"])
        return make_verdict(make_check("accuracy", margin=words["spec"].accuracy_margin, p=0.01), run_id=run.id)

    monkeypatch.setattr("evalkit.spec.judge.judge", judge)
    capsys.readouterr()
    assert main(["certificate", "make", "s.yaml"]) == 0
    assert seen[0].accuracy_margin == 0.03, "judged by the specification"
    path = Path("runs") / run.id / "certificate.json"
    told = json.loads(path.read_text())
    assert "specification" in [row["role"] for row in told["standards"]]
    capsys.readouterr()

    def check(*words: str) -> tuple[int, str]:
        return main(["certificate", "check", str(path), "--against", run.id, *words]), capsys.readouterr().out

    assert check()[0] == 0 and check("--max-margin", "accuracy=0.03")[0] == 0
    code, out = check("--max-margin", "accuracy=0.01")
    assert code == 1 and "judged by accuracy at a margin of 0.03, at most 0.01 is asked for" in out
    code, out = check("--max-margin", "accepted length=0.05")
    assert code == 1 and "not judged by accepted length at a margin" in out, "missing is never a pass"
    for odd in ("accuracy", "acuracy=0.1", "accuracy=nan", "accuracy=-1"):
        assert main(["certificate", "check", str(path), "--against", run.id, "--max-margin", odd]) == 2
        assert "expected CHECK=NUMBER" in error(capsys)
    plain = Path("s.yaml").read_text()
    day = (datetime.now(UTC) + timedelta(days=3)).date()
    waiver = f"waiver: {{owner: a, reason: b, until: {day}, margins: {{accuracy: 4}}}}"
    Path("s.yaml").write_text(plain.replace("}]", f", {waiver}}}]"))
    assert main(["certificate", "make", "s.yaml"]) == 0
    assert json.loads(path.read_text())["expires"] == f"{day + timedelta(days=1)}T00:00:00+00:00"
    assert "at a margin of 0.04" in check("--max-margin", "accuracy=0.03")[1]
    Path("s.yaml").write_text(plain)
    assert main(["certificate", "make", "s.yaml"]) == 0
    Path("s.yaml").write_text(plain.replace("3}", "9}"))
    capsys.readouterr()
    code, out = check()
    assert code == 1 and "specification s.yaml has changed since" in out
    Path("s.yaml").unlink()
    assert "specification s.yaml is missing" in check()[1]


def test_a_cell_broken_on_purpose_gets_no_certificate(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--no-gate"]) == 0
    run = next(Path("runs").iterdir()).name
    Path("s.yaml").write_text(
        f"schema: 1\nname: n\ncells: [{{name: bad, run: '{run}', expect: {{refused_by: [completeness]}}}}]\n"
    )
    assert main(["certificate", "make", "s.yaml"]) == 2
    captured = capsys.readouterr()
    assert "bad is broken on purpose" in captured.out and "no cell with a run to certify" in captured.err
    assert not (Path("runs") / run / certificate_command.FILE).exists()


def test_a_plain_run_is_named_on_the_command_line_and_its_texts_are_demanded(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*RUN, "--no-gate", "--k", "7"])
    (drafted,) = (p.name for p in Path("runs").iterdir())
    main([*RUN, "--no-gate", "--k", "0"])
    (plain,) = (p.name for p in Path("runs").iterdir() if p.name != drafted)

    def lossless(run: str, other: str) -> dict[str, Any]:
        capsys.readouterr()
        main(["gate", run, "--plain", other, "--json", "-"])
        checks = json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]
        return next(c for c in checks if c["name"] == "lossless")

    same = lossless(drafted, plain)
    assert same["outcome"] == "pass" and "6 of 6 texts are those of plain run" in same["message"]
    for run, other, why in ((drafted, drafted, "is a run at K=7"), (plain, plain, "the run itself"),
                            (plain, drafted, "is a run at K=7")):  # fmt: skip
        found = lossless(run, other)
        assert found["outcome"] == "fail" and why in found["message"] and "the gate demands it" in found["message"]
    assert main(["gate", drafted, "--plain", "nothing"]) == 2 and "nothing" in error(capsys)


def test_a_text_that_is_not_the_plain_one_fails_by_name(asked: list[Any], monkeypatch: Any, capsys: Any) -> None:
    main([*RUN, "--no-gate", "--k", "0"])
    (plain,) = (p.name for p in Path("runs").iterdir())
    wrong = Scripted(lambda r: f" that is , I guess\n#### {int(r.id) + 1}", k=7)
    monkeypatch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=lambda cell: wrong))
    main([*RUN, "--no-gate", "--k", "7"])
    drafted = next(p.name for p in Path("runs").iterdir() if p.name != plain)
    capsys.readouterr()
    assert main(["gate", drafted, "--plain", plain]) == 1
    assert "lossless: 0 of 6 texts are those of plain run" in capsys.readouterr().out

"""The certificate: only a pass gets one, and whatever is changed afterwards is named. Each test breaks one thing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evalkit import run as run_module
from evalkit.backends.scripted import Scripted
from evalkit.certificate import (
    canonical,
    faults,
    hash_stored,
    make_certificate,
    read_certificate,
    require_certificate,
    write_certificate,
)
from evalkit.cli import main
from evalkit.commands import certificate as command
from evalkit.errors import EvalkitError
from evalkit.fingerprint import Fingerprint, config_fingerprint, make
from evalkit.records import Outcome, Run
from evalkit.store import load_run
from tests.evalkit.verdicts import FAIL, INCONCLUSIVE, PASS, make_check, make_verdict

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = b"0123456789abcdef"
RUN = ["run", "--model", "target", "--draft", "draft", "--data", "test.jsonl", "--device", "cpu", "--no-gate",
       "--no-report", "--runs-dir", "runs"]  # fmt: skip
ONLINE = '{"global_quant_config": "ptpc_fp8"}'
CELL = ["--model", "target", "--draft", "draft", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stored run at K=7, float32, and what it was made of; each test has a copy."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("target", "draft", "other-draft"):
        (folder / name).mkdir()
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (folder / name / file).write_text('{"other": 1}' if "other" in name else "{}")
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(6)]
    (folder / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "base.json").write_text("a baseline")

    def backend(cell: Any) -> Scripted:
        return Scripted(lambda r: f" that is , I think\n#### {int(r.id) + 1}", k=cell.k)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
        assert main(RUN) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in, a verdict that passes, and a clock that stands still."""
    folder = shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(command, "clock", lambda: NOW)
    judged(monkeypatch, PASS)
    return folder


def judged(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    verdict = make_verdict(make_check(outcome=outcome, p=0.01))
    monkeypatch.setattr("evalkit.judging.judge", lambda run, **words: replace(verdict, run_id=run.id))
    monkeypatch.setattr("evalkit.judging.read_baseline", lambda path: None)


def the_run(place: Path) -> Path:
    return next((place / "runs").iterdir())


def certify(place: Path, **more: Any) -> tuple[Path, Run]:
    run = load_run(the_run(place))
    verdict = make_verdict(make_check(), run_id=run.id)
    standards = [("baseline", place / "base.json")]
    values = make_certificate(verdict, run, the_run(place), standards=standards, now=NOW, **more)
    return write_certificate(values, place / "c.json"), run


def found_in(place: Path, path: Path, run: Run | Fingerprint, now: datetime = NOW, **more: Any) -> tuple[str, ...]:
    here = run if isinstance(run, Fingerprint) else config_fingerprint(run)
    return faults(read_certificate(path), now=now, fingerprint=here, places=(place / "runs", place), **more)


def edit(path: Path, change: Callable[[dict], object], *, reseal: bool = False) -> None:
    values = json.loads(path.read_text())
    change(values)
    if reseal:  # as somebody would who knows how the hash is made, and not the key
        body = {k: v for k, v in values.items() if k not in ("sha256", "hmac_sha256")}
        values["sha256"] = hashlib.sha256(canonical(body)).hexdigest()
    path.write_text(json.dumps(values))


def test_a_certificate_holds_for_its_own_configuration(place: Path) -> None:
    path, run = certify(place)
    assert found_in(place, path, run) == ()
    cert = require_certificate(path, config_fingerprint(run), NOW, places=(place / "runs", place))
    assert cert.expires - cert.issued == timedelta(days=14) and cert.body["verdict"]["outcome"] == "pass"
    assert cert.runs[0].sha256 == hash_stored(the_run(place))
    assert str(place) not in path.read_text(), "no path of the machine"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("k", 5, "K is 5, the certificate is for 7"),
        ("quant", "nvfp4", "quant mode is nvfp4, the certificate is for float32"),
        ("draft_sha", "e" * 64, "draft (sha256 of its files) is eeeeeeeeeeee"),
        ("draft_method", "ngram", "draft method is ngram"),
        ("target_sha", "e" * 64, "target (sha256 of its files) is eeeeeeeeeeee"),
        ("draft_width", "block", "draft_width is block"),
        ("image", "rocm/atom:2", "image is rocm/atom:2"),
        ("flags", {"--kv-cache-dtype": "fp8"}, "flags is"),
        ("max_batch", 8, "max_batch is 8"),
        ("engine_code", "f" * 64, "engine_code is ffffffffffff"),
        ("torch", "9.9", "torch is 9.9"),
        ("k", None, "K is not recorded"),
    ],
)
def test_a_changed_field_is_named(place: Path, name: str, value: Any, said: str) -> None:
    path, run = certify(place)
    other = make({**config_fingerprint(run).fields, name: value})
    (fault,) = found_in(place, path, other)
    assert said in fault
    with pytest.raises(EvalkitError, match="does not allow this run") as caught:
        require_certificate(path, other, NOW, places=(place / "runs", place))
    assert said in caught.value.what


def test_every_differing_field_is_named(place: Path) -> None:
    path, run = certify(place)
    other = make({**config_fingerprint(run).fields, "k": 3, "quant": "fp8", "image": "i"})
    assert [f.split(" is ")[0] for f in found_in(place, path, other)] == ["K", "quant mode", "image"]


@pytest.mark.parametrize("outcome", [FAIL, INCONCLUSIVE])
def test_no_other_verdict_gets_one(place: Path, outcome: Outcome) -> None:
    run = load_run(the_run(place))
    odd = make_verdict(make_check(), make_check("b", outcome), outcome=PASS, run_id=run.id)  # says pass, and is none
    for verdict in (make_verdict(make_check(outcome=outcome), run_id=run.id), odd):
        with pytest.raises(EvalkitError, match="no certificate"):
            make_certificate(verdict, run, the_run(place), standards=[], now=NOW)


def test_a_pass_without_a_check_or_of_another_run_gets_none(place: Path) -> None:
    run = load_run(the_run(place))
    for verdict in (make_verdict(outcome=PASS, run_id=run.id), make_verdict(make_check(), run_id="other")):
        with pytest.raises(EvalkitError):
            make_certificate(verdict, run, the_run(place), standards=[], now=NOW)


def test_what_the_run_does_not_record_is_not_certified(place: Path) -> None:
    run = load_run(the_run(place))
    run = replace(run, fingerprint={k: v for k, v in run.fingerprint.items() if k != "draft_sha"})
    with pytest.raises(EvalkitError, match="does not record draft_sha"):
        make_certificate(make_verdict(make_check(), run_id=run.id), run, the_run(place), standards=[], now=NOW)


def test_an_edited_verdict_is_seen(place: Path) -> None:
    path, run = certify(place)
    edit(path, lambda c: c["verdict"]["checks"][0].update(message="better than it was"))
    assert found_in(place, path, run) == ("the file was edited: its content is not what its sha256 is of",)


def test_an_edit_with_a_new_hash_is_seen_by_who_has_the_key(place: Path) -> None:
    path, run = certify(place, key=KEY)
    assert found_in(place, path, run, key=KEY) == ()
    edit(path, lambda c: c.update(expires="2027-11-01T00:00:00+00:00"), reseal=True)
    assert found_in(place, path, run, key=KEY) == ("it was not signed with this key, or edited after it was",)


def test_keys(place: Path) -> None:
    path, run = certify(place, key=KEY)
    assert "not signed with this key" in found_in(place, path, run, key=KEY[::-1])[0]
    with pytest.raises(EvalkitError, match="signed with a key"):
        found_in(place, path, run)
    plain, run = certify(place)
    assert found_in(place, plain, run, key=KEY) == ("it is not signed, and a key was given",)
    with pytest.raises(EvalkitError, match="has 3 bytes"):
        certify(place, key=b"abc")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["verdict"].update(outcome="inconclusive"), "its verdict is no pass"),
        (lambda c: c["verdict"]["checks"][0].update(outcome="fail"), "its verdict is no pass"),
        (lambda c: c["verdict"].update(checks=[]), "it holds no verdict"),
        (lambda c: c["verdict"].update(run_id="other"), "another run than it names"),
        (lambda c: c["configuration"].update(k=5), "its fingerprint is not that of its configuration"),
        (lambda c: c.update(expires="2036-11-01T00:00:00+00:00"), "more than 365 days"),
    ],
)
def test_what_no_certificate_of_ours_would_say_is_seen_even_with_a_new_hash(
    place: Path, change: Callable[[dict], object], said: str
) -> None:
    path, run = certify(place)
    edit(path, change, reseal=True)
    assert any(said in fault for fault in found_in(place, path, run))


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (timedelta(days=14), "it expired at 2026-12-14T12:00:00+00:00"),
        (timedelta(days=-1), "issued in the future"),
    ],
)
def test_time(place: Path, after: timedelta, said: str) -> None:
    path, run = certify(place)
    assert said in found_in(place, path, run, now=NOW + after)[0]
    assert found_in(place, path, run, now=NOW + timedelta(days=14, seconds=-1)) == ()
    assert found_in(place, path, run, now=NOW - timedelta(minutes=4)) == ()  # clocks differ


@pytest.mark.parametrize("file", ["samples.jsonl", "run.json"])
def test_an_edited_run_is_seen(place: Path, file: str) -> None:
    path, run = certify(place)
    stored = the_run(place) / file
    stored.write_text(stored.read_text().replace("that is", "this is").replace('"seconds"', '"Seconds"'))
    assert found_in(place, path, run) == (f"run {run.id} has changed since",)


def test_a_run_or_standard_that_is_gone_or_changed_is_seen(place: Path) -> None:
    path, run = certify(place)
    (place / "base.json").write_text("another baseline")
    assert found_in(place, path, run) == ("baseline base.json has changed since",)
    (place / "mine.json").write_text("a baseline")
    assert found_in(place, path, run, named={"baseline": place / "mine.json"}) == ()
    (place / "base.json").unlink()
    (the_run(place) / "samples.jsonl").unlink()
    missing = found_in(place, path, run)
    assert "is not whole" in missing[0] and missing[1] == "baseline base.json is missing"
    shutil.rmtree(the_run(place))
    assert f"run {run.id} is missing" in found_in(place, path, run)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", '{"kind": "evalkit.certificate", "schema": 2}', '{"kind": 1, "schema": NaN}', "\x00"]
)
def test_what_is_no_certificate_is_an_error(place: Path, text: str) -> None:
    (place / "c.json").write_text(text)
    with pytest.raises(EvalkitError, match="is no certificate"):
        read_certificate(place / "c.json")
    assert main(["certificate", "check", "c.json", "--k", "7", *CELL]) == 2


def test_make_and_check_by_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = the_run(place).name
    assert main(["certificate", "make", name, "--baseline", "base.json"]) == 0
    assert "until 2026-12-14T12:00:00+00:00" in capsys.readouterr().out
    file = str(the_run(place) / "certificate.json")
    known = ["--baseline", "base.json"]
    assert main(["certificate", "check", file, "--against", name, *known]) == 0
    assert main(["certificate", "check", file, "--k", "7", *CELL, *known]) == 0
    assert capsys.readouterr().out.count("valid: certificate.json") == 2
    for words, said in [
        (["--k", "5"], "K is 5, the certificate is for 7"),
        (["--k", "7", "--quant", "nvfp4"], "quant mode is nvfp4"),
        (["--k", "7", "--draft", "other-draft"], "draft (sha256 of its files) is"),
        (["--k", "7", "--image", "x:1"], "image is x:1"),
        (["--k", "7", "--flag", "tp=4"], "flags is"),
        (["--k", "7", "--batch", "8"], "max_batch is 8"),
        (["--k", "7", "--device", "cuda"], "device is cuda"),
        (["--k", "7", "--tp", "2"], "tp is 2, the certificate is for 1"),
        (["--k", "7", "--online-quant-config", ONLINE], 'ptpc_fp8"}, the certificate is for none'),
    ]:
        assert main(["certificate", "check", file, *CELL, *words, *known]) == 1
        assert said in capsys.readouterr().out
    assert main(["certificate", "show", file]) == 0
    out = capsys.readouterr().out
    assert f"pass on {name}" in out and "baseline     base.json" in out and "accuracy: fine" in out


def test_a_certificate_of_quantised_weights_is_none_for_plain_float32(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def backend(cell: Any) -> Scripted:
        return Scripted(lambda r: f" so\n#### {int(r.id) + 1}", k=cell.k)

    monkeypatch.setattr(run_module, "run_cell", partial(run_module.run_cell, backend=backend))
    assert main([*RUN, "--online-quant-config", ONLINE.replace("ptpc", "PTPC")]) == 0
    head = capsys.readouterr()
    assert "K=7  float32 online=ptpc_fp8" in head.out
    (folder,) = [f for f in (place / "runs").iterdir() if "-float32-online-ptpc_fp8-" in f.name]
    assert main(["certificate", "make", folder.name, "--baseline", "base.json"]) == 0
    file, known = str(folder / "certificate.json"), [*CELL, "--baseline", "base.json"]
    assert main(["certificate", "check", file, "--k", "7", "--quant", "float32", *known]) == 1
    assert "online_quant_config (weights quantised after loading) is none" in " ".join(capsys.readouterr().out.split())
    for same in (ONLINE, ONLINE.upper().replace("GLOBAL_QUANT_CONFIG", "global_quant_config")):
        assert main(["certificate", "check", file, "--k", "7", "--online-quant-config", same, *known]) == 0
    capsys.readouterr()
    assert main(["show", folder.name]) == 0
    assert 'online_quant_config {"global_quant_config": "ptpc_fp8"}' in " ".join(capsys.readouterr().out.split())


def test_a_run_whose_counters_are_not_whole_is_inconclusive(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = the_run(place)
    (folder / "certificate.json").write_text("of an earlier verdict")
    head = json.loads((folder / "run.json").read_text())
    head["provenance"]["sessions"] = [{"kept": 0}, {"kept": 4, "counted": True}]  # the first was killed
    (folder / "run.json").write_text(json.dumps(head))
    assert main(["certificate", "make", folder.name, "--baseline", "base.json"]) == 3
    assert "is inconclusive" in capsys.readouterr().out and not (folder / "certificate.json").exists()
    head["provenance"]["sessions"][0]["counted"] = True
    (folder / "run.json").write_text(json.dumps(head))
    assert main(["certificate", "make", folder.name, "--baseline", "base.json"]) == 0


def test_a_run_that_does_not_pass_loses_its_certificate(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = the_run(place).name
    assert main(["certificate", "make", name]) == 0
    for outcome, code in ((FAIL, 1), (INCONCLUSIVE, 3)):
        judged(monkeypatch, outcome)
        assert main(["certificate", "make", name]) == code
        assert f"no certificate: {name} is {outcome.value} by accuracy" in capsys.readouterr().out
        assert not (the_run(place) / "certificate.json").exists()


def test_expiry_and_keys_by_command(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    name, file = the_run(place).name, str(the_run(place) / "certificate.json")
    (place / "key").write_bytes(KEY + b"\n")
    monkeypatch.setenv("SIGNING_KEY", KEY.decode())
    assert main(["certificate", "make", name, "--days", "1", "--key-file", "key"]) == 0
    asked = ["certificate", "check", file, "--against", name]
    assert main(asked) == 2 and "--key-file" in capsys.readouterr().err
    assert main([*asked, "--key-env", "SIGNING_KEY"]) == 0
    monkeypatch.setattr(command, "clock", lambda: NOW + timedelta(days=1))
    assert main([*asked, "--key-file", "key"]) == 1 and "it expired at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "neither --against nor --k"),
        (["--against", "x", "--k", "7"], "both --against and --k"),
        (["--against", "nothing"], "no run 'nothing'"),
        (["--k", "7", *CELL, "--flag", "tp"], "expected NAME=VALUE"),
        (["--k", "7", *CELL, "--key-env", "NOT_SET"], "holds no key"),
        (["--k", "7", *CELL, "--key-file", "nothing"], "cannot be read"),
    ],
)
def test_what_cannot_be_checked_is_an_error(place: Path, capsys, words: list[str], said: str) -> None:
    main(["certificate", "make", the_run(place).name])
    assert main(["certificate", "check", str(the_run(place) / "certificate.json"), *words]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
    assert main(["certificate", "check", "nothing.json", "--k", "7", *CELL]) == 2


def test_the_printed_default_of_device_is_the_engine_s(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    main(["certificate", "make", the_run(place).name])
    file = str(the_run(place) / "certificate.json")
    asked = ["certificate", "check", file, "--k", "7", "--model", "target", "--draft", "draft"]
    said = "cuda" if torch.cuda.is_available() else "cpu"
    assert main(asked) == (0 if said == "cpu" else 1)
    assert main([*asked, "--device", "auto"]) == (0 if said == "cpu" else 1)


def test_a_warning_of_the_gate_is_carried(place: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    note = "warning: accepted length is 53 % above golden: too good to be believed unread"
    verdict = replace(make_verdict(make_check(outcome=PASS, p=0.01)), notes=("a note", note))
    monkeypatch.setattr("evalkit.judging.judge", lambda run, **words: replace(verdict, run_id=run.id))
    main(["certificate", "make", the_run(place).name])
    file = str(the_run(place) / "certificate.json")
    for words in (["check", file, "--against", the_run(place).name], ["show", file]):
        capsys.readouterr()
        assert main(["certificate", *words]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert note in told and "a note" not in told


@pytest.mark.parametrize("change", [
    {"verdict": None}, {"verdict": {}}, {"verdict": {"outcome": "pass", "checks": [5]}},
    {"verdict": {"outcome": "pass", "checks": [{"outcome": "pass"}]}}, {"runs": [{"role": 5, "name": 5, "sha256": 5}]},
    {"runs": [{"role": "run", "name": "../x", "sha256": "a"}]}, {"standards": None}, {"configuration": []},
], ids=str)  # fmt: skip
def test_a_certificate_of_another_shape_is_a_line(
    place: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = certify(place)
    edit(path, lambda values: values.update(change), reseal=True)
    capsys.readouterr()
    assert main(["certificate", "check", str(path), "--against", run.id, "--runs-dir", "runs"]) in (1, 2)
    assert main(["certificate", "show", str(path)]) == 2
    said = capsys.readouterr().err
    assert "bug of evalkit" not in said and "Traceback" not in said


def test_a_certificate_that_was_judged_by_a_standard_names_it(place: Path) -> None:
    path, run = certify(place)
    judged_by = [{"name": "accuracy", "outcome": "pass", "message": "", "numbers": {"compared": 6}}]
    edit(path, lambda values: values["verdict"].update(checks=judged_by), reseal=True)
    assert found_in(place, path, run) == ()
    edit(path, lambda values: values.update(standards=[]), reseal=True)
    assert found_in(place, path, run) == ("it was judged by accuracy and names no baseline",)

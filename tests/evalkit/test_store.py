"""Runs on disk: whole or not complete, continued, locked, never overwritten."""

import errno
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from evalkit import runfile, store
from evalkit.errors import EvalkitError
from evalkit.fingerprint import sha256_json
from evalkit.records import SCHEMA, Run, Sample, StepRecord
from evalkit.store import RunHead, load_run, open_run

ID = f"stem-{sha256_json({})[:8]}"


def head(n=3, *, code="c", **extra):
    """`hash` is that of the other facts, unless it's given."""
    where, told = {"code": code, "started": "t"}, {"hash": sha256_json(extra), **extra}
    return RunHead(cell={"k": 1}, fingerprint=told, provenance=where, expected=n, task_size=9)


def sample(i, **words):
    return Sample(doc_id=i, doc_hash=f"d{i}", prompt_hash="p", question="q", gold="g", **words)


FULL = sample(
    0, text="línea\r\n\u2028 #### 4", finish_reason="stop", stop_hit="\n\n", tokens=5, prompt_tokens=7, cached_tokens=2,
    seconds=0.25, scores={"strict-match": 1.0, "flexible-extract": 0.0}, extracted={"strict-match": "4"},
    steps=(StepRecord(k=7, accepted=3, accepted_trimmed=2, cut="stop", confidence=(0.5, 0.25)),
           StepRecord(k=7, accepted=0, accepted_trimmed=0), StepRecord(k=0, accepted=0, accepted_trimmed=0),
           StepRecord(k=2, accepted=2, accepted_trimmed=1, cut="limit")),
)  # fmt: skip


TOKENS = sample(6, tokens=4, pieces=("a", "b", " c", ""), gaps=(0.5, 0.0, 2.0**-20, 1024.0))


@pytest.mark.parametrize("one", [FULL, TOKENS, sample(3), sample(4, error="lost"), sample(5, forced=True, text="x")])
def test_a_sample_survives_the_disk(one, tmp_path):
    line = runfile.pack_sample(one, at=1.5)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert runfile.unpack_sample(line, tmp_path) == (one, 1.5)


def test_gaps_are_kept_to_three_digits(tmp_path):
    made = sample(0, gaps=(*[i / 77 for i in range(767)], float("inf")))
    line = runfile.pack_sample(made)
    found, _ = runfile.unpack_sample(line, tmp_path)
    assert found.gaps[:-1] == pytest.approx(made.gaps[:-1], rel=2**-11) and found.gaps[-1] == runfile.HALF_MAX
    assert len(line) < 768 * 3  # 2 bytes each, in base64


@pytest.mark.parametrize("text", ["AAA=x", "AA==", "A", "AAAA!", "AAAA"])
def test_damaged_numbers_are_told_and_never_a_traceback(text, tmp_path):
    line = json.dumps({"doc_id": 1, "gaps": text}).encode() + b"\n"
    with pytest.raises(EvalkitError, match="no sample"):
        runfile.unpack_sample(line, tmp_path)


def test_a_forced_sample_s_steps_are_forced(tmp_path):
    made = sample(0, steps=(StepRecord(k=3, accepted=2, accepted_trimmed=2, forced=True),))
    found, _ = runfile.unpack_sample(runfile.pack_sample(made), tmp_path)
    assert found.forced and all(s.forced for s in found.steps)


def write(root, n=3, **words) -> Run:
    """A whole run, or what was missing of one."""
    with open_run(root, "stem", head(n), **words) as writer:
        for i in range(n):
            if i not in writer.done:
                writer.add(sample(i, tokens=2, scores={"strict-match": 1.0}), seconds=0.5)
        return writer.finish(seconds=0.5, counters={"x": 1}, provenance={"finished": "t2"})


def leave(root, *ids) -> Path:
    """An interrupted run with some samples; gives its folder."""
    with open_run(root, "stem", head()) as writer:
        for i in ids:
            writer.add(sample(i, tokens=2), seconds=0.5)
    return writer.folder


def test_a_finished_run_is_read_back(tmp_path):
    made = write(tmp_path)
    again = load_run(tmp_path / made.id)
    assert made == again and made.complete and made.id == ID
    assert (made.expected, made.task_size, made.output_tokens, made.counters) == (3, 9, 6, {"x": 1})
    assert made.provenance["finished"] == "t2" and [s.doc_id for s in made.samples] == [0, 1, 2]
    assert store.list_runs(tmp_path)[0]["id"] == made.id
    assert store.find_run(made.id, tmp_path) == store.find_run(str(tmp_path / made.id), tmp_path)


def test_an_interrupted_run_is_continued_without_its_cut_line(tmp_path):
    folder = leave(tmp_path, 2, 0)
    assert not load_run(folder).complete
    with (folder / runfile.SAMPLES_FILE).open("ab") as file:
        file.write(b'{"doc_id": 1, "doc_h')
    with open_run(tmp_path, "stem", head()) as writer:
        assert set(writer.done) == {0, 2} and writer.resumed and writer.folder == folder
        writer.add(sample(1), seconds=0.25)
        made = writer.finish(seconds=0.25, counters={}, provenance={})
    assert [s.doc_id for s in made.samples] == [0, 1, 2]
    assert made.seconds == 0.75
    assert [s["kept"] for s in made.provenance["sessions"]] == [0, 2]
    assert len((folder / runfile.SAMPLES_FILE).read_bytes().splitlines()) == 3


def test_failed_samples_are_asked_again(tmp_path):
    with open_run(tmp_path, "stem", head(2)) as writer:
        writer.add(sample(0, error="lost"), seconds=0.1)
        writer.add(sample(1), seconds=0.2)
    with open_run(tmp_path, "stem", head(2)) as writer:
        assert set(writer.done) == {1}
        writer.add(sample(0, text="there"), seconds=0.1)
        made = writer.finish(seconds=0.1, counters={}, provenance={})
    assert [s.error for s in made.samples] == ["", ""] and made.samples[0].text == "there"


def test_a_complete_run_is_never_written_again(tmp_path):
    first = write(tmp_path)
    before = {p.name: p.read_bytes() for p in (tmp_path / first.id).iterdir()}
    assert write(tmp_path).id == f"{ID}-2"
    assert write(tmp_path).id == f"{ID}-3"
    assert {p.name: p.read_bytes() for p in (tmp_path / first.id).iterdir()} == before


@pytest.mark.parametrize("other", [head(code="other"), head(seed=1, hash=sha256_json({}))])
def test_only_an_equal_fingerprint_and_engine_is_continued(tmp_path, other):
    leave(tmp_path, 0)
    with open_run(tmp_path, "stem", other) as writer:
        assert writer.id == f"{ID}-2" and not writer.done
        writer.add(sample(0), seconds=0.1)


def test_fresh_leaves_an_interrupted_run_alone(tmp_path):
    leave(tmp_path, 0)
    assert write(tmp_path, fresh=True).id == f"{ID}-2"
    assert len(load_run(tmp_path / ID).samples) == 1


def test_a_run_without_a_sample_leaves_nothing(tmp_path):
    leave(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_run_are_refused(tmp_path):
    with open_run(tmp_path, "stem", head()) as writer:
        with pytest.raises(EvalkitError, match="being written by another process"):
            open_run(tmp_path, "stem", head())
        writer.add(sample(0), seconds=0.1)
    open_run(tmp_path, "stem", head()).close()


def test_nan_is_never_stored(tmp_path):
    with open_run(tmp_path, "stem", head()) as writer:
        with pytest.raises(EvalkitError, match="not a number"):
            writer.add(sample(0, scores={"strict-match": float("nan")}), seconds=0.1)
        writer.add(sample(0), seconds=0.1)
    assert len(load_run(tmp_path / ID).samples) == 1


def test_finishing_with_missing_samples_is_refused(tmp_path):
    with open_run(tmp_path, "stem", head()) as writer:
        writer.add(sample(0), seconds=0.1)
        with pytest.raises(ValueError, match="1 samples of 3"):
            writer.finish(seconds=0.1, counters={}, provenance={})


def test_an_edited_run_is_refused(tmp_path):
    path = tmp_path / write(tmp_path).id / runfile.SAMPLES_FILE
    path.write_bytes(path.read_bytes().replace(b'"strict-match": 1.0', b'"strict-match": 0.0', 1))
    with pytest.raises(EvalkitError, match="not what the run wrote"):
        load_run(path.parent)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "cannot be read"), ('{"schema": 99}', "schema 99"), ("[]", "holds a list")]
)
def test_a_damaged_head_is_an_error(tmp_path, text, words):
    folder = tmp_path / write(tmp_path).id
    (folder / runfile.RUN_FILE).write_text(text)
    with pytest.raises(EvalkitError, match=words):
        load_run(folder)


def test_a_damaged_line_is_an_error(tmp_path):
    folder = leave(tmp_path, 0)
    with (folder / runfile.SAMPLES_FILE).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(EvalkitError, match="no sample"):
        open_run(tmp_path, "stem", head())


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(EvalkitError, match="no run 'x'"):
        store.find_run("x", tmp_path)
    with pytest.raises(EvalkitError, match="is no run"):
        load_run(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EvalkitError, match="cannot make"):
        open_run(tmp_path / "file", "stem", head())


def test_a_full_disk_leaves_whole_samples(tmp_path, monkeypatch):
    real, room = os.write, [10_000]

    def write_some(fd, data):
        if len(data) > room[0]:
            if room[0]:
                real(fd, bytes(data)[: room[0]])
                room[0] = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(data)
        return real(fd, data)

    with open_run(tmp_path, "stem", head(2)) as writer:
        writer.add(sample(0), seconds=0.1)
        room[0] = 40
        monkeypatch.setattr(os, "write", write_some)
        with pytest.raises(EvalkitError, match="the disk is full; 1 of 2 samples kept"):
            writer.add(sample(1), seconds=0.2)
        monkeypatch.setattr(os, "write", real)
    assert (writer.folder / runfile.SAMPLES_FILE).read_bytes().endswith(b"\n")
    assert write(tmp_path, n=2).provenance["sessions"][1]["kept"] == 1


def test_a_full_disk_at_the_end_leaves_no_complete_run(tmp_path, monkeypatch):
    real = os.fsync

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_run(tmp_path, "stem", head(1)) as writer:
        writer.add(sample(0), seconds=0.1)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EvalkitError, match="the disk is full"):
            writer.finish(seconds=0.1, counters={}, provenance={})
        monkeypatch.setattr(os, "fsync", real)
    assert not load_run(writer.folder).complete
    assert sorted(p.name for p in writer.folder.iterdir()) == [".lock", runfile.RUN_FILE, runfile.SAMPLES_FILE]
    assert write(tmp_path, n=1).complete


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_really_full_disk(tiny_disk, tmp_path):
    with open_run(tiny_disk, "stem", head(500)) as writer, pytest.raises(EvalkitError, match="the disk is full"):
        for i in range(500):
            writer.add(sample(i, text="x" * 500), seconds=0.1)
    kept = load_run(writer.folder)
    assert not kept.complete and 0 < len(kept.samples) < 500
    roomy = tmp_path / "roomy"
    shutil.copytree(tiny_disk, roomy)
    made = write(roomy, n=500)
    assert made.complete and len(made.samples) == 500
    assert json.loads((roomy / made.id / runfile.RUN_FILE).read_text())["complete"] is True


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({}, "has no id, expected str"),
        ({"id": "r", "complete": True}, "has no cell, expected dict"),
        ({"id": "r", "complete": True, "cell": []}, "has a cell that is list, expected dict"),
    ],
    ids=str,
)
def test_a_damaged_head_is_one_line(head: dict[str, object], words: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": SCHEMA} | head))
    with pytest.raises(EvalkitError, match=words):
        load_run(tmp_path)


@pytest.mark.parametrize(("change", "words"), [
    (lambda h: h["fingerprint"].update(target_sha="other"), "its fingerprint is not what its hash is of"),
    (lambda h: h["cell"].update(k=7), "k is 7 in its cell and 1 in its fingerprint"),
    (lambda h: h["cell"].update(quant="nvfp4"), "quant is 'nvfp4' in its cell and 'fp8' in its fingerprint"),
    (lambda h: h["cell"].update(draft_method="ngram"), "draft_method is 'ngram' in its cell and 'dspark' in its"),
    (lambda h: h["cell"].update(verify="forced", forced_length=2.0), "of the verify rule"),
    (lambda h: h.update(output_tokens=600), "output_tokens is 600, its samples give 6"),
    (lambda h: h.update(samples=2), "samples is 2, its samples give 3"),
], ids=["fingerprint", "k", "quant", "draft", "verify", "output_tokens", "samples"])  # fmt: skip
def test_a_head_that_contradicts_itself_was_edited(tmp_path, change, words):
    told = head(k=1, quant="fp8", draft_method="dspark")
    told = replace(told, cell={"k": 1, "quant": "fp8"})
    with open_run(tmp_path, "stem", told) as writer:
        for i in range(3):
            writer.add(sample(i, tokens=2), seconds=0.5)
        writer.finish(seconds=1.0, counters={}, provenance={})
    path = writer.folder / runfile.RUN_FILE
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(EvalkitError, match=words):
        load_run(writer.folder)


@pytest.mark.parametrize("change", [
    {"tokens": "5"}, {"tokens": -1}, {"tokens": True}, {"doc_id": None}, {"text": 5}, {"error": 5}, {"gold": None},
    {"scores": []}, {"scores": {"strict-match": "1"}}, {"scores": {"strict-match": True}}, {"steps": [["3", 1, 1]]},
    {"steps": [[3]]}, {"steps": "abc"}, {"steps": [[3, 1, 1, "", ["x"]]]}, {"forced": 1}, {"seconds": "x"},
    {"attempts": 0}, {"counts": {"steps": 1, "accepted": -1, "drafts": 3}}, {"counts": 5}, {"canonical": {}},
], ids=str)  # fmt: skip
def test_a_value_of_another_kind_is_no_sample(tmp_path, change):
    values = json.loads(runfile.pack_sample(FULL))
    with pytest.raises(EvalkitError, match="has a line that is no sample"):
        runfile.unpack_sample(json.dumps(values | change).encode(), tmp_path)


@pytest.mark.parametrize("change", [
    {"expected": True}, {"expected": "3"}, {"task_size": -1}, {"counters": None}, {"counters": []}, {"stopping": 5},
    {"stopped": ["a"]}, {"seconds": "x"}, {"seconds": None}, {"id": ""}, {"id": "../x"}, {"complete": 1},
    {"fingerprint": {}}, {"cell": {"k": 1, "server": None}},
], ids=str)  # fmt: skip
def test_a_head_of_another_kind_is_an_error(tmp_path, change):
    path = tmp_path / write(tmp_path).id / runfile.RUN_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EvalkitError) as found:
        load_run(path.parent)
    assert "\n" not in str(found.value) and found.value.fix


@pytest.mark.parametrize(("line", "words"), [
    ("[1, 2, 3]", "it is a list, expected an object"),
    ('{"doc_id": 1, "steps": [[3, 1, 1, "", null]]}', "a step's confidences are None, expected a list"),
    ('{"doc_id": 1, "steps": [[3, 1, 1, "", [], 5]]}', "a step's rejected drafts are 5, expected a list"),
    ('{"doc_id": 1, "steps": [5]}', "a step is 5, expected"),
    ('{"doc_id": 1, "steps": [{"k": 3}]}', "a step is {'k': 3}, expected"),
], ids=["list", "confidences", "rejected", "number", "object"])  # fmt: skip
def test_a_damaged_line_says_what_is_wrong_in_it(tmp_path, line, words):
    with pytest.raises(EvalkitError) as found:
        runfile.unpack_sample(line.encode(), tmp_path)
    assert words in found.value.what


@pytest.mark.parametrize(("text", "words"), [
    ("[]", "holds a list, expected an object"), ("{}", "does not say its schema"),
    ('{"schema": 9}', "has schema 9, not 1"),
], ids=["list", "none", "other"])  # fmt: skip
def test_a_head_that_is_none_says_what_it_is(tmp_path, text, words):
    (tmp_path / runfile.RUN_FILE).write_text(text)
    with pytest.raises(EvalkitError, match=words):
        load_run(tmp_path)


def test_lost_samples_are_called_missing(tmp_path):
    folder = tmp_path / write(tmp_path).id
    (folder / runfile.SAMPLES_FILE).unlink()
    with pytest.raises(EvalkitError, match=r"samples\.jsonl is missing; fix: restore the file"):
        load_run(folder)


def test_a_folder_without_a_run_is_told_as_one(tmp_path):
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(EvalkitError, match=r"dir\.yaml is a folder that holds no run: it has no run\.json"):
        runfile.find_run(str(tmp_path / "dir.yaml"), tmp_path)

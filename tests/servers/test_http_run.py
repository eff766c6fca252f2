"""Runs over HTTP against a server that fails on purpose: nothing lost, nothing wrong because of a fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from evalkit.acceptance import of_run
from evalkit.backends.http.errors import ServerGone
from evalkit.config import ROOT
from evalkit.errors import EvalkitError
from evalkit.gate import judge
from evalkit.judging import judge_run, write_report
from evalkit.records import Bucket, Outcome
from evalkit.run import Interrupted, run_cell
from evalkit.runfile import load_run
from evalkit.session import Silent
from tests.servers.conftest import cell_of

QUESTIONS = 1319


def checks_of(run):
    return {c.name: c for c in judge(run, baseline=None, golden=None).checks}


def test_1319_questions_at_64_with_5_percent_faults_lose_nothing(faulty, sums, tmp_path):
    """Faults are drawn with seed 3; a request is lost by chance with probability under 1e-6."""
    server = faulty(rate=0.05, ranks=4, seed=3, drip=0.01)
    run = run_cell(cell_of(server, sums(QUESTIONS)), runs_dir=tmp_path / "runs")
    told = server.tell()
    assert run.complete and len(run.samples) == QUESTIONS
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples)
    assert 30 < sum(told["faults"].values()) < 120 and set(told["faults"]) >= {"429", "500", "503", "cut", "timeout"}
    assert 32 < told["most"] <= 64
    repaired = run.counters["client"]["repaired"]
    assert sum(repaired.values()) == sum(told["faults"].values()) and run.counters["client"]["lost"] == {}
    verdict = judge(run, baseline=None, golden=None)
    note = next(n for n in verdict.notes if "sent again" in n)
    assert all(word in note for word in ("HTTP 503", "timed out", "stream cut", "connection reset", "bad reply"))


def test_faults_that_stay_are_failed_requests_with_their_kind_and_no_wrong_answers(faulty, sums, tmp_path):
    server = faulty(rate=0.4, kinds=["503", "timeout"], seed=5)
    run = run_cell(
        cell_of(server, sums(40), retries=0, request_timeout=1.5, concurrency=20), runs_dir=tmp_path / "runs"
    )
    failed = [s for s in run.samples if s.error]
    assert run.complete and 8 < len(failed) < 30
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples if not s.error) and not failed[0].scores
    check = checks_of(run)["requests"]
    assert check.outcome is Outcome.FAIL and "HTTP 503" in check.message and "timed out" in check.message
    assert checks_of(run)["unanswered"].outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_counters_have_the_accepted_length_to_the_last_digit(faulty, sums, tmp_path, stream, endpoint):
    server = faulty(ranks=2, k=4)
    words = {"stream": stream, "endpoint": endpoint}
    run = run_cell(cell_of(server, sums(60), **words), runs_dir=tmp_path / "runs")
    told = server.tell()["total"]
    found = of_run(run)
    assert found.source == "counters of vllm's /metrics" and found.problems == ()
    assert found.accepted_length == 1 + told["accepted"] / told["steps"]
    assert found.histogram[4] == told["pos:3"] and sum(found.histogram) == told["steps"]
    assert checks_of(run)["acceptance source"].outcome is Outcome.PASS
    write_report(run, judge_run(run), tmp_path / "page.html")
    shown = (tmp_path / "page.html").read_text()
    assert "counters of vllm" in shown and run.cell["server"]["base_url"] == server.url


def test_c44_replies_with_their_own_acceptance_become_steps(faulty, sums, tmp_path):
    """SGLang's meta_info, request by request: no rank's lifetime mean is read."""
    server = faulty(k=4, page="none")
    run = run_cell(cell_of(server, sums(30), engine="sglang"), runs_dir=tmp_path / "runs")
    found = of_run(run)
    assert found.source == "steps" and found.clusters == 30 and found.se
    assert all(s.tokens - 1 == sum(t.accepted_trimmed + (t.cut == "") for t in s.steps) for s in run.samples)
    assert found.problems == () and checks_of(run)["acceptance source"].outcome is Outcome.PASS


def test_atom_snapshots_are_waited_for(faulty, sums, tmp_path):
    server = faulty(k=4, page="atom", refresh=1.0)
    run = run_cell(cell_of(server, sums(40), engine="atom"), runs_dir=tmp_path / "runs")
    told, found = server.tell()["total"], of_run(run)
    assert found.accepted_length == 1 + told["accepted"] / told["steps"] and found.problems == ()


def test_c44_silent_ranks_are_no_evidence(faulty, sums, tmp_path):
    server = faulty(ranks=4, silent=[1, 3])
    run = run_cell(cell_of(server, sums(80)), runs_dir=tmp_path / "runs")
    check = checks_of(run)["acceptance source"]
    assert check.outcome is Outcome.INCONCLUSIVE and "2 of 4 engines counted no verify step" in check.message


class Between:
    """Does something to the server after so many samples."""

    def __init__(self, after, act):
        self.after, self.act, self.seen = after, act, 0

    def start(self, run_id, kept, total, notes=()):
        pass

    def sample(self, sample):
        self.seen += 1
        if self.seen == self.after:
            self.act()

    def stop(self):
        pass


def test_a_restart_with_counters_at_zero_is_seen(faulty, sums, tmp_path):
    server = faulty(drip=0.02)
    watcher = Between(100, lambda: server.tell(restart=True))
    run = run_cell(cell_of(server, sums(200), concurrency=8), runs_dir=tmp_path / "runs", watcher=watcher)
    check = checks_of(run)["acceptance source"]
    assert check.outcome is Outcome.INCONCLUSIVE and "restarted" in check.message
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples)


def test_foreign_traffic_is_seen(faulty, sums, tmp_path):
    server = faulty(drip=0.02)

    def intrude():
        body = json.dumps({"prompt": "1 + 2?", "max_tokens": 9})
        url, headers = f"{server.url}/completions", {"Content-Type": "application/json"}
        for _ in range(20):
            with urllib.request.urlopen(urllib.request.Request(url, data=body.encode(), headers=headers)) as reply:
                reply.read()

    run = run_cell(cell_of(server, sums(60), concurrency=4), runs_dir=tmp_path / "runs", watcher=Between(20, intrude))
    check = checks_of(run)["acceptance source"]
    assert check.outcome is Outcome.INCONCLUSIVE and "works for others" in check.message


def test_c45_a_server_without_acceptance_fails_the_gate(faulty, sums, tmp_path):
    server = faulty(page="none")
    run = run_cell(cell_of(server, sums(20), engine="openai"), runs_dir=tmp_path / "runs")
    check = checks_of(run)["acceptance source"]
    assert check.outcome is Outcome.FAIL and "nothing is known of the draft" in check.message


def test_chunks_of_a_stream_are_an_estimate_and_never_pass(faulty, sums, tmp_path):
    server = faulty(page="none")
    run = run_cell(cell_of(server, sums(20), engine="openai", stream=True), runs_dir=tmp_path / "runs")
    found, check = of_run(run), checks_of(run)["acceptance source"]
    assert found.source == "estimate of chunks of streams" and found.accepted_length and 1 < found.accepted_length < 5
    assert check.outcome is Outcome.INCONCLUSIVE and "estimate" in check.message


def test_c50_a_server_that_dies_keeps_the_samples_and_the_same_command_continues(faulty, sums, tmp_path):
    server, data = faulty(die_after=30, drip=0.01), sums(60)
    cell = cell_of(server, data, concurrency=4, grace=1.0)
    with pytest.raises(ServerGone) as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert "is gone" in e.value.what and "same command continues" in e.value.fix and "\n" not in e.value.what
    (folder,) = (tmp_path / "runs").iterdir()
    kept = load_run(folder)
    assert not kept.complete and 20 < len(kept.samples) <= 30
    again = faulty()
    moved = cell_of(again, data, concurrency=4)
    run = run_cell(moved, runs_dir=tmp_path / "runs")
    assert run.id == folder.name and run.complete and len(run.samples) == 60
    assert again.tell()["asked"] < 60 - len(kept.samples) + 20, "probes apart, only what was missing"
    told = checks_of(run)["acceptance source"]
    lost = ("of 60 answers", "could not be read at the end")  # by whether it was read while it worked
    assert told.outcome is Outcome.INCONCLUSIVE and any(word in told.message for word in lost)


def test_counters_of_an_interrupted_session_are_kept(faulty, sums, tmp_path):
    server, data = faulty(), sums(40)
    cell = cell_of(server, data, concurrency=1)  # nothing is under way when it is interrupted

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_cell(cell, runs_dir=tmp_path / "runs", watcher=Between(15, interrupt))
    run = run_cell(cell, runs_dir=tmp_path / "runs")
    told, found = server.tell()["total"], of_run(run)
    assert len(run.provenance["sessions"]) == 2 and told["requests"] == 40
    assert (found.requests, found.steps, found.accepted) == (40, told["steps"], told["accepted"])
    assert found.problems == () and run.counters["client"]["requests"] == 40


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_c14_c15_thinking_is_read_under_both_names_and_never_graded(faulty, sums, tmp_path, field):
    server = faulty(think=field)
    run = run_cell(cell_of(server, sums(8), endpoint="chat", k=0), runs_dir=tmp_path / "runs")
    assert all(s.reasoning.startswith("first I add") and "99" not in s.text for s in run.samples)
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples)
    assert any(f"field '{field}'" in note for note in run.provenance["notes"])


def test_c09_the_stops_of_a_thinking_model_are_applied_after_its_thinking(faulty, sums, tmp_path):
    server = faulty(think="text")
    run = run_cell(cell_of(server, sums(8), endpoint="chat", k=0), runs_dir=tmp_path / "runs")
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples)
    assert run.fingerprint["stops"] == "applied here" and not any("stop" in b for b in server.tell()["bodies"])


def test_c11_null_content_is_thinking_cut_by_the_limit_and_not_asked_again(faulty, sums, tmp_path):
    server = faulty(null_share=0.5)
    run = run_cell(cell_of(server, sums(20), endpoint="chat", k=0), runs_dir=tmp_path / "runs")
    cut = [s for s in run.samples if s.canonical and s.canonical.bucket is Bucket.TRUNCATED_IN_THINKING]
    assert 4 < len(cut) < 16 and all(s.text == "" and s.reasoning and s.attempts == 1 for s in cut)
    assert checks_of(run)["reasoning only"].outcome is Outcome.INCONCLUSIVE


def test_c16_a_thinking_switch_is_probed(faulty, sums, tmp_path):
    good = faulty(think="reasoning")
    run = run_cell(cell_of(good, sums(4), endpoint="chat", thinking="off", k=0), runs_dir=tmp_path / "runs")
    assert "enable_thinking" in run.fingerprint["thinking"] and not any(s.reasoning for s in run.samples)
    assert all(b["chat_template_kwargs"] == {"enable_thinking": False} for b in good.tell()["bodies"][-4:])
    wrong = '{"enable_thinking": false}'
    with pytest.raises(EvalkitError, match="ignores the thinking switch") as e:
        run_cell(
            cell_of(good, sums(4), endpoint="chat", thinking="off", k=0, extra_body=wrong), runs_dir=tmp_path / "b"
        )
    assert "chat_template_kwargs" in e.value.fix
    deaf = faulty(think="reasoning", ignore_switch=True)
    with pytest.raises(EvalkitError, match="can't be made to turn thinking off"):
        run_cell(cell_of(deaf, sums(4), endpoint="chat", thinking="off", k=0), runs_dir=tmp_path / "c")


def test_c13_c17_c21_the_endpoint_and_its_template_are_said_and_not_compared(faulty, sums, tmp_path):
    server, data = faulty(k=0), sums(6)
    text = run_cell(cell_of(server, data, k=0), runs_dir=tmp_path / "runs")
    chat = run_cell(cell_of(server, data, k=0, endpoint="chat"), runs_dir=tmp_path / "runs")
    assert text.provenance["notes"][0] == "asked on completions, as plain text"
    assert any("has a chat template and is asked on completions" in n for n in text.provenance["notes"])
    assert text.fingerprint["template"] == "none" and chat.fingerprint["template"] == "chat:server's own"
    from evalkit.baseline import record_baseline
    from evalkit.judging import read_baseline

    record_baseline(text, tmp_path / "text.json")
    found = {c.name: c for c in judge(chat, baseline=read_baseline(tmp_path / "runs" / text.id), golden=None).checks}
    assert found["accuracy"].outcome is Outcome.INCONCLUSIVE and "template none / chat" in found["accuracy"].message


def test_a_key_is_never_stored_nor_shown(faulty, sums, tmp_path, monkeypatch):
    key = "sk-very-secret-123"
    server = faulty(key=key, rate=0.5, kinds=["500"], info={"version": "1", "echo": f"started with {key}"})
    with pytest.raises(EvalkitError, match=r"refuses a request without a key, and \$EVALKIT_API_KEY is not set") as e:
        run_cell(cell_of(server, sums(12)), runs_dir=tmp_path / "runs")
    assert "--api-key-env" in e.value.fix
    monkeypatch.setenv("EVALKIT_API_KEY", key)
    run = run_cell(cell_of(server, sums(12), retries=0), runs_dir=tmp_path / "runs")
    assert any(s.error for s in run.samples)
    write_report(run, judge_run(run), tmp_path / "runs" / run.id / "page.html")
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 3 and not [p for p in files if key.encode() in p.read_bytes()]
    (tmp_path / "key").write_text(key + "\n")
    monkeypatch.delenv("EVALKIT_API_KEY")
    server.tell(rate=0.0)
    spec = cell_of(server, sums(5), api_key_file=str(tmp_path / "key"))
    assert run_cell(spec, runs_dir=tmp_path / "other").complete


def test_a_server_that_only_fails_ends_the_run(faulty, sums, tmp_path):
    server = faulty(rate=1.0, kinds=["500"])
    with pytest.raises(ServerGone, match="requests in a row failed"):
        run_cell(cell_of(server, sums(60), retries=0), runs_dir=tmp_path / "runs")


def test_a_model_that_is_not_served_is_named(faulty, sums, tmp_path):
    from dataclasses import replace

    cell = replace(cell_of(faulty(), sums(4)), target="other")
    with pytest.raises(EvalkitError, match="serves faulty, not other"):
        run_cell(cell, runs_dir=tmp_path / "runs")


def launched(tmp_path: Path, data: Path, *more: str) -> list[str]:
    program = f"{sys.executable} {ROOT / 'tests' / 'servers' / 'faulty.py'}"
    return [sys.executable, "-m", "evalkit.cli", "run", "--engine", "vllm", "--server-program", program, "--model",
            "faulty", "--k", "4", "--data", str(data), "--runs-dir", str(tmp_path / "runs"),
            f"--server-arg=--mark={tmp_path}", *more]  # fmt: skip


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(mark: Path) -> list[int]:
    """Servers that were started with this test's folder in their command."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "--served-model-name" in words and f"--mark={mark}" in words and alive(int(command.parent.name)):
            found.append(int(command.parent.name))
    return found


def test_a_server_is_started_asked_and_stopped(sums, tmp_path):
    command = launched(tmp_path, sums(20), "--server-arg=--state", '--server-arg={"k": 4}', "--no-report")
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "from counters of vllm's /metrics" in done.stdout
    (log,) = (tmp_path / "runs" / "servers").glob("*.log")
    assert "--speculative-config" in log.read_text()
    assert not children_of(tmp_path)


def heed_ctrl_c() -> None:
    """As from a terminal: a job in a shell's background would ignore the signal, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_stops_its_server(sums, tmp_path, number, code):
    state = '--server-arg={"k": 4, "drip": 0.3}'
    command = launched(tmp_path, sums(80), "--server-arg=--state", state, "--concurrency", "2", "--no-report")
    with (tmp_path / "err").open("w") as err:
        run = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=err,
                               stdout=subprocess.DEVNULL, preexec_fn=heed_ctrl_c)  # fmt: skip
        until = time.monotonic() + 60
        while not list((tmp_path / "runs").glob("*/samples.jsonl")) or not children_of(tmp_path):
            assert time.monotonic() < until and run.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.1)
        time.sleep(1.0)
        run.send_signal(number)
        assert run.wait(timeout=60) == code
    assert "same command continues" in (tmp_path / "err").read_text()
    assert not children_of(tmp_path)


def test_a_server_that_does_not_start_tells_its_last_line(sums, tmp_path):
    command = launched(tmp_path, sums(5), "--server-arg=--state", "--server-arg=[broken", "--no-report")
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: the vllm server ended with exit code 1: json.decoder.JSONDecodeError")


def test_c76_a_healthy_server_with_wrong_answers_ends_the_run_in_one_line(faulty, sums, tmp_path, monkeypatch):
    """0.6 right where the baseline has 1.0: a variable was missing. The answers are kept, --no-smoke goes on."""
    from evalkit import run as running
    from evalkit.baseline import load_baseline, record_baseline

    data = sums(60)
    good = run_cell(cell_of(faulty(k=0), data, k=0), runs_dir=tmp_path / "good")
    record_baseline(good, tmp_path / "b.json")
    monkeypatch.setattr(running, "baseline_for", lambda target, task: load_baseline(tmp_path / "b.json"))
    bad = faulty(wrong_share=0.4)
    with pytest.raises(EvalkitError, match=r"smoke test: \d+ of the first (8|16|32) answers are right") as e:
        run_cell(cell_of(bad, data, concurrency=4), runs_dir=tmp_path / "runs")
    assert "--no-smoke" in e.value.fix and "\n" not in e.value.what
    fine = cell_of(faulty(), data, concurrency=4)
    with pytest.raises(EvalkitError, match=r"was ended: smoke test: .* kept and not continued") as e:
        run_cell(fine, runs_dir=tmp_path / "runs")
    assert "--fresh" in e.value.fix
    anew = run_cell(fine, runs_dir=tmp_path / "runs", fresh=True)
    assert anew.complete and len(anew.provenance["sessions"]) == 1
    assert all(s.scores["strict-match"] == 1.0 for s in anew.samples), "none of the answers in doubt"
    run = run_cell(cell_of(bad, data, concurrency=4, smoke=False), runs_dir=tmp_path / "runs")
    assert run.complete and run.id != anew.id and len(run.provenance["sessions"]) == 2
    again = run_cell(cell_of(faulty(), data), runs_dir=tmp_path / "fine")
    assert again.complete


def test_empty_answers_that_ended_a_run_are_not_in_the_run_of_a_repaired_server(faulty, sums, tmp_path):
    server, data = faulty(empty=True, k=0), sums(60)
    cell = cell_of(server, data, k=0)
    with pytest.raises(EvalkitError, match="first 16 answers are all empty") as e:
        run_cell(cell, runs_dir=tmp_path / "runs")
    assert "none is kept" in e.value.fix and not list((tmp_path / "runs").glob("*/samples.jsonl"))
    server.tell(empty=False)
    run = run_cell(cell, runs_dir=tmp_path / "runs")
    assert run.complete and all(s.scores["strict-match"] == 1.0 for s in run.samples)


def test_a_run_that_is_continued_at_another_address_says_so(faulty, sums, tmp_path):
    data, words = sums(30), "continued at another address of the server: "
    first, second = faulty(), faulty()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_cell(cell_of(first, data, concurrency=1), runs_dir=tmp_path / "runs", watcher=Between(10, interrupt))
    run = run_cell(cell_of(second, data, concurrency=1), runs_dir=tmp_path / "runs")
    (note,) = [n for n in run.provenance["notes"] if words in n]
    assert note.endswith(f"{first.url}, then {second.url}")
    write_report(run, judge_run(run), tmp_path / "page.html")
    assert words in (tmp_path / "page.html").read_text()
    same = run_cell(cell_of(second, data), runs_dir=tmp_path / "other")
    assert not any(words in n for n in same.provenance["notes"])


@pytest.mark.parametrize(("endpoint", "noted"), [("chat", False), ("completions", True)])
def test_a_task_for_chat_models_is_noted_only_where_no_template_is_applied(faulty, sums, tmp_path, endpoint, noted):
    from dataclasses import replace

    cell = replace(cell_of(faulty(), sums(4), endpoint=endpoint, k=0), task="gsm8k_inferencex", shots=0)
    run = run_cell(cell, runs_dir=tmp_path / "runs")
    assert any("is written for a chat model" in note for note in run.provenance["notes"]) is noted
    assert all(s.scores["strict-match"] == 1.0 for s in run.samples)


class Heard(Silent):
    """Keeps the notes, and stops like Ctrl-C after some answers."""

    def __init__(self, after: int = 0) -> None:
        self.left, self.notes = after, ()

    def start(self, run_id, kept, total, notes=()) -> None:
        self.notes = tuple(notes)

    def sample(self, sample) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_run_with_another_extra_body_does_not_continue_an_interrupted_one(faulty, sums, tmp_path):
    """Its requests are others, and so may its answers be."""
    data, server, runs = sums(12), faulty(), tmp_path / "runs"
    with pytest.raises(Interrupted):
        run_cell(cell_of(server, data), runs_dir=runs, watcher=Heard(4))
    (folder,) = runs.iterdir()
    other = run_cell(cell_of(server, data, extra_body='{"min_p": 0.1}'), runs_dir=runs)
    assert other.id != folder.name and len(other.provenance["sessions"]) == 1
    assert other.id.removesuffix("-2") != folder.name, "a setting of its own has an id of its own"
    assert run_cell(cell_of(server, data), runs_dir=runs).id == folder.name

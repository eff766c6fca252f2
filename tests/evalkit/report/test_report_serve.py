"""`evalkit report --serve`: read-only, this machine only, an index, and a setting over time."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalkit.errors import EvalkitError
from evalkit.fingerprint import sha256_json
from evalkit.records import Run
from evalkit.report import drift, history
from evalkit.report.history import Brief
from evalkit.report.serve import HOST, make_server
from evalkit.store import RunHead, open_run
from tests.evalkit.report.makers import Reader, make_run


def store(root: Path, run: Run, started: str) -> str:
    """The run on disk; returns its id."""
    told = {name: value for name, value in run.fingerprint.items() if name != "hash"}
    head = RunHead(
        cell={**run.cell, "shots": told["shots"]}, fingerprint={**told, "hash": sha256_json(told)},
        provenance={**run.provenance, "started": started}, expected=run.expected, task_size=run.task_size,
    )  # fmt: skip
    with open_run(root, "run", head, fresh=True) as writer:
        for sample in run.samples:
            writer.add(sample, seconds=1.0)
        return writer.finish(seconds=1.0, counters={}, provenance={}).id


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for day in range(1, 5):
        store(folder, make_run(60, wrong=6 + day % 2, seed=day), f"2026-11-0{day}T00:00:00+00:00")
    store(folder, make_run(60, wrong=40, seed=9), "2026-11-09T00:00:00+00:00")
    store(folder, make_run(60, 5), "2026-11-08T00:00:00+00:00")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def port(root: Path) -> Iterator[int]:
    with make_server(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", host: str = "") -> tuple[int, str, dict[str, str]]:
    line = http.client.HTTPConnection(HOST, port, timeout=60)
    line.request(method, path, headers={"Host": host} if host else {})
    reply = line.getresponse()
    body = reply.read().decode()
    line.close()
    return reply.status, body, dict(reply.getheaders())


def test_index_has_every_run_and_says_which_setting_drifts(port: int, root: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    status, body, headers = ask(port, "/")
    words = Reader(body).text
    assert status == 200 and "6 runs of 2 settings" in words and "history of 5 runs" in words
    assert "strict-match: the newest run has 0.3333, outside" in words and "broken: " in words
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


def test_history_of_a_setting_has_both_plots(port: int) -> None:
    _, body, _ = ask(port, "/")
    key = body.split('href="/cell/')[1].split('"')[0]
    status, page, _ = ask(port, f"/cell/{key}")
    reader = Reader(page)
    assert status == 200 and page.count('<svg class="plot"') == 2 and not reader.open
    assert "Does the score drift?" in reader.text and "Does the accepted length drift?" in reader.text


def test_one_run_and_several_are_reports(port: int) -> None:
    names = [part.split('"')[0] for part in ask(port, "/")[1].split('href="/run/')[1:]]
    status, one, _ = ask(port, f"/run/{names[0]}")
    assert status == 200 and "Where this comes from" in one
    status, two, _ = ask(port, f"/report?run={names[0]}&run={names[1]}")
    assert status == 200 and 'id="comparison"' in two
    assert ask(port, "/report")[0] == 422


@pytest.mark.parametrize(
    "path", ["/run/..%2f..%2fetc", "/run/broken/..", "/run/nothing", "/cell/x", "/etc/passwd", "//"]
)
def test_no_path_leads_out(port: int, path: str) -> None:
    status, body, _ = ask(port, path)
    assert status in (200, 404) and "root:" not in body and (status == 404 or "Stored runs" in body)


def test_it_answers_this_machine_only_and_changes_nothing(port: int) -> None:
    assert ask(port, "/", host="evil.example")[0] == 403
    assert ask(port, "/", host=f"localhost:{port}")[0] == 200
    assert ask(port, "/", method="POST")[0] == 501 and ask(port, "/", method="DELETE")[0] == 501
    status, body, headers = ask(port, "/", method="HEAD")
    assert status == 200 and body == "" and int(headers["Content-Length"]) > 1000
    assert HOST == "127.0.0.1"


def test_a_damaged_run_is_said_in_words(port: int) -> None:
    status, body, _ = ask(port, "/run/broken")
    assert status == 422 and "cannot be read" in body


def test_a_port_in_use_and_a_missing_folder_are_told(port: int, root: Path) -> None:
    with pytest.raises(EvalkitError, match="can't be used"):
        make_server(root, port)
    with pytest.raises(EvalkitError, match="no folder"):
        make_server(root / "nothing", 0)


def test_drift_needs_runs_to_compare_with() -> None:
    few = drift.drift("x", [0.9, 0.8], [0.01, 0.01])
    assert few.band is None and not few.odd and "too few" in few.words
    same = drift.drift("x", [0.9] * 5, [0.01] * 5)
    assert same.band == pytest.approx((0.8804, 0.9196)) and not same.odd
    assert drift.drift("x", [0.9, 0.9, 0.9, 0.7], [0.01] * 4).odd
    near = drift.drift("x", [0.99, 0.98, 0.99, 1.0], [0.02] * 4, (0.0, 1.0))
    assert near.band is not None and near.band[1] == 1.0 and not near.odd


def test_c53_a_level_that_changed_and_stayed_is_told_with_its_day() -> None:
    days = [f"2026-11-0{i}" for i in range(1, 9)]
    lengths = [2.83, 2.84, 2.83, 2.08, 2.07, 2.09, 2.08, 2.08]
    assert not drift.drift("accepted length", lengths, [0.02] * 8, (1.0, 9.0)).odd  # the band holds both levels
    found = drift.change("accepted length", lengths, [0.02] * 8, days)
    assert found is not None and found.odd and "2.0800 since run 4 (2026-11-04), 2.8333 before" in found.words
    assert drift.change("x", [0.9] * 8, [0.01] * 8, days) is None
    assert drift.change("x", lengths, [None] * 8, days) is None and drift.change("x", [1], [0.1], days) is None


@pytest.mark.stat
def test_a_level_that_did_not_change_is_rarely_called_one() -> None:
    """Seeds 0..1999, 12 runs each: at most 1 % false alarms by Bonferroni; a binomial of 2000 at 0.01 exceeds 36 with
    chance 0.0004."""
    alarms = 0
    for seed in range(2000):
        values = np.random.default_rng(seed).normal(0.9, 0.01, size=12).tolist()
        alarms += drift.change("x", values, [0.01] * 12, [""] * 12) is not None
    assert alarms <= 36


def told(number: int, correct: int, *, result: str = "", weights: tuple[str | None, ...] = ("a", "t", "d")) -> Brief:
    """The n-th run of a setting, of 1,000 questions."""
    return Brief(
        id=f"run-{number}", cell="c", name="setting", started=f"2026-11-{number:02d}T00:00:00+00:00", complete=True,
        samples=1000, task_size=1000, correct=correct, scored=1000, length=None, length_interval=None, length_se=None,
        result=result or f"result {number}", weights=weights,
    )  # fmt: skip


def test_a_repeat_that_is_the_same_bit_for_bit_is_counted_once() -> None:
    """Eight copies of two results are two results: a gap that two runs of 1,000 questions don't show is not shown."""
    twice = [told(i, 900 if i < 5 else 870, result="a" if i < 5 else "b") for i in range(1, 9)]
    assert not any(d.odd for d in drift.drifts(twice))
    assert any("8 runs gave 2 different results, each counted once" in d.words for d in drift.drifts(twice))
    fresh = [replace(r, result="") for r in twice]
    assert any(d.odd for d in drift.drifts(fresh))  # eight results of their own would show it
    again = drift.drifts([told(i, 900, result="a") for i in range(1, 6)])
    assert "repeats an earlier one bit for bit, which is no new evidence (5 runs gave one result" in again[0].words
    assert not again[0].odd and again[0].band is None


def test_a_large_change_between_two_results_is_told_however_often_each_was_made() -> None:
    fell = [told(i, 900 if i < 6 else 600, result="a" if i < 6 else "b") for i in range(1, 9)]
    (found,) = [d for d in drift.drifts(fell) if d.odd]
    assert "0.6000 since run 6 (2026-11-06), 0.9000 before" in found.words
    back = [*fell, told(9, 900, result="a")]  # the level did not stay
    assert not any(d.odd for d in drift.drifts(back))


def test_other_weights_are_a_break_and_no_test_goes_across_it() -> None:
    old = [told(i, 900 + i) for i in range(1, 6)]
    new = [told(i, 600 + i, weights=("b", "t", "d")) for i in range(6, 9)]
    found = drift.drifts([*old, *new])
    assert "The weights changed at run 6 (2026-11-06)" in found[0].words
    assert not any(d.odd for d in found) and not any("0.9" in d.words for d in found)
    same = drift.drifts([*old, *(replace(r, weights=("a", "t", "d")) for r in new)])
    assert any(d.odd for d in same) and not any("weights" in d.words for d in same)
    unknown = told(2, 9, weights=(None, None, None))
    assert drift.breaks([told(1, 9), unknown, told(3, 9)]) == []
    assert drift.breaks([told(1, 9), unknown, told(3, 9, weights=("b", "t", "d"))]) == [2]
    plots = history.plots([*old, *new], found)
    assert "the weights changed" in plots[0][1]


@pytest.mark.parametrize(
    "change",
    [{"verify": "forced", "forced_length": 3.0}, {"confidence_threshold": 0.4}, {"verify_rows": 8}, {"data": "x.jsonl"},
     {"online_quant_config": "skip"}, {"temperature": 1.0}, {"draft": "other"}],
)  # fmt: skip
def test_what_changes_the_setting_has_a_history_of_its_own(change: dict[str, object]) -> None:
    run = make_run(3)
    other = replace(run, cell={**run.cell, **change})
    assert history.cell_key(run) != history.cell_key(other)
    assert history.cell_name(run) != history.cell_name(other)


def test_a_forced_sample_other_documents_and_prompts_are_other_histories_too() -> None:
    run = make_run(3)
    forced = replace(run, samples=(replace(run.samples[0], forced=True), *run.samples[1:]))
    task = replace(run, fingerprint={**run.fingerprint, "task_sha": "00" * 32})
    data = replace(run, provenance={**run.provenance, "data": {"test": {"path": "a", "sha256": "12"}}})
    assert len({history.cell_key(r) for r in (run, forced, task, data)}) == 4
    moved = replace(data, provenance={**run.provenance, "data": {"test": {"path": "b", "sha256": "12"}}})
    assert history.cell_key(data) == history.cell_key(moved)


def test_a_cell_is_one_whatever_its_seed_and_machine() -> None:
    run = make_run(3)
    other = {**run.cell, "seed": 5, "max_batch": 1, "device": "cuda"}
    assert history.cell_key(run) == history.cell_key(replace(run, cell=other))
    weights = {**run.fingerprint, "target_sha": "99" * 32, "draft_sha": "98" * 32}
    assert history.cell_key(run) == history.cell_key(replace(run, fingerprint=weights))  # a break in it
    assert history.cell_key(run) != history.cell_key(replace(run, cell={**run.cell, "k": 3}))
    assert history.brief(replace(run, samples=())).score is None

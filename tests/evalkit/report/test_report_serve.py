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
from evalkit.report import history
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
    few = history.drift("x", [0.9, 0.8], [0.01, 0.01])
    assert few.band is None and not few.odd and "too few" in few.words
    same = history.drift("x", [0.9] * 5, [0.01] * 5)
    assert same.band == pytest.approx((0.8804, 0.9196)) and not same.odd
    assert history.drift("x", [0.9, 0.9, 0.9, 0.7], [0.01] * 4).odd
    near = history.drift("x", [0.99, 0.98, 0.99, 1.0], [0.02] * 4, (0.0, 1.0))
    assert near.band is not None and near.band[1] == 1.0 and not near.odd


def test_c53_a_level_that_changed_and_stayed_is_told_with_its_day() -> None:
    days = [f"2026-11-0{i}" for i in range(1, 9)]
    lengths = [2.83, 2.84, 2.83, 2.08, 2.07, 2.09, 2.08, 2.08]
    assert not history.drift("accepted length", lengths, [0.02] * 8, (1.0, 9.0)).odd  # the band holds both levels
    found = history.change("accepted length", lengths, [0.02] * 8, days)
    assert found is not None and found.odd and "2.0800 since run 4 (2026-11-04), 2.8333 before" in found.words
    assert history.change("x", [0.9] * 8, [0.01] * 8, days) is None
    assert (
        history.change("x", lengths, [None] * 8, days) is None and history.change("x", [1, 9], [0.1] * 2, days) is None
    )


@pytest.mark.stat
def test_a_level_that_did_not_change_is_rarely_called_one() -> None:
    """Seeds 0..1999, 12 runs each: at most 1 % false alarms by Bonferroni; a binomial of 2000 at 0.01 exceeds 36 with
    chance 0.0004."""
    alarms = 0
    for seed in range(2000):
        values = np.random.default_rng(seed).normal(0.9, 0.01, size=12).tolist()
        alarms += history.change("x", values, [0.01] * 12, [""] * 12) is not None
    assert alarms <= 36


def test_a_cell_is_one_whatever_its_seed_and_machine() -> None:
    run = make_run(3)
    other = {**run.cell, "seed": 5, "max_batch": 1, "device": "cuda"}
    assert history.cell_key(run.cell) == history.cell_key(other)
    assert history.cell_key(run.cell) != history.cell_key({**run.cell, "k": 3})
    assert history.brief(replace(run, samples=())).score is None

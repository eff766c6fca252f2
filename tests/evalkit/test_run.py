"""run_cell with scripted answers: stored as they finish, scored by lm-eval, continued after any end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from evalkit import run as run_module
from evalkit.answered import request_seed
from evalkit.backends import Failure
from evalkit.backends.scripted import Scripted
from evalkit.config import ROOT, Cell
from evalkit.errors import EvalkitError
from evalkit.harness import Scored
from evalkit.progress import Progress
from evalkit.run import Interrupted, run_cell
from evalkit.runfile import SAMPLES_FILE, load_run
from evalkit.sessions import uncounted
from tests.evalkit.places import make_place

N = 12


@pytest.fixture
def place(tmp_path):
    """A tiny target, a draft and a task of N questions."""
    return make_place(tmp_path, N)


def cell(place, **words):
    where = {"model": str(place / "target"), "draft": str(place / "draft"), "data": place / "test.jsonl"}
    return Cell.make(**{"k": 7, **where, **words})


def answer(request):
    """Right, but for every third document."""
    i = int(request.id)
    return f" It is {i} + 1 = {i + 1} , so\n#### {i + (i % 3 > 0)}"


def execute(place, backend=None, *, runs="runs", watcher=None, fresh=False, **words):
    made = backend or Scripted(answer, k=words.get("k", 7))
    return run_cell(cell(place, **words), runs_dir=place / runs, backend=lambda c: made, watcher=watcher, fresh=fresh)


def test_a_run_from_prompt_to_stored_scores(place):
    made = execute(place)
    assert made.complete and (made.expected, made.task_size, len(made.samples)) == (N, N, N)
    assert [s.scores["strict-match"] for s in made.samples] == [float(i % 3 > 0) for i in range(N)]
    one = made.samples[1]
    assert (one.text, one.finish_reason, one.extracted["strict-match"]) == (
        " It is 1 + 1 = 2 , so\n#### 2",
        "stop",
        "2",
    )
    assert one.tokens == 11 and sum(s.accepted_trimmed + (not s.cut) for s in one.steps) == 10
    assert made.output_tokens == sum(s.tokens for s in made.samples)
    assert made.id.startswith("gradeschool-target-draft-k7-float32-") and made.id.endswith(made.fingerprint["hash"][:8])
    assert (made.cell["task"], made.cell["k"], made.cell["max_tokens"]) == ("gradeschool", 7, 128)


def test_every_request_has_its_own_seed_and_the_tasks_settings(place):
    backend = Scripted(answer)
    execute(place, backend, k=0, seed=5, temperature=0.7, top_k=3, top_p=0.9, max_tokens=20)
    by_id = {int(r.id): r.params for r in backend.asked}
    assert {i: p.seed for i, p in by_id.items()} == {i: request_seed(5, i) for i in range(N)}
    assert len({p.seed for p in by_id.values()}) == N and request_seed(5, 1) != request_seed(6, 1)
    p = by_id[0]
    assert (p.temperature, p.top_k, p.top_p, p.max_tokens, p.stop) == (0.7, 3, 0.9, 20, ("\n\n", "Question:"))


def test_seeds_never_change():
    assert request_seed(0, 0) == 6213027144842677344


def test_a_limit_draws_documents(place):
    made = execute(place, limit=5, seed=1)
    assert (made.expected, made.task_size, len(made.samples)) == (5, N, 5) and "-n5-" in made.id
    assert [s.doc_id for s in made.samples] != [0, 1, 2, 3, 4]
    full = {s.doc_id: s for s in execute(place, seed=1).samples}
    assert all(s == replace(full[s.doc_id], seconds=s.seconds) for s in made.samples)


def test_a_limit_of_all_documents_is_no_subset(place):
    whole, capped = execute(place), execute(place, limit=99_999, runs="capped")
    assert capped.id == whole.id and capped.cell["limit"] == 0 and capped.expected == N
    assert execute(place, limit=N, runs="equal").id == whole.id
    assert "-n11-" in execute(place, limit=N - 1).id


def test_a_failed_request_is_no_wrong_answer(place):
    def some(request):
        return Failure(id=request.id, error="out of\nmemory") if request.id == "4" else answer(request)

    made = execute(place, Scripted(some, k=7))
    failed = made.samples[4]
    assert (failed.error, dict(failed.scores), failed.text) == ("out of memory", {}, "")
    assert made.complete and sum(bool(s.error) for s in made.samples) == 1


def test_a_forced_text_is_never_scored(place):
    with pytest.raises(EvalkitError, match="drawn, not verified"):
        execute(place, Scripted(answer, k=7, forced=True))
    assert not (place / "runs").exists() or not list((place / "runs").iterdir())


def test_a_score_that_lm_eval_does_not_share_is_an_error(place, monkeypatch):
    right = run_module.LoadedTask.evaluate

    def other(self, generate):
        return {**right(self, generate), 3: Scored(scores={"strict-match": 0.5}, extracted={})}

    monkeypatch.setattr(run_module.LoadedTask, "evaluate", other)
    with pytest.raises(EvalkitError, match="document 3: lm-eval scores it"):
        execute(place)
    assert not load_run(next((place / "runs").iterdir())).complete


def test_a_lost_request_is_an_error(place):
    class Loses(Scripted):
        def generate(self, requests, on_finish):
            super().generate(requests[:-1], on_finish)

    with pytest.raises(EvalkitError, match="without 1 of 12 requests"):
        execute(place, Loses(answer))


class Breaks(Scripted):
    """Stops after some requests."""

    def __init__(self, after, what):
        super().__init__(answer, k=7)
        self.after, self.what = after, what

    def generate(self, requests, on_finish):
        def counted(result):
            on_finish(result)
            self.after -= 1
            if not self.after:
                self.what()

        super().generate(requests, counted)


def interrupt():
    raise KeyboardInterrupt


def lean(made):
    """What must be equal between an interrupted and an uninterrupted run: all but the time."""
    return [replace(s, seconds=0.0) for s in made.samples]


def test_an_interrupted_run_is_continued_by_the_same_call(place):
    with pytest.raises(Interrupted, match="5 of 12 samples kept; the same command continues") as caught:
        execute(place, Breaks(5, interrupt))
    assert caught.value.exit_code == 130
    rest = Scripted(answer, k=7)
    made = execute(place, rest)
    assert len(rest.asked) == N - 5 and made.complete
    assert lean(made) == lean(execute(place, runs="other"))
    assert [s["kept"] for s in made.provenance["sessions"]] == [0, 5] and uncounted(made) == 0
    assert made.counters["verify_steps"] == sum(step.k > 0 for s in made.samples for step in s.steps)
    assert made.counters["requests"] == N
    nothing = Scripted(answer, k=7)
    assert execute(place, nothing).id == made.id + "-2" and len(nothing.asked) == N  # complete: never touched again


def test_an_interrupt_before_the_first_sample_leaves_nothing(place):
    def stop(request):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="no sample was finished"):
        execute(place, Scripted(stop))
    assert list((place / "runs").iterdir()) == []


def test_sigterm_stops_a_run_like_ctrl_c(place):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="3 of 12") as caught:
        execute(place, Breaks(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert caught.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before


CHILD = """
import sys, time
from pathlib import Path
from typing import Any, cast
sys.path.insert(0, {tests!r})
import test_run
def slow(request):
    time.sleep(0.02)
    return test_run.answer(request)
place = Path({place!r})
test_run.execute(place, test_run.Scripted(slow, k=7))
"""


def test_a_killed_run_is_continued(place):
    code = CHILD.format(tests=str(Path(__file__).parent), place=str(place))
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        stored = list((place / "runs").glob(f"*/{SAMPLES_FILE}")) if (place / "runs").exists() else []
        if stored and stored[0].read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.005)
    child.kill()
    child.wait()
    folder = next((place / "runs").iterdir())
    kept = load_run(folder)
    assert not kept.complete and 2 <= len(kept.samples) < N
    rest = Scripted(answer, k=7)
    made = execute(place, rest)
    assert made.id == folder.name and len(rest.asked) == N - len(kept.samples)
    assert uncounted(made) == len(kept.samples), "its counters died with it"
    assert lean(made) == lean(execute(place, runs="other"))


def test_another_engine_does_not_continue_a_run(place, monkeypatch):
    with pytest.raises(Interrupted):
        execute(place, Breaks(5, interrupt))
    monkeypatch.setattr(run_module.provenance, "code_hash", lambda: "other")
    out = (place / "out").open("w+")
    made = execute(place, watcher=Progress(stream=out))
    out.seek(0)
    assert "was interrupted and is not continued: the engine's code has changed" in out.read()
    out.close()
    assert made.id.endswith("-2") and len(made.samples) == N


@pytest.mark.parametrize("words", [{"batch": 2}, {"mono": "auto"}, {"graphs": "atom"}, {"kernels": "twin"},
                                   {"prefill_decode_interval": 4}, {"prefix_cache": False}])  # fmt: skip
def test_another_setting_does_not_continue_a_run_and_the_first_line_says_why(place, words):
    with pytest.raises(Interrupted):
        execute(place, Breaks(5, interrupt))
    (folder,) = (place / "runs").iterdir()
    out = (place / "out").open("w+")
    other = execute(place, watcher=Progress(stream=out), **words)
    out.seek(0)
    said = " ".join(out.read().split())
    out.close()
    assert f"{folder.name} was interrupted and is not continued: its setting is another one" in said
    assert other.id == f"{folder.name}-2" and len(other.provenance["sessions"]) == 1
    made = execute(place, threads=2)
    assert made.id == folder.name and len(made.provenance["sessions"]) == 2


def test_progress_says_what_is_known(place, tmp_path):
    with pytest.raises(Interrupted):
        execute(place, Breaks(5, interrupt))
    out = (tmp_path / "out").open("w+")
    execute(place, watcher=Progress(stream=out, every=0.0))
    out.seek(0)
    lines = out.read().splitlines()
    assert lines[0].startswith("note: prompts and gold answers were not tokenised")  # known before the first request
    assert lines[1].startswith("note: the data are not the published ones of gradeschool (its 12 documents")
    assert lines[2].startswith("note: before the run: there is no baseline to compare with")
    del lines[:3]
    assert lines[0].startswith("run gradeschool-") and lines[0].endswith("continued, 5 of 12 samples kept")
    assert len(lines) == 1 + N - 5 and lines[-1].startswith("12/12  strict-match 0.667  accepted length ")
    assert lines[-1].endswith(" tok/s")
    assert all(line.endswith(" s left") for line in lines[1:-1])
    out.close()


def test_progress_says_how_much_is_left_at_the_pace_of_this_session(place, tmp_path):
    made, now = execute(place), iter(float(10 * i) for i in range(9))
    with (tmp_path / "out").open("w+") as out:
        told = Progress(stream=out, every=0.0, clock=lambda: next(now))
        told.start("run", made.samples[:4], 10)  # at 0 s: what was kept has no pace
        for sample in made.samples[4:7]:
            told.sample(sample)  # at 10, 20 and 30 s
        out.seek(0)
        assert [line.split("  ")[-1] for line in out.read().splitlines()[1:]] == [
            "50.0 s left", "40.0 s left", "30.0 s left"]  # fmt: skip


def test_what_a_run_can_show_and_costs_is_said_before_it_and_not_stored(place, tmp_path):
    first = execute(place)
    with (tmp_path / "out").open("w+") as out:
        made = execute(place, watcher=Progress(stream=out), fresh=True, k=7)
        out.seek(0)
        assert f", by run {first.id}\n" in out.read()
    assert not any(note.startswith("before the run:") for note in made.provenance["notes"])


def test_progress_on_a_terminal_is_one_bar(place, tmp_path):
    class Terminal:
        def __init__(self, file):
            self.file = file

        def isatty(self):
            return True

        def __getattr__(self, name):
            return getattr(self.file, name)

    with (tmp_path / "out").open("w+") as out:
        execute(place, watcher=Progress(stream=cast(Any, Terminal(out))))
        out.seek(0)
        assert "12/12" in out.read()

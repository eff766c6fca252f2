"""run_cell: task + backend + seeds -> a stored Run. Every finished sample is on disk before the next counts."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from engine.api import Completion, Request, SamplingParams
from evalkit import provenance
from evalkit.backends import Backend, BackendFactory, Failure, Reply, make_backend
from evalkit.baseline import Baseline
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.fingerprint import in_words
from evalkit.gate import GateSpec
from evalkit.gate.accuracy import baseline_differences
from evalkit.golden import baseline_for, published
from evalkit.harness import LoadedTask, Prompt, Scored, load_task
from evalkit.outlook import outlook
from evalkit.preflight import check_task, check_template, check_tokens, lengths_note
from evalkit.records import Run, Sample, StepRecord
from evalkit.scoring import score_sample
from evalkit.smoke import Smoke, WrongAnswers, smoke_of
from evalkit.spec.find import heads
from evalkit.stopping import Stopper, plan
from evalkit.store import RunHead, RunWriter, open_run

SILENT = 16  # empty answers at the start after which a run is given up


class StopEarly(Exception):
    """Raised by on_finish when the rule has decided: the engine gives up what it runs."""


class Silence(EvalkitError):
    """The first answers are all empty: they are not kept, so that a repaired server is asked all of them."""


class Interrupted(Exception):
    """A run was asked to stop. What it has is kept; the same command continues it."""

    def __init__(self, *, kept: int, total: int, number: int) -> None:
        self.kept, self.total, self.exit_code = kept, total, 128 + number
        told = f"{kept} of {total} samples kept; the same command continues"
        super().__init__(told if kept else "no sample was finished; the same command starts again")


class Watcher(Protocol):
    """Who is told how a run goes on."""

    def start(self, run_id: str, kept: Sequence[Sample], total: int, notes: Sequence[str] = ()) -> None: ...

    def sample(self, sample: Sample) -> None: ...

    def stop(self) -> None: ...


class Silent:
    """A Watcher that tells nobody."""

    def start(self, run_id: str, kept: Sequence[Sample], total: int, notes: Sequence[str] = ()) -> None:
        pass

    def sample(self, sample: Sample) -> None:
        pass

    def stop(self) -> None:
        pass


def run_cell(
    cell: Cell,
    *,
    runs_dir: Path = Path("runs"),
    backend: BackendFactory = make_backend,
    watcher: Watcher | None = None,
    fresh: bool = False,
    baseline: Baseline | None = None,
    margin: float | None = None,
    alpha: float | None = None,
) -> Run:
    """Runs a cell to its end and returns the stored Run; an interrupted run of the same cell is continued.

    With `cell.stop_early` a sequential rule at `margin` and `alpha` (the gate's own) against `baseline` (the one in
    golden/) may end the run before its last sample; the Run then says why in `stopped`. A `baseline` of another setting
    is refused before the first request.

    Raises EvalkitError or EngineError for what the user can mend, and Interrupted after SIGINT or SIGTERM.
    """
    watcher = watcher or Silent()
    spec = _rule_spec(cell, margin, alpha)
    with _signals() as caught:
        writer: RunWriter | None = None
        total, made = 0, None
        try:
            task = load_task(cell)
            if cell.limit >= task.size:
                cell = replace(cell, limit=0)  # no subset: the whole task, under the name of the whole task
            total = len(task.prompts)
            notes = [*task.notes, *check_task(task)]
            engine = made = backend(cell)
            notes += getattr(engine, "notes", ())
            notes += check_template(task, getattr(engine, "chat_template", False))
            notes += check_tokens(task, getattr(engine, "encode", None), getattr(engine, "context", 0))
            head, stopper = _head(cell, task, engine, notes), None
            if not cell.stop_early:  # whose rule refuses it itself
                _refuse_other(baseline, head)
            if cell.stop_early:
                stopper = _stopper(cell, task, head, baseline, spec)
                head = replace(head, fingerprint=provenance.extend(head.fingerprint, stop_early=asdict(stopper.told())))
            trust = cell.server is None or not cell.server.smoke
            writer = open_run(runs_dir, cell.stem(task.name), head, fresh=fresh, trust=trust)
            with writer:
                try:
                    smoke, ahead = _smoke(cell, task, spec), _outlook(cell, task, head, baseline, spec, runs_dir)
                    return _Session(cell, task, engine, writer, watcher, notes, stopper, smoke, ahead).run()
                except Silence:
                    writer.keep([i for i, s in writer.done.items() if s.text.strip() or s.reasoning])
                    raise
                except BaseException as e:
                    if cell.server is not None:
                        writer.remember(engine.counters, doubt=e.what if isinstance(e, WrongAnswers) else "")
                    raise
        except KeyboardInterrupt:
            kept = len(writer.done) if writer else 0
            raise Interrupted(kept=kept, total=total, number=caught[0]) from None
        finally:
            close = getattr(made, "close", None)
            if close is not None:
                close()


def request_seed(run_seed: int, doc_id: int) -> int:
    """The seed of one document's request: its own, whatever else is in the run."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}:{doc_id}".encode()).digest()[:8], "big") >> 1


def _rule_spec(cell: Cell, margin: float | None, alpha: float | None) -> GateSpec:
    """What a run that stops early is decided by. The gate asks the same rule again at its own alpha, so a larger one
    would end runs that the gate then finds undecided."""
    spec = GateSpec() if margin is None else GateSpec(accuracy_margin=margin)
    if alpha is None:
        return spec
    if not cell.stop_early:
        raise EvalkitError(f"--alpha {alpha:g} without --stop-early: it is the error rate of that rule",
                           "add --stop-early, or leave --alpha away")  # fmt: skip
    if not 0 < alpha <= spec.alpha:
        raise EvalkitError(f"--alpha is {alpha:g}", f"give a number above 0 and at most {spec.alpha:g}, the gate's own")
    return replace(spec, alpha=alpha)


def _stopper(cell: Cell, task: LoadedTask, head: RunHead, baseline: Baseline | None, spec: GateSpec) -> Stopper:
    baseline = baseline or baseline_for(cell.target, task.name)
    return plan(task.prompts, head.fingerprint, baseline, seed=cell.seed, margin=spec.accuracy_margin, alpha=spec.alpha)


def _refuse_other(baseline: Baseline | None, head: RunHead) -> None:
    """A baseline that was named and is of another setting would fail the run at its end: it's refused at its start."""
    if baseline is None:
        return
    setting = {"cell": head.cell, "fingerprint": head.fingerprint, "provenance": {}}
    if differ := in_words(baseline_differences(baseline, setting)):
        raise EvalkitError(f"baseline {baseline.source} is of another setting than this run ({differ})",
                           "give the baseline of this target and task, or leave --baseline away")  # fmt: skip


def _outlook(
    cell: Cell, task: LoadedTask, head: RunHead, baseline: Baseline | None, spec: GateSpec, runs_dir: Path
) -> list[str]:
    """What the run can show and will cost, for the watcher alone: it is no finding, and isn't stored."""
    try:
        baseline = baseline or baseline_for(cell.target, task.name)
    except EvalkitError:
        return []  # the gate says what is wrong with that file
    stored = [old for _, old in heads(runs_dir)]
    return outlook(head, task.prompts, baseline=baseline, references=published(), spec=spec, stored=stored)


def _smoke(cell: Cell, task: LoadedTask, spec: GateSpec) -> Smoke | None:
    """What the first answers of a server are held against; None where nothing is known of it, or not asked for.

    A run of another protocol may well be worse, and is not tested.
    """
    if cell.server is None or not cell.server.smoke or cell.forced or cell.temperature:
        return None
    baseline, score = baseline_for(cell.target, task.name), None
    told = {"task_sha": task.task_sha, "shots": task.shots, "max_tokens": task.max_tokens}
    if baseline and all(baseline.fingerprint.get(name) == value for name, value in told.items()):
        score = baseline.correct / baseline.n
    references = [r for r in published() if r.shots == task.shots and not cell.max_tokens]
    return smoke_of(target=cell.target, task=task.name, baseline=score, references=references,
                    margin=spec.accuracy_margin)  # fmt: skip


def _head(cell: Cell, task: LoadedTask, engine: Backend, notes: list[str]) -> RunHead:
    told = {
        "task": task.name,
        "task_sha": task.task_sha,
        "prompts_sha": task.prompts_sha,
        "shots": task.shots,
        "stop": list(task.stop),
        "max_tokens": task.max_tokens,
    }
    settings = dict(engine.settings)
    ids = [p.doc_id for p in task.prompts]
    return RunHead(
        cell={**cell.to_json(), "task": task.name, "shots": task.shots, "max_tokens": task.max_tokens},
        fingerprint=provenance.fingerprint(cell, settings=settings, task=told, doc_ids=ids),
        provenance={
            **provenance.collect(cell, settings=settings, files=task.files),
            **getattr(engine, "record", {}),
            "notes": notes,
        },
        expected=len(ids),
        task_size=task.size,
    )


@dataclass(slots=True)
class _Session:
    """One process at work on one run."""

    cell: Cell
    task: LoadedTask
    engine: Backend
    writer: RunWriter
    watcher: Watcher
    notes: list[str] = field(default_factory=list)
    stopper: Stopper | None = None
    smoke: Smoke | None = None
    ahead: Sequence[str] = ()  # said before the first request, not stored
    _started: float = 0.0
    _seconds: float = 0.0
    _empty: int = 0  # answers without text, none with text before them

    def run(self) -> Run:
        if self.stopper:
            self._take_kept(self.stopper)
        kept = list(self.writer.done.values())
        self.notes = [*self.notes, *self.writer.moved()]
        notes = [*self.notes, self.writer.note] if self.writer.note else self.notes
        self.watcher.start(self.writer.id, kept, len(self.task.prompts), [*notes, *self.ahead])
        try:
            task = self._until_stopped(self.stopper) if self.stopper else self.task
            if self.cell.forced:
                self.generate(task.prompts)  # no text of it is scored, so lm-eval is not asked
                official: dict[int, Scored] = {}
            else:
                official = task.evaluate(self.generate)
        finally:
            self.watcher.stop()
        if not self.cell.forced:
            _compare(official, self.writer.done)
        note = lengths_note([s.tokens for s in self.writer.done.values() if not s.error], self.task.max_tokens)
        told = {"finished": provenance.now(), "notes": self.notes + ([note] if note else [])}
        stopping = self.stopper.told() if self.stopper else None
        stopped = ""
        if stopping and self.stopper and self.stopper.stopped:
            stopped = f"{stopping.state} after {stopping.seen} of {stopping.planned} questions"
        return self.writer.finish(
            seconds=self._seconds, counters=self.engine.counters, provenance=told, stopping=stopping, stopped=stopped
        )

    def _take_kept(self, stopper: Stopper) -> None:
        """Feeds the rule what an interrupted run has stored, up to the first gap; what is behind it is asked again."""
        for doc_id in stopper.order:
            if doc_id not in self.writer.done or stopper.take(self.writer.done[doc_id]):
                break
        self.writer.keep(stopper.seen)

    def _until_stopped(self, stopper: Stopper) -> LoadedTask:
        """Asks in the drawn order until the rule stops; the task as it then is: with the prompts that were seen."""
        by_id = {p.doc_id: p for p in self.task.prompts}
        try:
            if not stopper.stopped:
                self.generate([by_id[i] for i in stopper.order])
        except StopEarly:
            pass
        seen = set(stopper.seen)
        return replace(self.task, prompts=tuple(p for p in self.task.prompts if p.doc_id in seen))

    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """The text of every prompt: kept ones from the store, the others from the engine."""
        todo = [p for p in prompts if p.doc_id not in self.writer.done]
        by_id = {str(p.doc_id): p for p in todo}
        self._started = time.monotonic()

        def on_finish(result: Completion | Failure) -> None:
            prompt = by_id.pop(result.id)
            sample = self._sample(prompt, result)
            self._seconds = time.monotonic() - self._started
            self._refuse_silence(sample)
            for ready in self.stopper.ready(sample) if self.stopper else [sample]:
                self.writer.add(ready, seconds=self._seconds)
                self.watcher.sample(ready)
                if self.smoke:
                    self.smoke.take(ready)
                if self.stopper and self.stopper.take(ready):
                    raise StopEarly

        if todo:
            self.engine.generate([self._request(p) for p in todo], on_finish)
        if by_id:
            raise EvalkitError(f"the engine finished without {len(by_id)} of {len(todo)} requests "
                               f"(first: document {next(iter(by_id))})", "report this as a bug")  # fmt: skip
        return [self.writer.done[p.doc_id].text for p in prompts]

    def _refuse_silence(self, sample: Sample) -> None:
        """A run whose first answers are all empty is not worth its end."""
        if self._empty < 0 or sample.error:
            return
        self._empty = -1 if sample.text.strip() or sample.reasoning else self._empty + 1
        if self._empty == SILENT:
            raise Silence(
                f"the first {SILENT} answers are all empty (last stop: {sample.stop_hit or 'none'!r}, "
                f"{sample.tokens} tokens)",
                "look at the task's stops, the template, and the logits for NaN; nothing was scored, and none is kept",
            )

    def _request(self, prompt: Prompt) -> Request:
        params = SamplingParams(
            max_tokens=self.task.max_tokens,
            temperature=self.cell.temperature,
            top_p=self.cell.top_p,
            top_k=self.cell.top_k,
            stop=self.task.stop,
            seed=request_seed(self.cell.seed, prompt.doc_id),
        )
        return Request(id=str(prompt.doc_id), prompt=prompt.text, params=params)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Text of tokens, for the report's view of the steps; nothing from an engine that does not tell it."""
        pieces = getattr(self.engine, "pieces", None)
        return pieces(ids) if pieces is not None and ids else []

    def _sample(self, prompt: Prompt, result: Completion | Failure) -> Sample:
        known: dict[str, Any] = {
            "doc_id": prompt.doc_id,
            "doc_hash": prompt.doc_hash,
            "prompt_hash": prompt.prompt_hash,
            "question": prompt.question,
            "gold": prompt.gold,
            "category": prompt.category,
        }
        if isinstance(result, Failure):
            return Sample(**known, error=" ".join(result.error.split()) or "failed")
        if self.cell.forced:
            return self._forced(known, prompt, result)
        if result.forced:
            raise EvalkitError(
                f"document {prompt.doc_id}: its acceptance was drawn, not verified, so its text means nothing",
                "turn synthetic acceptance off to measure accuracy",
            )
        found = self.task.score(prompt.doc_id, result.text)
        made = Sample(
            **known,
            **self._told(result),
            text=result.text,
            pieces=tuple(self._pieces(result.token_ids)),
            gaps=result.gaps,
            scores=dict(found.scores),
            extracted=dict(found.extracted),
        )
        if isinstance(result, Reply):
            made = replace(made, reasoning=result.reasoning, counts=result.counts, attempts=result.attempts)
        whole = made if made.text.strip() or not made.reasoning else replace(made, text=f"<think>{made.reasoning}")
        return replace(made, canonical=score_sample(whole, result.token_ids))  # thinking alone is no answer

    def _forced(self, known: dict[str, Any], prompt: Prompt, result: Completion) -> Sample:
        """Counts and times without a text: nothing there that a scorer could take."""
        if not result.forced:
            raise EvalkitError(f"document {prompt.doc_id}: forced acceptance was asked for, and this engine verified",
                               "leave --forced-length away, or use an engine that has it")  # fmt: skip
        self._empty = -1  # there is no silence to refuse
        return Sample(**known, **self._told(result), forced=True)

    def _told(self, result: Completion) -> dict[str, Any]:
        """What is kept of a completion whatever its text is worth."""
        return {
            "finish_reason": result.finish_reason.value,
            "stop_hit": result.stop_hit,
            "tokens": result.tokens if isinstance(result, Reply) else len(result.token_ids),
            "prompt_tokens": result.prompt_tokens,
            "cached_tokens": result.cached_tokens,
            "seconds": result.seconds,
            "steps": tuple(
                StepRecord(k=s.k, accepted=s.accepted, accepted_trimmed=s.accepted_trimmed, cut=s.cut.value,
                           confidence=s.confidence, forced=s.forced, rejected=tuple(self._pieces(s.rejected)))
                for s in result.steps
            ),
        }  # fmt: skip


def _compare(official: dict[int, Scored], ours: dict[int, Sample]) -> None:
    """lm-eval's scores at the end must be those stored on the way. A failed request has none."""
    for doc_id, sample in ours.items():
        if not sample.error and dict(official[doc_id].scores) != dict(sample.scores):
            raise EvalkitError(
                f"document {doc_id}: lm-eval scores it {dict(official[doc_id].scores)}, stored is "
                f"{dict(sample.scores)}", "run again with --fresh; if it stays, report it as a bug",
            )  # fmt: skip


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM stops a run as Ctrl-C does; what is yielded names the signal that came."""
    caught = [int(signal.SIGINT)]

    def stop(number: int, frame: object) -> None:
        caught[0] = number
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGTERM, before)

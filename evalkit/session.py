"""One process at work on one run: asks what is not stored yet, stores each answer as it comes, ends by a rule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.api import Completion
from evalkit import provenance
from evalkit.answered import request_of, sample_of
from evalkit.backends import Backend, Failure
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.harness import LoadedTask, Prompt, Scored
from evalkit.preflight import lengths_note
from evalkit.records import Run, Sample
from evalkit.smoke import Smoke
from evalkit.stopping import Stopper
from evalkit.store import RunWriter

SILENT = 16  # empty answers at the start after which a run is given up


class StopEarly(Exception):
    """Raised by on_finish when the rule has decided: the engine gives up what it runs."""


class Silence(EvalkitError):
    """The first answers are all empty: they are not kept, so that a repaired server is asked all of them."""


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


@dataclass(slots=True)
class Session:
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
            sample = sample_of(self.cell, self.task, prompt, result, pieces=self._pieces)
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
            self.engine.generate([request_of(self.cell, self.task, p) for p in todo], on_finish)
        if by_id:
            raise EvalkitError(f"the engine finished without {len(by_id)} of {len(todo)} requests "
                               f"(first: document {next(iter(by_id))})", "report this as a bug")  # fmt: skip
        return [self.writer.done[p.doc_id].text for p in prompts]

    def _refuse_silence(self, sample: Sample) -> None:
        """A run whose first answers are all empty is not worth its end."""
        if self._empty < 0 or sample.error or sample.forced:
            return
        self._empty = -1 if sample.text.strip() or sample.reasoning else self._empty + 1
        if self._empty == SILENT:
            raise Silence(
                f"the first {SILENT} answers are all empty (last stop: {sample.stop_hit or 'none'!r}, "
                f"{sample.tokens} tokens)",
                "look at the task's stops, the template, and the logits for NaN; nothing was scored, and none is kept",
            )

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Text of tokens, for the report's view of the steps; nothing from an engine that does not tell it."""
        pieces = getattr(self.engine, "pieces", None)
        return pieces(ids) if pieces is not None and ids else []


def _compare(official: dict[int, Scored], ours: dict[int, Sample]) -> None:
    """lm-eval's scores at the end must be those stored on the way. A failed request has none."""
    for doc_id, sample in ours.items():
        if not sample.error and dict(official[doc_id].scores) != dict(sample.scores):
            raise EvalkitError(
                f"document {doc_id}: lm-eval scores it {dict(official[doc_id].scores)}, stored is "
                f"{dict(sample.scores)}", "run again with --fresh; if it stays, report it as a bug",
            )  # fmt: skip

"""How a run goes on: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from evalkit.layout import say, window
from evalkit.records import Sample
from evalkit.views import STRICT


@dataclass(slots=True)
class Tally:
    """Running counts over the samples so far; only those of this session make the speed."""

    total: int = 0
    done: int = 0
    failed: int = 0
    right: float = 0.0
    scored: int = 0
    accepted: int = 0
    forced: bool = False  # acceptance is drawn, not verified
    steps: int = 0
    tokens: int = 0

    def add(self, sample: Sample, *, kept: bool = False) -> None:
        self.done += 1
        if sample.error:
            self.failed += 1
            return
        score = sample.scores.get(STRICT, next(iter(sample.scores.values()), None))
        if score is not None:
            self.right += score
            self.scored += 1
        for step in sample.steps:
            if step.k:
                self.steps += 1
                self.accepted += step.accepted
                self.forced |= step.forced
        if not kept:
            self.tokens += sample.tokens

    def line(self, seconds: float) -> str:
        """The tally in words, without the count of samples."""
        parts = [f"{STRICT} {self.right / self.scored:.3f}" if self.scored else f"{STRICT} -"]
        if self.steps:
            parts.append(f"accepted length {1 + self.accepted / self.steps:.2f}{' (forced)' if self.forced else ''}")
        parts.append(f"{self.tokens / seconds:.0f} tok/s" if seconds > 0 and self.tokens else "- tok/s")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return "  ".join(parts)


@dataclass(slots=True)
class Progress:
    """A run.Watcher for people. `every` is the time between plain lines, in seconds."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _tally: Tally = field(default_factory=Tally)
    _bar: _Bar | None = None
    _began: float = 0.0
    _kept: int = 0
    _said: float = 0.0

    def start(self, run_id: str, kept: Sequence[Sample], total: int, notes: Sequence[str] = ()) -> None:
        self._tally = Tally(total=total)
        for sample in kept:
            self._tally.add(sample, kept=True)
        self._began = self._said = self.clock()
        self._kept = self._tally.done
        for note in notes:
            say(f"note: {note}", self.stream)
        print(f"run {run_id}" + (f": continued, {len(kept)} of {total} samples kept" if kept else ""), file=self.stream)
        if self.stream.isatty():
            self._bar = _Bar(self.stream, total, len(kept))

    def sample(self, sample: Sample) -> None:
        self._tally.add(sample)
        now = self.clock()
        words = self._tally.line(now - self._began)
        if self._bar is not None:
            self._bar.update(self._tally.done, words)
        elif now - self._said >= self.every or self._tally.done == self._tally.total:
            self._said = now
            left = self._left(now - self._began)
            print(f"{self._tally.done}/{self._tally.total}  {words}{left}", file=self.stream, flush=True)

    def _left(self, seconds: float) -> str:
        """How long the rest takes at the pace of this session, for those who have no bar."""
        done, rest = self._tally.done - self._kept, self._tally.total - self._tally.done
        if not rest or done < 1:
            return ""
        from evalkit.report.text import duration

        return f"  {duration(seconds / done * rest)} left"

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


BESIDE = 32  # columns that the bar, the count and the time take beside the words


class _Bar:
    """The rich progress bar. Where the window is too narrow for bar and words, the words stand under one another."""

    def __init__(self, stream: TextIO, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=None), MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False), TimeRemainingColumn(),
            console=Console(file=stream), refresh_per_second=4,
        )  # fmt: skip
        self._id = self._progress.add_task("", total=total, completed=done)
        self._progress.start()

    def update(self, done: int, words: str) -> None:
        narrow = len(words) + BESIDE > window(self._progress.console.file)
        shown = words.replace("  ", "\n") if narrow else words
        self._progress.update(self._id, completed=done, description=shown)

    def stop(self) -> None:
        self._progress.stop()

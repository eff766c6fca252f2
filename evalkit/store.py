"""A Run on disk: RUNS/ID/run.json and samples.jsonl, one line a sample, written as each finishes.

run.json says `complete` only when every sample is safe on disk. A last line that a kill cut short is
dropped; a run that is not complete is continued; a complete one is never written again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evalkit.continuing import differs
from evalkit.errors import EvalkitError
from evalkit.files import write_all, write_atomic
from evalkit.records import SCHEMA, Run, Sample, Stopping
from evalkit.runfile import (
    LOCK_FILE,
    RUN_FILE,
    SAMPLES_FILE,
    dump,
    find_run,
    list_runs,
    load_run,
    pack_sample,
    read_head,
    unpack_sample,
)
from evalkit.sessions import COUNTED, add_counters

__all__ = ["RunHead", "RunWriter", "find_run", "list_runs", "load_run", "open_run"]

SYNC_EVERY = 32  # samples between two fsyncs
WRITABLE = "give a writable folder with --runs-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """What is known of a run before it has samples; run.json holds it."""

    cell: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    provenance: Mapping[str, Any]
    expected: int
    task_size: int


class RunWriter:
    """A run being written, under a lock. `done` are the samples it already has."""

    def __init__(self, folder: Path, head: RunHead, lock: int, *, done: dict[int, Sample], offset: int,
                 seconds: float, sessions: list[dict[str, Any]], counters: Mapping[str, Any]) -> None:  # fmt: skip
        self.folder, self.head = folder, head
        self.id, self.done, self.resumed = folder.name, done, bool(done)
        self._lock, self._offset, self._before = lock, offset, seconds
        self._since_sync = 0
        self._complete = False
        self.note = ""  # why an interrupted run was not continued
        session: dict[str, Any] = {"started": head.provenance.get("started", ""), "kept": len(done)}
        if address := _address(head.provenance):
            session["base_url"] = address
        self._sessions = [*sessions, session]
        self._file = -1
        self._counters = dict(counters)  # of sessions before this one
        try:
            self._write_head(self._unfinished())
            self._file = os.open(folder / SAMPLES_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._file, offset)
            os.lseek(self._file, offset, os.SEEK_SET)
        except BaseException as e:
            self.close()
            raise _storing(folder, e) if isinstance(e, OSError) else e from None

    def add(self, sample: Sample, *, seconds: float) -> None:
        """Stores one finished sample. `seconds` is the time that this session has generated for so far."""
        line = pack_sample(sample, at=self._before + seconds)
        try:
            write_all(self._file, line)
            self._since_sync += 1
            if self._since_sync >= SYNC_EVERY:
                os.fsync(self._file)
                self._since_sync = 0
        except OSError as e:
            raise self._failed(e) from None
        self._offset += len(line)
        self.done[sample.doc_id] = sample

    def moved(self) -> list[str]:
        """A note where sessions of this run that gave samples were at different addresses of a server."""
        told = [s["base_url"] for s in self._sessions if "base_url" in s]
        if len(set(told)) < 2:
            return []
        return [f"the run was continued at another address of the server: {', then '.join(dict.fromkeys(told))}"]

    def remember(self, counters: Mapping[str, Any], *, doubt: str = "") -> None:
        """Keeps the counters of a session that ends before the run does: they can't be read again. `doubt` says
        why the samples should not be trusted: without --fresh or an explicit trust the run is then not continued."""
        if self._file >= 0:
            self._counters = add_counters(self._counters, counters)
            self._sessions[-1][COUNTED] = True
            with suppress(OSError):
                self._write_head({**self._unfinished(), **({"doubt": doubt} if doubt else {})})

    def _unfinished(self) -> dict[str, Any]:
        return {"complete": False, **({"counters": self._counters} if self._counters else {})}

    def keep(self, doc_ids: Collection[int]) -> None:
        """Drops every sample but these: a run that stops early holds what its rule saw."""
        if self.done.keys() <= set(doc_ids):
            return
        path, lines = self.folder / SAMPLES_FILE, []
        for line in path.read_bytes().splitlines(keepends=True):
            sample, _ = unpack_sample(line, path)
            if sample.doc_id in doc_ids and not sample.error:
                lines.append(line)
        try:
            os.close(self._file)
            self._file = -1
            write_atomic(path, b"".join(lines))
            self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self._offset = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as e:
            raise _storing(self.folder, e) from None
        self.done = {i: s for i, s in self.done.items() if i in doc_ids}

    def finish(
        self, *, seconds: float, counters: Mapping[str, Any], provenance: Mapping[str, Any],
        stopping: Stopping | None = None, stopped: str = "",
    ) -> Run:  # fmt: skip
        """Marks the run complete. All its samples are on disk before run.json says so.

        `stopped` says why there are fewer than expected: a rule ended the run. Nothing else may.
        """
        if len(self.done) != self.head.expected and not stopped:
            raise ValueError(f"{len(self.done)} samples of {self.head.expected}")
        self.head = replace(self.head, provenance={**self.head.provenance, **provenance})
        tokens = sum(s.tokens for s in self.done.values())
        self._sessions[-1][COUNTED] = True
        try:
            os.fsync(self._file)
            self._write_head({
                "complete": True,
                "seconds": round(self._before + seconds, 3),
                "output_tokens": tokens,
                "counters": add_counters(self._counters, counters),
                "samples": len(self.done),
                **({"stopping": asdict(stopping)} if stopping else {}),
                **({"stopped": stopped} if stopped else {}),
                "samples_sha256": hashlib.sha256((self.folder / SAMPLES_FILE).read_bytes()).hexdigest(),
            })  # fmt: skip
        except OSError as e:
            raise self._failed(e) from None
        self._complete = True
        return load_run(self.folder)

    def close(self) -> None:
        """Lets go of the run. A new run without a sample leaves nothing behind."""
        if self._file >= 0:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            if not self.done and not self._complete:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _failed(self, e: OSError) -> EvalkitError:
        """Takes a half-written line back, so that the file ends with a whole sample."""
        with suppress(OSError):
            os.ftruncate(self._file, self._offset)
        return _storing(self.folder, e, kept=len(self.done), total=self.head.expected)

    def _write_head(self, values: Mapping[str, Any]) -> None:
        head = {f.name: getattr(self.head, f.name) for f in fields(self.head)}
        head["provenance"] = {**self.head.provenance, "sessions": self._sessions}
        text = dump({"schema": SCHEMA, "id": self.id, **values, **head}, indent=1)
        write_atomic(self.folder / RUN_FILE, text.encode() + b"\n")


def open_run(root: Path, stem: str, head: RunHead, *, fresh: bool = False, trust: bool = True) -> RunWriter:
    """The run to write: the interrupted one of this setting (evalkit.continuing), else a new one.

    Raises EvalkitError for an interrupted one whose samples are in doubt, where there is no `trust` in them and no
    later run.
    """
    base = f"{stem}-{str(head.fingerprint['hash'])[:8]}"
    note = doubt = ""
    for folder in _candidates(root, base):
        if fresh and folder.exists():
            continue
        old = _head_of(folder)
        if old and old["complete"]:
            doubt = ""  # a later run is whole
            continue  # never overwritten; a complete run needs no lock to be seen as such
        if old and (why := differs(old, _plain_head(head))):
            note = f"{folder.name} was interrupted and is not continued: {why}"
            continue
        if doubt and not old:
            raise EvalkitError(f"{doubt}; its answers are kept and not continued",
                               "mend the server and add --fresh; --no-smoke goes on with those answers")  # fmt: skip
        doubt = "" if trust or not old or not old.get("doubt") else f"{folder.name} was ended: {old['doubt']}"
        if doubt:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise EvalkitError(f"cannot make {folder} ({e.strerror})", WRITABLE) from None
        lock = _lock(folder)
        try:
            old = _head_of(folder)  # as it is now that nobody else writes
            if old and (old["complete"] or differs(old, _plain_head(head))):
                os.close(lock)
                continue
            sessions = list(old["provenance"].get("sessions", [])) if old else []
            counters = old.get("counters", {}) if old else {}
            done, offset, seconds = _recover(folder / SAMPLES_FILE)
        except BaseException:
            os.close(lock)
            raise
        writer = RunWriter(
            folder, head, lock, done=done, offset=offset, seconds=seconds, sessions=sessions, counters=counters
        )
        writer.note = "" if writer.resumed else note
        return writer
    raise AssertionError("unreachable")


def _head_of(folder: Path) -> dict[str, Any] | None:
    return read_head(folder) if (folder / RUN_FILE).exists() else None


def _plain_head(head: RunHead) -> dict[str, Any]:
    """A head as it will be read back."""
    return {name: _plain(getattr(head, name)) for name in ("cell", "fingerprint", "provenance")}


def _address(provenance: Mapping[str, Any]) -> str:
    """The address of a server that was there already; "" for one that was started, on a port of its own each time."""
    server = provenance.get("server")
    return str(server.get("base_url") or "").rstrip("/") if isinstance(server, Mapping) else ""


def _candidates(root: Path, base: str) -> Iterator[Path]:
    yield root / base
    for n in range(2, 10_000):
        yield root / f"{base}-{n}"


def _lock(folder: Path) -> int:
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise EvalkitError(f"cannot write in {folder} ({e.strerror})", WRITABLE) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise EvalkitError(
            f"the run {folder} is being written by another process", "wait for it, or start another with --fresh"
        ) from None
    return lock


def _recover(path: Path) -> tuple[dict[int, Sample], int, float]:
    """Samples of an interrupted run that can be kept, the offset to go on at, and the seconds spent.

    A failed sample is asked again: its line stays, the later one counts.
    """
    done: dict[int, Sample] = {}
    offset, seconds = 0, 0.0
    if path.exists():
        data = path.read_bytes()
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # cut short by a kill
            sample, at = unpack_sample(line, path)
            offset, seconds = offset + len(line), max(seconds, at)
            done.pop(sample.doc_id, None)
            if not sample.error:
                done[sample.doc_id] = sample
    return done, offset, seconds


def _plain(value: Any) -> Any:
    return json.loads(dump(value))


def _storing(folder: Path, e: OSError, *, kept: int = 0, total: int = 0) -> EvalkitError:
    what = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else (e.strerror or str(e))
    held = f"; {kept} of {total} samples kept" if total else ""
    return EvalkitError(f"cannot store the run in {folder}: {what}{held}", "make room; the same command continues")

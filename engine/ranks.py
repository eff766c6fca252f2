"""The processes of the ranks beside rank 0: started, handed every call, watched, ended.

Rank 0 is the LLM in the caller's process. The others hold an LLM each and repeat what rank 0 is asked; they wait at a
pipe between calls, and end with it. A rank that ends or keeps silent turns the call into one EngineError.
"""

from __future__ import annotations

import signal
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.multiprocessing as mp

from engine.config import EngineConfig
from engine.draft import Drafter
from engine.errors import EngineError
from engine.parallel import Parallel, RankLost, Stopped

START_S = 600.0  # to import, load and shard, and again to meet
REASON_S = 10.0  # for a failed rank to say why


class Ranks:
    """Ranks 1 to tp - 1 of one LLM."""

    def __init__(self, config: EngineConfig, drafter: Drafter | None) -> None:
        self._size, self._folder = config.tp, TemporaryDirectory(prefix="evalkit-ranks-")
        self.released = False  # the ranks have left the present call and wait for the next
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._pipes, self._folder)
        # Ctrl-C reaches the whole group; the ranks leave it to rank 0, from their first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for rank in range(1, config.tp):
                ours, theirs = context.Pipe()
                args = (rank, config, drafter, theirs)
                process = context.Process(target=_work, args=args, name=f"rank {rank}", daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        except (PicklingError, AttributeError, TypeError) as e:
            self.close()
            raise EngineError(f"the drafter cannot be sent to the other ranks ({e})", "use tp 1 with it") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def connect(self, parallel: Parallel, device: torch.device) -> None:
        """Wait until all have loaded, then join them. Raises EngineError with what one of them says."""
        try:
            for pipe, process in zip(self._pipes, self._processes, strict=True):
                heard = wait([pipe, process.sentinel], START_S)
                try:
                    said = pipe.recv() if pipe in heard and pipe.poll() else ("nothing",)
                except (EOFError, OSError):
                    said = ("nothing",)
                if said[0] == "error":
                    raise EngineError(*said[1:])
                if said[0] != "ready":
                    raise self._reason(f"{process.name} did not load within {START_S:.0f} s")
            meeting = str(Path(self._folder.name) / "meeting")
            self._send(meeting)
            parallel.connect(meeting, device, START_S)
        except RankLost as e:
            error = self._reason(str(e))
            self.close()
            raise error from None
        except BaseException:
            self.close()
            raise

    @contextmanager
    def call(self, name: str, *args: Any) -> Iterator[None]:
        """Has the ranks do LLM.name(*args) while the caller does it too.

        An exception of the body ends the ranks, unless it told them by Parallel.in_step(stop=True) and set `released`.
        """
        if not self._finalizer.alive:
            raise EngineError("the ranks of this LLM have ended", "make a new LLM")
        self.released = False
        try:
            self._send(name, args)
            yield
        except RankLost as e:
            error = self._reason(str(e))
            self.close()
            raise error from None
        except BaseException:
            if not self.released:
                self.close()
            raise

    def close(self) -> None:
        """End the ranks; they hold nothing that could be lost."""
        self._finalizer()

    def _send(self, *message: Any) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(message)
            except OSError as e:
                raise RankLost(str(e)) from None

    def _reason(self, otherwise: str) -> EngineError:
        """Why a rank is lost: what it said, or how it ended, or `otherwise`."""
        until = time.monotonic() + REASON_S
        while True:
            said = [_told(pipe) for pipe in self._pipes]
            for message in said:
                if message is not None and message[0] == "error":
                    return EngineError(*message[1:])
            for process in self._processes:
                if process.exitcode:
                    return EngineError(f"{process.name} of {self._size} {_ending(process.exitcode)}",
                                       "look at the memory it had and at what was printed above")  # fmt: skip
            if time.monotonic() > until:
                return EngineError(f"a rank of {self._size} gave no answer: {otherwise}", "run it again, or with tp 1")
            time.sleep(0.05)


def _work(rank: int, config: EngineConfig, drafter: Drafter | None, pipe: Connection) -> None:
    """The life of one rank beside rank 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # rank 0 has ended: so does this one
        try:
            _serve(rank, config, drafter, pipe)
        except RankLost:
            pass  # another one has the reason
        except EngineError as e:
            pipe.send(("error", e.what, e.fix))
        except EOFError:
            pass
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            what = f"rank {rank} of {config.tp}: {type(e).__name__}: {e} (at {last.filename}:{last.lineno})"
            pipe.send(("error", what, "this is a bug of the engine; please report it"))


def _serve(rank: int, config: EngineConfig, drafter: Drafter | None, pipe: Connection) -> None:
    from engine.llm import LLM  # it imports this module

    parallel = Parallel(rank, config.tp)
    llm = LLM(config, drafter=drafter, parallel=parallel)
    pipe.send(("ready",))
    (meeting,) = pipe.recv()
    parallel.connect(meeting, llm.device, START_S)
    while True:
        name, args = pipe.recv()
        with suppress(Stopped):
            getattr(llm, name)(*args)


def _told(pipe: Connection) -> tuple[str, ...] | None:
    with suppress(EOFError, OSError):
        while pipe.poll():
            message = pipe.recv()
            if message[0] == "error":
                return message
    return None


def _ending(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end(processes: list[BaseProcess], pipes: list[Connection], folder: TemporaryDirectory[str]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join(5)
    folder.cleanup()

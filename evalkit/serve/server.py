"""The process: load the engine, listen, say so, and on SIGTERM or Ctrl-C let what runs finish."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.serve.app import make_app
from evalkit.serve.bound import longest_token
from evalkit.serve.chat import ChatTemplate
from evalkit.serve.errors import CUT
from evalkit.serve.service import Service
from evalkit.serve.settings import ServeSettings
from evalkit.serve.stats import Stats
from evalkit.serve.worker import Worker

LAST_WORDS = 2  # seconds in which what was cut is told so, and kept-alive connections end


def run(cell: Cell, settings: ServeSettings) -> None:
    """Serves until a signal ends it. Raises EvalkitError where requests had to be cut at the end of the drain."""
    listener = bind(settings)  # before the model is loaded: a port in use is said at once
    with listener:
        if settings.warning:
            print(f"warning: {settings.warning}", file=sys.stderr, flush=True)
        service = make_service(cell, settings)
        for note in service.notes:
            print(f"note: {note}", file=sys.stderr, flush=True)
        server = Server(service, listener)
        asyncio.run(server.serve(sockets=[listener]))
    if server.cut:
        raise cut_error(server.cut, settings.drain_seconds, asked=server.cut_asked)


def cut_error(prompts: int, seconds: int, *, asked: bool) -> EvalkitError:
    """What a server says at its end that left prompts without their answers. asked: by a second Ctrl-C."""
    said = "1 prompt was cut" if prompts == 1 else f"{prompts} prompts were cut"
    if asked:
        return EvalkitError(f"{said}, as Ctrl-C asked during the drain", "wait for the drain's end to cut none")
    return EvalkitError(f"{said} after {seconds} s of drain", "raise --drain-seconds")


def make_service(cell: Cell, settings: ServeSettings, llm: Any = None) -> Service:
    """The engine of a cell, loaded, with what serves it. llm: an engine.LLM that is loaded already."""
    if llm is None:
        from evalkit.backends.inprocess import load_llm

        llm = load_llm(cell.engine)

    def gauges() -> dict[str, int]:
        pool, scheduler = llm.pool, llm.scheduler
        return {
            **llm.counters,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "pages": pool.num_pages,
            "pages_used": pool.in_use,
            "prefix_queries": pool.stats.queries,
            "prefix_hits": pool.stats.hits,
        }

    about = {"target": cell.target, "draft": cell.draft, "k": cell.k, "quant": cell.quant, "dtype": llm.quant.act,
             "device": llm.device.type, "draft_width": cell.engine.draft_width,
             "verify": cell.engine.verify, "seed": cell.engine.seed}  # fmt: skip
    return Service(
        settings=settings,
        worker=Worker(llm, Stats(cell.k), max_queue=settings.max_queue, gauges=gauges),
        tokenizer=llm.tokenizer,
        template=ChatTemplate(cell.engine.model, settings.chat_template),
        context=llm.max_model_len,
        vocabulary=llm.target.cfg.vocab_size,
        k=cell.k,
        reach=longest_token(cell.engine.model),
        eos=llm.target.cfg.eos_token_ids,
        about=about,
        notes=getattr(llm, "notes", ()),
    )


def bind(settings: ServeSettings) -> socket.socket:
    """A bound socket that does not listen yet. Raises EvalkitError for an address that cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as e:
        raise EvalkitError(f"--host {settings.host} is no address of this machine ({e.strerror})",
                           "use 127.0.0.1") from None  # fmt: skip
    found = socket.socket(family, kind, proto)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as e:
        found.close()
        raise EvalkitError(f"cannot listen on {settings.host}:{settings.port} ({e.strerror})",
                           "give another --port; 0 takes a free one") from None  # fmt: skip
    return found


class Server(uvicorn.Server):
    """uvicorn with a drain of its own, in which it still listens and says so, and with a normal exit after it."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self._guard = make_app(service)
        config = uvicorn.Config(
            self._guard,
            log_config=None,
            log_level="critical",
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=LAST_WORDS,
        )
        super().__init__(config)
        self._service, self._listener = service, listener
        self.cut_asked = False  # whether what was cut was cut by a second Ctrl-C

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        about = self._service.about
        print(f"serving {self._service.settings.name} + {about['draft']}  K={about['k']}  {about['quant']}  at "
              f"http://{host}:{port}/v1  (Ctrl-C ends it)", flush=True)  # fmt: skip

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves the lifespan open then; the thread must not outlive the interpreter
            await self._service.worker.close()
        print("stopped", flush=True)

    @property
    def cut(self) -> int:
        """Prompts that had not finished when the time was up."""
        return self._service.worker.lost

    async def _drain(self) -> None:
        """Waits for what runs, as long as it may; then tells the rest that it is cut, and lets that be sent."""
        if not await self._quiet(self._service.settings.drain_seconds, until_forced=True):
            self.cut_asked = self.force_exit  # later it would say nothing of why
            self._service.worker.cut(CUT)
            await self._quiet(LAST_WORDS)

    async def _quiet(self, seconds: float, *, until_forced: bool = False) -> bool:
        """Whether all that was taken is answered, within so many seconds and before a second Ctrl-C."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while self._guard.working and clock() < end and not (until_forced and self.force_exit):
            await asyncio.sleep(0.02)
        return not self._guard.working

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals begin the drain. uvicorn would raise them anew at its end, and a clean stop would exit 143."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        if not self._service.draining:
            self._service.draining = True
            print(f"draining: {self._service.worker.active} prompts wait or run, at most "
                  f"{self._service.settings.drain_seconds} s; Ctrl-C again cuts them", flush=True)  # fmt: skip
        self.handle_exit(number, None)

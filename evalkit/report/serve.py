"""`evalkit report --serve`: the stored runs in a browser on this machine, read-only.

Only GET and HEAD are answered, only on the loopback address, and only under a loopback name (a page elsewhere that
points a name of its own at 127.0.0.1 is refused). Nothing is written: pages are made when asked for.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from evalkit.errors import EvalkitError
from evalkit.records import Run
from evalkit.report import history, index
from evalkit.report.history import Brief
from evalkit.runfile import RUN_FILE, SAMPLES_FILE, load_run

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
MOST = 24  # runs in one page
KEPT = 8  # pages kept in memory


@dataclass(slots=True, kw_only=True)
class Runs:
    """The runs below a folder; what is worked out of one is kept as long as its files stay the same."""

    root: Path
    _briefs: dict[str, tuple[tuple[int, int], Brief | str]] = field(default_factory=dict)
    _pages: dict[tuple[object, ...], str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self) -> list[str]:
        return sorted(p.parent.name for p in self.root.glob(f"*/{RUN_FILE}"))

    def stamp(self, name: str) -> tuple[int, int]:
        files = [self.root / name / f for f in (RUN_FILE, SAMPLES_FILE)]
        times = [p.stat() for p in files if p.exists()]
        return sum(t.st_mtime_ns for t in times), sum(t.st_size for t in times)

    def load(self, name: str) -> Run:
        """A run by the name of its folder, which must be one that is there: no path gets through."""
        if name not in self.names():
            raise KeyError(name)
        return load_run(self.root / name)

    def briefs(self) -> tuple[list[Brief], list[str]]:
        """Every run, oldest first, and what is said of those that can't be read."""
        with self.lock:
            found: list[Brief] = []
            broken: list[str] = []
            for name in self.names():
                stamp = self.stamp(name)
                if self._briefs.get(name, (None,))[0] != stamp:
                    self._briefs[name] = (stamp, self._brief(name))
                made = self._briefs[name][1]
                if isinstance(made, Brief):
                    found.append(made)
                else:
                    broken.append(made)
            return sorted(found, key=lambda b: (b.started, b.id)), broken

    def _brief(self, name: str) -> Brief | str:
        try:
            return history.brief(load_run(self.root / name))
        except EvalkitError as e:
            return f"{name}: {e.what}"

    def page(self, names: list[str]) -> str:
        """The report of some runs, made when first asked for."""
        from evalkit.judging import judge_sweep, report_subjects
        from evalkit.report.render import render_page

        key = tuple((name, self.stamp(name)) for name in names if name in self.names())
        with self.lock:
            if key not in self._pages:
                judged = judge_sweep([self.load(name) for name in names])
                made = render_page(report_subjects([(j.run, j) for j in judged]))
                while len(self._pages) >= KEPT:
                    del self._pages[next(iter(self._pages))]
                self._pages[key] = made
            return self._pages[key]


class Handler(BaseHTTPRequestHandler):
    """One request. `runs` is set by `make_server`."""

    runs: Runs
    server_version, sys_version = "evalkit", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        try:
            status, page = self._route()
        except EvalkitError as e:
            status, page = HTTPStatus.UNPROCESSABLE_ENTITY, index.message_page("This can't be shown", e.what, e.fix)
        data = page.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _route(self) -> tuple[HTTPStatus, str]:
        host = re.sub(r":\d+$", "", self.headers.get("Host") or "")
        if host.lower() not in NAMES:
            return HTTPStatus.FORBIDDEN, index.message_page("Refused", f"this server is not called {host[:80]}", "")
        parts = urlsplit(self.path)
        words, asked = [unquote(w) for w in parts.path.split("/") if w], parse_qs(parts.query)
        pages: dict[str, Callable[[], str]] = {"": self._index, "report": lambda: self._report(asked.get("run", []))}
        try:
            if len(words) < 2 and (words[0] if words else "") in pages:
                return HTTPStatus.OK, pages[words[0] if words else ""]()
            if len(words) == 2 and words[0] == "run":
                return HTTPStatus.OK, self.runs.page([words[1]])
            if len(words) == 2 and words[0] == "cell":
                return HTTPStatus.OK, self._cell(words[1])
        except KeyError:
            pass
        return HTTPStatus.NOT_FOUND, index.message_page("Not found", "there is no such page", "the index has all runs")

    def _index(self) -> str:
        found, broken = self.runs.briefs()
        return index.index_page(found, broken, str(self.runs.root))

    def _report(self, names: list[str]) -> str:
        chosen = list(dict.fromkeys(names))
        if not 1 <= len(chosen) <= MOST:
            raise EvalkitError(f"{len(chosen)} runs are chosen", f"choose 1 to {MOST} of them in the index")
        for name in chosen:
            if name not in self.runs.names():
                raise KeyError(name)
        return self.runs.page(chosen)

    def _cell(self, key: str) -> str:
        members = [b for b in self.runs.briefs()[0] if b.cell == key]
        if not members:
            raise KeyError(key)
        with self.runs.lock:  # matplotlib's settings are the process's
            return index.cell_page(members)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a reader's clicks are no news. Errors still reach log_error."""


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """A server that is bound and not yet running; port 0 takes a free one."""
    if not root.is_dir():
        raise EvalkitError(f"{root} is no folder of runs", "give one with --runs-dir")
    handler = type("BoundHandler", (Handler,), {"runs": Runs(root=root)})
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as e:
        raise EvalkitError(
            f"port {port} can't be used ({e})", "give another with --port, or 0 for a free one"
        ) from None


def serve(root: Path, port: int) -> None:
    """Serves until Ctrl-C."""
    with make_server(root, port) as server:
        print(
            f"evalkit report: http://{HOST}:{server.server_address[1]}/ (this machine only; Ctrl-C ends it)", flush=True
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)

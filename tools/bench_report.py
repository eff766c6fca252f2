"""How long a page takes to write and to open, and how large it is: the published sweep, and 100,000 samples.

The runs are those of `make report`, made where they are not stored. Each page is written in a process of its own,
several times; times are CPU seconds after the imports (reading, judging and writing), and of the page's main thread,
which are wall time on a machine of one's own. --write puts the table into docs/report.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.marked import between
from tools.report import FLAGS, ROOT, SWEEP, browser, run_of

MANY = 100_000
DOCUMENT = ROOT / "docs" / "report.md"
BEGIN, END = "<!-- measured: make bench-report -->", "<!-- end of measured -->"
WRITER = """
import gc, json, resource, sys, time
from pathlib import Path
from evalkit import judging
from evalkit.runfile import load_run
import evalkit.report.render, matplotlib.figure, matplotlib.backends.backend_svg, scipy.special
gc.disable()  # as evalkit report does
cpu, wall = time.process_time(), time.perf_counter()
judged = judging.judge_sweep([load_run(Path(name)) for name in sys.argv[2:]])
path = judging.write_reports([(j.run, j) for j in judged], Path(sys.argv[1]))
print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "size": path.stat().st_size,
                  "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What issue and document ask of a page."""

    seconds: float
    size: int
    opens: float | None  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    folders: tuple[Path, ...]
    limits: Limits
    shows: str  # a sample of it, as an address' fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Seconds, one a round; () without a browser."""

    load: tuple[float, ...] = ()  # from the navigation's start to the load event
    cpu: tuple[float, ...] = ()  # of the page's main thread until then
    sample: tuple[float, ...] = ()  # from the start until a sample with its tokens, or the list of them, stands there


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    cpu: tuple[float, ...]  # seconds, one a round
    wall: tuple[float, ...]
    size: int  # bytes
    memory: int  # bytes, the largest
    opened: Opened


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    parser.add_argument("--sweep", type=Path, nargs="*", help="folders of other runs than the published sweep's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(ROOT)}")
    asked = parser.parse_args(argv)
    folders = tuple(asked.sweep or (asked.runs_dir / run_of(k, q, asked.runs_dir, "0") for k, q in SWEEP))
    with tempfile.TemporaryDirectory() as scratch:
        many = copies(folders[-1], MANY, Path(scratch) / "many")
        samples = json.loads((folders[0] / "run.json").read_text(encoding="utf-8"))["samples"]
        cases = [
            Case(name=f"{len(folders)} cells x {samples:,} samples", folders=folders, shows="#sample=20&run=0",
                 limits=Limits(seconds=5, size=3_000_000, opens=1)),
            Case(name=f"one run of {MANY:,} samples", folders=(many,), shows="",
                 limits=Limits(seconds=60, size=3_000_000, opens=None)),
        ]  # fmt: skip
        found = [(case, measure(case, Path(scratch) / "page.html", asked.rounds)) for case in cases]
    told = table(found, asked.rounds)
    print(told)
    if asked.write:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), told), encoding="utf-8")
    return 0


def with_table(document: str, told: str) -> str:
    """The document with the table between its two marks, in place of the one before."""
    try:
        return between(document, (BEGIN, END), f"\n{told}")
    except ValueError as e:
        raise SystemExit(f"{DOCUMENT} has no place for the table: it {e}") from None


def copies(source: Path, count: int, folder: Path) -> Path:
    """A run whose samples are those of `source` again and again, each a document of its own."""
    lines = (source / "samples.jsonl").read_bytes().splitlines()
    digest, folder_file, tokens = hashlib.sha256(), folder / "samples.jsonl", 0
    folder.mkdir(parents=True)
    with folder_file.open("wb") as file:
        for i in range(count):
            row = json.loads(lines[i % len(lines)])
            row["doc_id"] = i
            if i >= len(lines):
                row["doc_hash"] = hashlib.sha256(f"{row['doc_hash']} {i}".encode()).hexdigest()
            line = json.dumps(row).encode() + b"\n"
            digest.update(line)
            tokens += row.get("tokens", 0)
            file.write(line)
    head = json.loads((source / "run.json").read_text(encoding="utf-8"))
    head |= {"id": folder.name, "samples": count, "expected": count, "task_size": count,
             "output_tokens": tokens, "samples_sha256": digest.hexdigest()}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")
    return folder


def measure(case: Case, page: Path, rounds: int) -> Measured:
    made = []
    for _ in range(rounds):
        words = [sys.executable, "-c", WRITER, str(page), *map(str, case.folders)]
        done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
        made.append(json.loads(done.stdout.splitlines()[-1]))
    return Measured(
        cpu=tuple(m["cpu"] for m in made), wall=tuple(m["wall"] for m in made), size=made[-1]["size"],
        memory=max(m["memory"] for m in made), opened=opened(page, case.shows, rounds),
    )  # fmt: skip


def opened(page: Path, fragment: str, rounds: int) -> Opened:
    """`fragment` names a sample to show; without one the list of samples is waited for."""
    found = browser()
    if found is None:
        print("no Chromium here: the page is not opened", file=sys.stderr)
        return Opened()
    from playwright.sync_api import sync_playwright

    load, cpu, sample = [], [], []
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=FLAGS)
        started.new_page().goto("about:blank")  # the browser's own start is not the page's
        for _ in range(rounds):
            tab = started.new_page(viewport={"width": 1280, "height": 800})
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            tab.goto(page.as_uri())
            told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
            cpu.append(told["TaskDuration"])
            load.append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
            tab.close()
            tab = started.new_page(viewport={"width": 1280, "height": 800})
            tab.goto(page.as_uri() + (fragment or "#samples"))
            tab.wait_for_selector("#detail .steps" if fragment else "#list a", timeout=120_000)
            sample.append(tab.evaluate("performance.now()") / 1000)
            tab.close()
        started.close()
    return Opened(load=tuple(load), cpu=tuple(cpu), sample=tuple(sample))


def table(found: Sequence[tuple[Case, Measured]], rounds: int) -> str:
    """Markdown: median (smallest .. largest) of the rounds."""
    columns = ("", "CPU to write", "wall", "size", "memory", "CPU to open", "to the load event", "to the samples")
    lines = [f"Median (smallest .. largest) of {rounds} rounds; in Chromium for what opens.\n",
             "| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]  # fmt: skip
    for case, x in found:
        cells = [case.name, _asked(x.cpu, case.limits.seconds), _seconds(x.wall),
                 f"{x.size:,} bytes, {_met(x.size <= case.limits.size, f'at most {case.limits.size:,}')}",
                 f"{x.memory / 2**20:,.0f} MiB", _asked(x.opened.cpu, case.limits.opens), _seconds(x.opened.load),
                 _seconds(x.opened.sample)]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _seconds(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    return f"{statistics.median(values):.2f} s ({min(values):.2f} .. {max(values):.2f})"


def _asked(values: Sequence[float], limit: float | None) -> str:
    if limit is None or not values:
        return _seconds(values)
    return f"{_seconds(values)}, {_met(statistics.median(values) <= limit, f'under {limit:g} s')}"


def _met(met: bool, asked: str) -> str:
    return f"{asked}: {'met' if met else 'not met'}"


if __name__ == "__main__":
    sys.exit(main())

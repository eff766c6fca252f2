"""Make reports/: the page of the embedded model's published sweep, its markdown, and docs/'s pictures.

Runs that are stored already (the same setting, model and engine code) are taken as they are, so that doing it again
takes a moment. Pictures need Chromium; where there is none, the page is made and the pictures are left as they are.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "reports" / "sweep.html"
PICTURES = ROOT / "docs" / "pictures"
SWEEP = [(k, quant) for k in (3, 5, 7) for quant in ("float32", "fp8", "nvfp4")]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SHOTS: Sequence[tuple[str, int, int, str, str]] = (  # name, width, height, colour scheme, fragment
    ("sweep-1280", 1280, 800, "light", ""),
    ("sweep-1280-dark", 1280, 800, "dark", ""),
    ("sweep-390", 390, 844, "light", ""),
    ("sample-1280", 1280, 800, "light", "#sample=20&run=8"),
    ("sample-390", 390, 844, "light", "#sample=20&run=8"),
)


def browser() -> str | None:
    """The browser that pictures and browser tests use."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    parser.add_argument("--threads", default="0", help="CPU threads of a run; 0 leaves torch's choice")
    parser.add_argument("--no-pictures", action="store_true")
    asked = parser.parse_args(argv)
    runs = [run_of(k, quant, asked.runs_dir, asked.threads) for k, quant in SWEEP]
    evalkit("report", *runs, "--runs-dir", asked.runs_dir, "-o", PAGE)
    told = evalkit("report", *runs, "--runs-dir", asked.runs_dir, "--markdown", capture=True)
    PAGE.with_suffix(".md").write_text(told, encoding="utf-8")
    if not asked.no_pictures:
        pictures(PAGE, PICTURES)
    return 0


def run_of(k: int, quant: str, runs_dir: Path, threads: str) -> str:
    """The id of a stored run that the present engine and model would give again; made where there is none."""
    from evalkit import provenance
    from evalkit.checkpoint import checkpoint_hash
    from evalkit.config import Cell
    from evalkit.store import list_runs

    cell = Cell.make(k=k, quant=quant)
    target, draft = (checkpoint_hash(p) for p in (cell.engine.model, cell.engine.draft_path) if p)
    wanted = {
        "k": k,
        "quant": quant,
        "task": "gradeschool",
        "target_sha": target,
        "draft_sha": draft,
        "temperature": 0.0,
    }
    code = provenance.code_hash()
    for head in reversed(list_runs(runs_dir) if runs_dir.is_dir() else []):
        whole = head["complete"] and head["expected"] == head["task_size"] and not head.get("stopped")
        if whole and head["provenance"].get("code") == code and wanted.items() <= head["fingerprint"].items():
            return str(head["id"])
    out = evalkit("run", "--k", k, "--quant", quant, "--runs-dir", runs_dir, "--threads", threads, "--no-gate",
                  "--no-report", capture=True)  # fmt: skip
    return next(Path(line.removeprefix("run: ")).name for line in out.splitlines() if line.startswith("run: "))


def evalkit(*words: Any, capture: bool = False) -> str:
    done = subprocess.run([sys.executable, "-m", "evalkit.cli", *map(str, words)], cwd=ROOT, check=False, text=True,
                          stdout=subprocess.PIPE if capture else None)  # fmt: skip
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout or ""


def pictures(page: Path, folder: Path) -> None:
    """Screenshots of the page, for the README."""
    found = browser()
    if found is None:
        print("no Chromium here: the pictures in docs/ are left as they are", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=FLAGS)
        for name, width, height, scheme, fragment in SHOTS:
            tab = started.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            tab.goto(page.as_uri() + fragment)
            if fragment:
                tab.wait_for_selector("#detail .steps")
            tab.screenshot(path=folder / f"{name}.png")
            tab.close()
        started.close()
    print(f"pictures: {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())

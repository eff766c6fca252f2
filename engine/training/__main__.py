"""`python -m engine.training [--build DIR] [--out DIR] [--threads N]`: the recipe of the embedded model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from engine.training.recipe import Recipe, run, task_stream

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded target and its drafts; goes on where it stopped.")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "reference", help="training state")
    parser.add_argument("--out", type=Path, default=ROOT / "engine" / "reference", help="checkpoints")
    parser.add_argument("--threads", type=int, default=1, help="another number gives other bits")
    args = parser.parse_args()
    start = time.perf_counter()

    def say(line: str) -> None:
        print(f"[{time.perf_counter() - start:6.0f}s] {line}", flush=True)

    run(Recipe(build=args.build, out=args.out, stream=task_stream(), threads=args.threads, say=say))


if __name__ == "__main__":
    main()

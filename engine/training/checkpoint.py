"""Training state on disk: parameters, optimisers, step and log, so that a killed run goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import nn


class TrainState:
    """`folder` holds state.pt (replaced whole) and log.jsonl (rewound to the state on resume)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.log_file = folder / "state.pt", folder / "log.jsonl"
        self.entries: list[dict[str, float]] = []
        self.cpu0, self.wall0 = time.process_time(), time.perf_counter()
        self.spent = {"cpu_seconds": 0.0, "wall_seconds": 0.0}

    def restore(self, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
        """Load the saved state if there is one; the step to go on with."""
        if not self.file.exists():
            return 0
        saved = torch.load(self.file, weights_only=True)
        module.load_state_dict(saved["module"])
        for o, s in zip(optimizers, saved["optimizers"], strict=True):
            o.load_state_dict(s)
        self.spent = saved["spent"]
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        self.entries = [e for line in lines if (e := json.loads(line))["step"] < saved["step"]]
        return int(saved["step"])

    def log(self, step: int, **values: float) -> None:
        self.entries.append({"step": step, **values})

    def recent(self, count: int = 50) -> str:
        """Means of the last entries, with the time spent so far."""
        last = self.entries[-count:]
        keys = [k for k in last[-1] if k not in ("step", "quant", "tokens")]
        means = "  ".join(f"{k} {sum(e[k] for e in last) / len(last):.4f}" for k in keys)
        tokens = sum(e.get("tokens", 0) for e in self.entries)
        t = self.times()
        return f"{means}  tokens {tokens:,}  cpu {t['cpu_seconds']:.0f}s  wall {t['wall_seconds']:.0f}s"

    def times(self) -> dict[str, float]:
        return {
            "cpu_seconds": self.spent["cpu_seconds"] + time.process_time() - self.cpu0,
            "wall_seconds": self.spent["wall_seconds"] + time.perf_counter() - self.wall0,
        }

    def save(self, module: nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> None:
        temp = self.file.with_suffix(".tmp")
        torch.save(
            {
                "module": module.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
                "step": step,
                "spent": self.times(),
            },
            temp,
        )
        self.log_file.write_text("".join(json.dumps(e) + "\n" for e in self.entries))
        temp.replace(self.file)

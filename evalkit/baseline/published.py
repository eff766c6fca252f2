"""Scores that somebody published, and which runs may be compared with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalkit.baseline.marks import mark
from evalkit.config import ROOT
from evalkit.errors import EvalkitError
from evalkit.records import Run

GOLDEN_DIR = ROOT / "golden"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScore:
    """A published score. `gates`: a run of the same target and task is judged against it; else only shown."""

    name: str
    target: str
    task: str
    shots: int | None
    metric: str
    score: float
    n: int
    correct: int
    stderr: float | None
    gates: bool
    source: str
    protocol: str
    k: int | None = None  # where it is published
    quant: str = ""

    def __post_init__(self) -> None:
        try:
            rounds_to = round(self.correct / self.n, 4)
        except (TypeError, ZeroDivisionError) as e:
            raise EvalkitError(f"reference {self.name} has correct {self.correct} of n {self.n} ({e})") from None
        if rounds_to != self.score:
            raise EvalkitError(f"reference {self.name}: {self.correct}/{self.n} is {rounds_to}, not {self.score}")

    def __str__(self) -> str:
        return f"{self.name} {self.metric} {self.score:.4f} ({self.correct}/{self.n})"

    def not_comparable(self, run: Run) -> str:
        """Why the run may not be compared with this score; "" when it may."""
        cell, documents = run.cell, run.provenance.get("documents") or {}
        why = self.refusal(target=str(cell.get("target")), task=str(cell.get("task")), shots=mark(run, "shots"))
        pinned = documents.get("pinned")
        if why or not (run.task_size < self.n or (pinned and pinned != documents.get("sha256"))):
            return why
        return f"it is of the {self.n} questions of {self.task}, this run of other data ({run.task_size} questions)"

    def refusal(self, *, target: str, task: str, shots: int | None) -> str:
        """Every fact in which this score's protocol is another, with both values; "" where none is."""
        why = []
        if target != self.target:
            why.append(f"it is of target {self.target}, this run of {target}")
        if task != self.task:
            why.append(f"it is of task {self.task}, this run of {task}")
        if self.shots is not None and shots is not None and shots != self.shots:
            why.append(f"it has {self.shots} shots, this run {shots}")
        return ", and ".join(why)


def load_reference_scores(path: Path = GOLDEN_DIR / "reference_scores.yaml") -> tuple[ReferenceScore, ...]:
    """The published scores that the project knows."""
    from evalkit.yamlfile import parse_yaml

    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
        return tuple(ReferenceScore(**entry) for entry in data["scores"])
    except EvalkitError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise EvalkitError(f"{path} is no list of reference scores ({e})", "restore the file") from None

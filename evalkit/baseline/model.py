"""A baseline: a K=0 run's scores question by question, and how they vary from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from evalkit.errors import EvalkitError
from evalkit.records import Sample

HASH_CHARS = 16  # 64 bits of each hash are stored and compared: enough for any task, and a third of the file


class Row(NamedTuple):
    """One question of a baseline."""

    prompt_hash: str
    strict: int  # 0 or 1
    flexible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How a baseline's score varies when the same setting is run again: standard deviations of one run's score, as
    fractions of 1. `excess_sd` is what independent flips of single answers (`expected_sd`) leave unexplained."""

    runs: tuple[str, ...]
    scores: tuple[float, ...]
    sd: float
    expected_sd: float
    excess_sd: float

    def __str__(self) -> str:
        words = f"run-to-run sd {100 * self.sd:.2g} pt of {len(self.runs)} runs"
        return f"{words}, {100 * self.excess_sd:.2g} pt beyond single answers" if self.sd else words


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Per-question results of a K=0 float32 run. `rows` is keyed by the (short) hash of the document."""

    run_id: str
    target: str
    task: str
    rows: Mapping[str, Row]
    fingerprint: Mapping[str, Any]
    source: str = ""
    variation: Variation | None = None  # of repeats, where there were any; `rows` are the first run's

    def __post_init__(self) -> None:
        if not self.rows:
            raise EvalkitError(f"baseline {self.source or self.run_id} has no questions", "record it again")
        for doc, row in self.rows.items():
            if row.strict not in (0, 1) or row.flexible not in (0, 1):
                raise EvalkitError(
                    f"baseline {self.source or self.run_id} has scores {row.strict}, {row.flexible} for {doc}, "
                    "expected 0 or 1",
                    "record it again",
                )

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def correct(self) -> int:
        return sum(row.strict for row in self.rows.values())

    @property
    def score(self) -> float:
        return self.correct / self.n


def score_bit(sample: Sample, name: str) -> int:
    """A sample's score as 0 or 1. Raises EvalkitError when it is missing or anything else (NaN included)."""
    value = sample.scores.get(name)
    if value is None or value not in (0, 1):
        raise EvalkitError(f"sample {sample.doc_id} has {name} {value}, expected 0 or 1", "score the run again")
    return int(value)

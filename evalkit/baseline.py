"""What a run's score is compared with: a recorded K=0 run, question by question, and published scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evalkit import stats
from evalkit.config import TARGETS
from evalkit.errors import EvalkitError
from evalkit.fingerprint import accuracy_fingerprint
from evalkit.records import SCHEMA, Run, Sample
from evalkit.runfile import read_json
from evalkit.servers.setting import stored_faults

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"
STRICT, FLEXIBLE = "strict-match", "flexible-extract"
HASH_CHARS = 16  # 64 bits of each hash are stored and compared: enough for any task, and a third of the file
REAL = "run it again with real acceptance: without --forced-length, or the server's own flag for it"
SHIPPED = "gradeschool"  # the task whose data are in the checkout
BASELINE_MARKS = ("target_sha", "task_sha")  # what a run must share with its baseline, besides the prompts


def mark(run: Run, key: str) -> Any:
    """A fact that two runs may have to share: from the fingerprint, else from the cell; None if in neither."""
    return run.fingerprint.get(key, run.cell.get(key))


def by_name(run: Run) -> bool:
    """Whether the names of a run's target, draft and task say all of its setting that a baseline or golden must share:
    then one command makes it. Not for a server's target, data of one's own, or a task whose data are not here."""
    cell = run.cell
    odd = ("server", "data", "temperature", "limit", "online_quant_config")
    plain = not any(cell.get(name) for name in odd) and not mark(run, "shots")
    return plain and cell.get("target") in TARGETS and cell.get("task") == SHIPPED


def baseline_command(run: Run) -> str:
    """How to get a baseline that fits a run: by one command where names say its setting, else from a run like it."""
    cell = run.cell
    if by_name(run):
        return f"evalkit golden record --target {cell.get('target')} --task {cell.get('task')} --k 0 --quant float32"
    return f"make a K=0 float32 run with the options of {run.id}, then evalkit baseline record THAT_RUN"


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


def refuse_unfit(run: Run, what: str) -> None:
    """Refuses a run that can be no standard for others: incomplete, a subset, failed or forced samples."""
    again = "run the whole task again"
    if run.forced:
        raise EvalkitError(f"run {run.id} has forced acceptance: no {what}", REAL)
    if not run.complete or len(run.samples) != run.expected:
        raise EvalkitError(f"run {run.id} is incomplete ({len(run.samples)} of {run.expected}): no {what}", again)
    if run.expected < run.task_size:
        raise EvalkitError(f"run {run.id} has {run.expected} of {run.task_size} samples: no {what}", again)
    failed = sum(bool(s.error) for s in run.samples)
    if failed:
        raise EvalkitError(f"run {run.id} has {failed} failed requests: no {what}", again)


def record_baseline(run: Run, path: Path, *, repeats: Sequence[Run] = (), write: bool = True) -> str:
    """Makes `run` the baseline in `path` and returns a line with the old score and the new one.

    Only a complete K=0 float32 run of the whole task is taken. `repeats` are further runs of the same setting (another
    seed, batch size or machine): they show the run-to-run variation that is stored beside the first run's rows. With
    write=False nothing is written.
    """
    rows = _baseline_rows(run)
    marks = {key: mark(run, key) for key in (*BASELINE_MARKS, "shots", "temperature", "quant", "k")}
    marks = {name: x for name, x in accuracy_fingerprint(run).fields.items() if x is not None} | marks
    new = Baseline(run_id=run.id, target=str(run.cell.get("target")), task=str(run.cell.get("task")), rows=rows,
                   fingerprint=marks, source=path.name, variation=_variation([run, *repeats], marks))  # fmt: skip
    old = load_baseline(path) if path.exists() else None
    if write:
        atomic_write(path, _baseline_text(new))
    interval = stats.wilson(new.correct, new.n)
    before = f"{old.score:.4f} ({old.correct}/{old.n}, run {old.run_id})" if old else "none"
    return (
        f"baseline {path.name}: {STRICT} old {before}, new {new.score:.4f} ({new.correct}/{new.n}, run {run.id}), "
        f"95 % {interval.low:.4f} .. {interval.high:.4f}{f'; {new.variation}' if new.variation else ''}"
    )


def _variation(runs: Sequence[Run], marks: Mapping[str, Any]) -> Variation | None:
    """Run-to-run variation of the same setting on the same prompts. None for a single run."""
    if len(runs) < 2:
        return None
    if len({run.id for run in runs}) < len(runs):
        raise EvalkitError("the same run is given twice: a copy varies by nothing", "give each run once")
    first, table = _baseline_rows(runs[0]), []
    for run in runs:
        rows = _baseline_rows(run)
        told = accuracy_fingerprint(run).fields
        differ = [key for key in marks if told.get(key, mark(run, key)) != marks[key]]
        prompts = {doc: row.prompt_hash for doc, row in rows.items()}
        if prompts != {doc: row.prompt_hash for doc, row in first.items()}:
            differ.append("prompts")
        if differ:
            raise EvalkitError(
                f"run {run.id} is no repeat of {runs[0].id}: {', '.join(differ)} differ",
                "give K=0 runs of one setting; only the seed, the batch size and the machine may differ",
            )
        table.append([rows[doc].strict for doc in first])
    found = stats.run_variation_by_unit(np.asarray(table))
    assert found.expected_sd is not None and found.excess_sd is not None
    return Variation(
        runs=tuple(run.id for run in runs), scores=tuple(sum(row) / len(row) for row in table),
        sd=found.sd, expected_sd=found.expected_sd, excess_sd=found.excess_sd,
    )  # fmt: skip


def _baseline_rows(run: Run) -> dict[str, Row]:
    """A run's scores by document; refuses a run that can be no baseline."""
    if run.cell.get("k") != 0 or run.cell.get("quant") != "float32":
        raise EvalkitError(
            f"run {run.id} is K={run.cell.get('k')} in {run.cell.get('quant')}: a baseline is K=0 in float32",
            baseline_command(run),
        )
    if faults := stored_faults(run):
        raise EvalkitError(f"run {run.id}: {'; '.join(faults)}: no baseline",
                           "start the server at K=0 in float32 and run again")  # fmt: skip
    refuse_unfit(run, "baseline")
    _need_marks(run, BASELINE_MARKS)
    rows = {
        s.doc_hash[:HASH_CHARS]: Row(s.prompt_hash[:HASH_CHARS], score_bit(s, STRICT), score_bit(s, FLEXIBLE))
        for s in run.samples
    }
    if len(rows) != len(run.samples):
        raise EvalkitError(f"run {run.id} has {len(run.samples)} samples of {len(rows)} documents", "run it again")
    return rows


def _need_marks(run: Run, keys: tuple[str, ...]) -> None:
    absent = [key for key in keys if mark(run, key) in (None, "")]
    if absent:
        raise EvalkitError(f"run {run.id} does not say its {', '.join(absent)}", "run it again with this evalkit")


def _baseline_text(baseline: Baseline) -> str:
    head = {
        "schema": SCHEMA,
        "run": baseline.run_id,
        "target": baseline.target,
        "task": baseline.task,
        "n": baseline.n,
        "correct": baseline.correct,
        "score": round(baseline.score, 6),
        "fingerprint": dict(baseline.fingerprint),
        **({"repeats": asdict(baseline.variation)} if baseline.variation else {}),
        "columns": ["doc_hash", "prompt_hash", STRICT, FLEXIBLE],
    }
    lines = ",\n".join(json.dumps([doc, *row], separators=(",", ":")) for doc, row in baseline.rows.items())
    return json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n]}\n"


def load_baseline(path: Path) -> Baseline:
    """Reads a baseline; one whose rows do not give its own n and count is refused."""
    fix = "restore the file, or record the baseline again"
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EvalkitError(f"{path} does not exist", "record a baseline first") from None
    except (OSError, ValueError) as e:
        raise EvalkitError(f"{path} cannot be read ({e})", fix) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise EvalkitError(f"{path} has schema {found}, expected {SCHEMA}", fix)
    try:
        rows = {str(doc): Row(str(prompt), strict, flexible) for doc, prompt, strict, flexible in data["rows"]}
        found = Baseline(
            run_id=data["run"],
            target=data["target"],
            task=data["task"],
            rows=rows,
            fingerprint=data["fingerprint"],
            source=path.name,
            variation=_read_variation(data.get("repeats")),
        )
        said = (data["n"], data["correct"])
    except (KeyError, TypeError, ValueError) as e:
        raise EvalkitError(f"{path} is no baseline ({type(e).__name__}: {e})", fix) from None
    if said != (found.n, found.correct) or len(data["rows"]) != found.n:
        raise EvalkitError(f"{path} says n, correct = {said}, its rows give {found.n}, {found.correct}", fix)
    _check_head(path, found, fix)
    return found


def _check_head(path: Path, found: Baseline, fix: str) -> None:
    """What a baseline is of. One that does not say would fit any run."""
    texts = {"run": found.run_id, "target": found.target, "task": found.task}
    if odd := [name for name, value in texts.items() if not isinstance(value, str) or not value]:
        raise EvalkitError(f"{path} has {texts[odd[0]]!r} as its {odd[0]}, expected text", fix)
    told = found.fingerprint
    if not isinstance(told, dict) or not all(told.get(name) for name in BASELINE_MARKS):
        raise EvalkitError(f"{path} has a fingerprint without {' and '.join(BASELINE_MARKS)}", fix)


def _read_variation(values: Mapping[str, Any] | None) -> Variation | None:
    """A file without repeats has none. A ValueError says what does not agree."""
    if values is None:
        return None
    runs, scores = tuple(str(r) for r in values["runs"]), tuple(float(s) for s in values["scores"])
    found = Variation(
        runs=runs, scores=scores, **{key: float(values[key]) for key in ("sd", "expected_sd", "excess_sd")}
    )
    sd = stats.run_variation(scores).sd
    if len(runs) != len(scores) or not abs(sd - found.sd) < 1e-9:
        raise ValueError(f"{len(runs)} repeats with sd {found.sd}, their {len(scores)} scores give {sd}")
    if not 0 <= found.excess_sd <= found.sd + 1e-12 or not 0 <= found.expected_sd <= 1:
        raise ValueError(f"repeats with sd {found.sd}, excess {found.excess_sd}, expected {found.expected_sd}")
    return found


def atomic_write(path: Path, text: str) -> None:
    """The whole text or nothing: written beside `path`, then moved over it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise EvalkitError(f"cannot write {path} ({e})", "free some space, or give another path") from None


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
        cell = run.cell
        return self.refusal(target=str(cell.get("target")), task=str(cell.get("task")), shots=mark(run, "shots"))

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

"""Making a stored run a baseline: which runs may be one, and what is written of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalkit import stats
from evalkit.baseline.file import baseline_text, load_baseline
from evalkit.baseline.marks import BASELINE_MARKS, baseline_command, mark
from evalkit.baseline.model import HASH_CHARS, Baseline, Row, Variation, score_bit
from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.fingerprint import accuracy_fingerprint, extra_facts
from evalkit.online_quant import FIELD as ONLINE
from evalkit.online_quant import quant_name
from evalkit.records import Run
from evalkit.sameness import COPIED, copy_among
from evalkit.servers.setting import stored_faults
from evalkit.views import FLEXIBLE, STRICT

REAL = "run it again with real acceptance: without --forced-length, or the server's own flag for it"


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
        write_text(path, baseline_text(new))
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
    if copied := copy_among(runs):
        raise EvalkitError(f"run {copied[1].id} is a copy of {copied[0].id}: {COPIED}", "give runs made one by one")
    first, table = _baseline_rows(runs[0]), []
    for run in runs:
        rows = _baseline_rows(run)
        told = accuracy_fingerprint(run).fields
        differ = [key for key in {**marks, **extra_facts(run.cell)} if told.get(key, mark(run, key)) != marks.get(key)]
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
    if run.cell.get("k") != 0 or run.cell.get("quant") != "float32" or mark(run, ONLINE):
        mode = quant_name(run.cell, run.provenance)
        raise EvalkitError(
            f"run {run.id} is K={run.cell.get('k')} in {mode}: a baseline is K=0 in float32", baseline_command(run)
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

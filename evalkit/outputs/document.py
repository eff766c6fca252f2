"""Verdicts as one JSON document. Its schema is `verdict.schema.json` beside this file; `schema` is its version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from evalkit.files import write_text
from evalkit.fingerprint import online_facts
from evalkit.outputs.common import not_finite, overall, pairs, plain, safe
from evalkit.records import EXIT_CODE, Check, Run, Verdict
from evalkit.sameness import samples_sha

DOCUMENT_SCHEMA = 1  # version of the document; a field that changes its meaning or goes makes a new one
SCHEMA_FILE = Path(__file__).with_name("verdict.schema.json")


def document(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON values of a gate's result: one outcome over all runs, and each run's verdict with its checks."""
    outcome = overall(verdicts)
    return {
        "kind": "evalkit.verdict",
        "schema": DOCUMENT_SCHEMA,
        "evalkit": metadata.version("evalkit"),
        "outcome": outcome.value,
        "exit_code": EXIT_CODE[outcome],
        "verdicts": [verdict_json(v, run) for v, run in pairs(verdicts, runs)],
    }


def verdict_json(verdict: Verdict, run: Run | None) -> dict[str, Any]:
    """One verdict with what its run was; `run` is null for published figures."""
    return {
        "run_id": safe(verdict.run_id),
        "outcome": verdict.outcome.value,
        "run": None if run is None else run_json(run),
        "checks": [check_json(c) for c in verdict.checks],
        "notes": [safe(note) for note in verdict.notes],
        "standards": [{name: safe(value) for name, value in asdict(s).items()} for s in verdict.standards],
    }


def run_json(run: Run) -> dict[str, Any]:
    """The setting of a run in the words that people use for it, and how much of it there is."""
    named = {name: plain(run.cell.get(name)) for name in ("task", "target", "draft", "k", "quant")}
    times = {name: plain(run.provenance.get(name)) for name in ("started", "finished")}
    return {
        **named,
        **online_facts(run),
        "samples": len(run.samples),
        "samples_sha": samples_sha(run.samples),
        "expected": run.expected,
        "task_size": run.task_size,
        "complete": run.complete,
        "stopped": safe(run.stopped),
        "fingerprint": plain(run.fingerprint.get("hash")),
        **times,
    }


def check_json(check: Check) -> dict[str, Any]:
    """One check. A number that is not finite is there as text, and `not_finite` names it: JSON has no NaN, and null
    would say that it was never computed."""
    return {
        "name": safe(check.name),
        "outcome": check.outcome.value,
        "expected": safe(check.expected),
        "found": safe(check.found),
        "message": safe(check.message),
        "numbers": plain(check.numbers),
        "not_finite": [safe(path) for path in not_finite(check.numbers)],
    }


def document_text(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> str:
    """The document as text, ASCII only: any program can read it, whatever it takes files to be written in."""
    return json.dumps(document(verdicts, runs), indent=1, allow_nan=False) + "\n"


def write_json(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> Path:
    """Writes the document."""
    return write_text(path, document_text(verdicts, runs))

"""A baseline's file: its text, and a reader that refuses what does not add up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evalkit import stats
from evalkit.baseline.marks import BASELINE_MARKS
from evalkit.baseline.model import Baseline, Row, Variation
from evalkit.errors import EvalkitError
from evalkit.records import SCHEMA
from evalkit.runfile import read_document
from evalkit.views import FLEXIBLE, STRICT


def baseline_text(baseline: Baseline) -> str:
    """JSON, one question a line."""
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
    absent = EvalkitError(f"{path} does not exist", "record a baseline first")
    data = read_document(path, absent=absent, fix=fix)
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

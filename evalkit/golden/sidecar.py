"""Evidence of our own curves, beside them in NAME.evidence.json: counts, intervals, histograms, fingerprints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.golden.curve import GoldenValue
from evalkit.records import SCHEMA
from evalkit.runfile import read_document

EVIDENCE = "evidence"  # the top-level key of files recorded before there was a sidecar; still read
AGAIN = "restore both files, or record the curve again"


def evidence_path(path: Path) -> Path:
    """The sidecar of a curve's file."""
    return path.with_name(f"{path.name.removesuffix('.yaml')}.evidence.json")


def evidence_of(value: GoldenValue) -> dict[str, Any]:
    """All that is known of a recorded value. Survival and conditional rates follow from the histogram; they are
    there for people to read."""
    histogram, covariance = value.histogram or (), value.covariance
    reached = [sum(histogram[j:]) for j in range(len(histogram))]
    return {
        "accepted_length": value.accepted_length,
        "run": value.run_id,
        "samples": value.clusters,
        "steps": value.steps,
        "counters": dict(value.counters or {}),
        "se": value.se,
        "interval": list(value.interval or ()),
        "histogram": list(histogram),
        "survival": [round(n / reached[0], 6) for n in reached[1:]],
        "conditional": [round(n / b, 6) if b else None for b, n in pairwise(reached)],
        "fingerprint": dict(value.fingerprint or {}),
        **({} if covariance is None else {"survival_covariance": [list(row) for row in covariance]}),
    }


def sidecar_text(model: str, values: Mapping[str, Mapping[int, GoldenValue]]) -> str:
    """One line a value, so that a diff has one line a K."""
    modes = []
    for mode, by_k in values.items():
        rows = ",\n".join(f'   "{k}": {json.dumps(evidence_of(v))}' for k, v in sorted(by_k.items()))
        modes.append(f"  {json.dumps(mode)}: {{\n{rows}\n  }}")
    return f'{{\n "schema": {SCHEMA},\n {json.dumps(model)}: {{\n' + ",\n".join(modes) + "\n }\n}\n"


def read_sidecar(path: Path, model: str) -> dict[str, dict[int, Any]]:
    """Evidence by mode and K. Raises EvalkitError when the file is absent, damaged or of another model."""
    absent = EvalkitError(f"{path} does not exist, though the curve names it", AGAIN)
    data = read_document(path, absent=absent, fix=AGAIN)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise EvalkitError(f"{path}: {EVIDENCE} has schema {found}, expected {SCHEMA}", AGAIN)
    try:
        return {mode: {int(k): row for k, row in by_k.items()} for mode, by_k in data[model].items()}
    except (KeyError, AttributeError, ValueError) as e:
        raise EvalkitError(f"{path} is no evidence of {model} ({type(e).__name__}: {e})", AGAIN) from None


def write_together(texts: Mapping[Path, str]) -> None:
    """All files or none: every text is safe on disk beside its place before the first is moved there."""
    staged = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in texts}
    try:
        with ExitStack() as undo:
            for path, text in texts.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                undo.callback(staged[path].unlink, missing_ok=True)
                with staged[path].open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            for path in texts:
                staged[path].replace(path)
    except OSError as e:
        names = ", ".join(p.name for p in texts)
        raise EvalkitError(f"cannot write {names} ({e})", "free some space, or give another path") from None

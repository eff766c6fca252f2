"""What the writers share: one outcome over several verdicts, a verdict's run, safe text, plain numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.records import Outcome, Run, Verdict

# What XML 1.0 has no place for, and what could reorder or hide text for a reader: control characters, lone surrogates,
# bidirectional and zero-width marks.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
REPLACEMENT = "\ufffd"


def safe(text: object) -> str:
    """Text without characters that a file could not hold or a reader could not see."""
    return _UNSAFE.sub(REPLACEMENT, str(text))


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """Fail if any fails, else inconclusive if any is, else pass; no verdict at all is a fail."""
    found = [v.outcome for v in verdicts]
    if not found or Outcome.FAIL in found:
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE if Outcome.INCONCLUSIVE in found else Outcome.PASS


def pairs(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> list[tuple[Verdict, Run | None]]:
    """Each verdict with its run; None for one on published figures, which have no run.

    Two verdicts may be on one run (two cells of a specification). Raises EvalkitError for a run without a verdict.
    """
    by_id = {run.id: run for run in runs}
    if missing := sorted(set(by_id) - {v.run_id for v in verdicts}):
        raise EvalkitError(f"there is no verdict on run {missing[0]}", "judge every run that is given")
    return [(v, by_id.get(v.run_id)) for v in verdicts]


def judged_runs(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> list[tuple[Verdict, Run]]:
    """Each run once, with the worst verdict on it."""
    found: dict[str, tuple[Verdict, Run]] = {}
    for verdict, run in pairs(verdicts, runs):
        if run is not None and (run.id not in found or _worse(verdict, found[run.id][0])):
            found[run.id] = (verdict, run)
    return list(found.values())


def _worse(one: Verdict, other: Verdict) -> bool:
    order = [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL]
    return order.index(one.outcome) > order.index(other.outcome)


def plain(value: Any) -> Any:
    """A JSON value, numpy scalars and tuples included. Numbers that are not finite become their names in text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()  # numpy
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value if value is None or isinstance(value, (bool, int, float)) else safe(value)


def not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Where in a JSON-like value a number is not finite."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from not_finite(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from not_finite(inner, f"{path}[{i}]")

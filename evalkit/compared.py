"""What a verdict compared with: recorded beside it, and found again for a page that is made of it later.

A page's pictures stand beside the standards of its verdict or beside none: a golden that the gate did not use would
draw another margin than the one that was judged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evalkit.baseline import GOLDEN_DIR, STRICT, mark
from evalkit.errors import EvalkitError
from evalkit.golden import Standards, lookup
from evalkit.records import Run, Standard, Verdict

BASELINE, GOLDEN, SCORES = "baseline", "golden", "scores"  # the roles
CHECK = {BASELINE: "accuracy", GOLDEN: "accepted length"}  # the check that compares with it
Readers = Mapping[str, Callable[[Path], Any]]  # by role: reads a file or a run's folder, or raises EvalkitError


def compared(found: Standards, places: Mapping[str, Path]) -> tuple[Standard, ...]:
    """The standards that a verdict was given by. `places`: where each was read, by role."""
    held = _held(found)
    return tuple(
        Standard(role=role, name=path.name, place=_place(path), sha256=standard_sha(held[role]))
        for role, path in places.items() if held.get(role)
    )  # fmt: skip


def restored(
    verdict: Verdict, run: Run, default: Standards, readers: Readers, folders: tuple[Path, ...]
) -> tuple[Standards, tuple[str, ...]]:
    """The standards that a verdict compared with, read again, and a sentence on each that is not there any more.

    `default` is what golden/ has for the run. It stands in only for a verdict written before standards were recorded,
    and there only where the verdict's own figures are of it. `folders`: where a place may be looked for.
    """
    if not verdict.standards:
        return _by_figures(verdict, run, default)
    kept: dict[str, Any] = {}
    lost = []
    for told in verdict.standards:
        thing = _find(told, readers, folders)
        if thing is None:
            lost.append(
                f"the {told.role} that the verdict compared with, {told.name} ({told.sha256[:12]}), is not found as it "
                "was: nothing is drawn beside it"
            )
        else:
            kept[told.role] = thing
    references = kept.get(SCORES, () if any(t.role == SCORES for t in verdict.standards) else default.references)
    found = Standards(golden=kept.get(GOLDEN), baseline=kept.get(BASELINE), references=references)
    return found, tuple(lost)


def standard_sha(thing: Any) -> str:
    """SHA-256 of what a baseline, curve or list of published scores holds, wherever it is stored."""
    values = [asdict(x) for x in thing] if isinstance(thing, tuple) else asdict(thing)
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _held(found: Standards) -> dict[str, Any]:
    return {BASELINE: found.baseline, GOLDEN: found.golden, SCORES: found.references}


def _place(path: Path) -> str:
    """As short as it can be found by: a file of golden/ by its name there, others from the working directory."""
    whole = path.resolve()
    if whole.parent == GOLDEN_DIR.resolve():
        return f"{GOLDEN_DIR.name}/{whole.name}"
    here = Path.cwd().resolve()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


def _find(told: Standard, readers: Readers, folders: tuple[Path, ...]) -> Any:
    """The first thing under one of its possible places that holds what was compared with; None where none does."""
    for path in (Path(told.place), *(folder / part for folder in folders for part in (told.place, told.name))):
        if not path.exists() or told.role not in readers:
            continue
        try:
            thing = readers[told.role](path)
        except EvalkitError:  # another file of that name: it is not what was compared with
            continue
        if standard_sha(thing) == told.sha256:
            return thing
    return None


def _by_figures(verdict: Verdict, run: Run, default: Standards) -> tuple[Standards, tuple[str, ...]]:
    """golden/'s standards where the verdict's figures are theirs, none where they are others'."""
    from evalkit.report.samples import pair

    by_name = {c.name: c.numbers for c in verdict.checks}
    numbers = {role: by_name.get(name, {}) for role, name in CHECK.items()}
    lost = []
    golden, baseline = default.golden, default.baseline
    told = numbers[GOLDEN].get("golden")
    if golden is not None and told is not None and not _has(golden, run, float(told)):
        lost.append(f"the verdict compared with a golden of {float(told):.3f}, which {golden.source} does not have: "
                    "nothing is drawn beside it")  # fmt: skip
        golden = None
    told, both = numbers[BASELINE].get("baseline"), pair(run, baseline, STRICT)
    if both is not None and told is not None and "difference" in numbers[BASELINE]:
        here = both.baseline_correct / both.n
        if not math.isclose(here, float(told), abs_tol=1e-9):
            lost.append(f"the verdict compared with a baseline of {float(told):.4f}, golden/ has one of "
                        f"{here:.4f}: nothing is drawn beside it")  # fmt: skip
            baseline = None
    return Standards(golden=golden, baseline=baseline, references=default.references), tuple(lost)


def _has(golden: Any, run: Run, length: float) -> bool:
    try:
        value = lookup(golden, int(run.cell.get("k") or 0), mark(run, "mode"))
    except EvalkitError:
        return False
    return math.isclose(value.accepted_length, length, abs_tol=1e-6)

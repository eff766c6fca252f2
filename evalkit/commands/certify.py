"""Runs judged for a certificate, each with the files that its verdict rests on, and the certificate of each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.errors import EvalkitError
from evalkit.layout import say

if TYPE_CHECKING:
    from evalkit.records import Outcome, Run, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run with its verdict and the files that it rests on: (role, path)."""

    run: Run
    folder: Path
    verdict: Verdict
    standards: list[tuple[str, Path]]
    ends: datetime | None = None  # of the waiver that it was judged under


def by_default(
    which: Sequence[str], runs_dir: Path, baseline: Path | None, golden: Path | None, margin: float | None
) -> tuple[list[Judged], Outcome]:
    """Stored runs against golden/ or what is named, several as one sweep."""
    from evalkit import sweep
    from evalkit.judging import find_standard, judge_sweep, spec_of
    from evalkit.store import find_run, load_run

    spec_of(margin)
    baseline, golden = find_standard(baseline, runs_dir, "baseline"), find_standard(golden, runs_dir, "golden")
    folders = [find_run(word, runs_dir) for word in which]
    runs = [load_run(folder) for folder in folders]
    verdicts = [one.verdict for one in judge_sweep(runs, baseline=baseline, golden=golden, margin=margin)]
    judged = [
        Judged(run=run, folder=folder, verdict=verdict, standards=_standards(run, baseline, golden))
        for run, folder, verdict in zip(runs, folders, verdicts, strict=True)
    ]
    return judged, sweep.combined(verdicts)


def by_spec(path: Path, runs_dir: Path) -> tuple[list[Judged], Outcome]:
    """The runs of a specification's cells. One broken on purpose is judged and never certified: its pass says that it
    was refused. The specification is one of the files that a certificate rests on."""
    from evalkit.provenance import now
    from evalkit.spec.judge import judge_spec
    from evalkit.spec.read import read_spec
    from evalkit.spec.standards import named_files

    spec = read_spec(path)
    found = judge_spec(spec, runs_dir=runs_dir, now=now())
    judged = []
    for one in found.cells:
        if one.run is None or one.folder is None or one.cell.refused_by:
            why = "broken on purpose" if one.cell.refused_by else "published figures, no run"
            say(f"no certificate: {one.cell.name} is {why}")
            continue
        named = named_files(spec, one.cell, runs_dir)
        standards = _standards(one.run, named.pop("baseline", None), named.pop("golden", None))
        standards += [*named.items(), ("specification", path)]
        ends = one.cell.waiver.ends if one.cell.waiver else None
        judged.append(Judged(run=one.run, folder=one.folder, verdict=one.verdict, standards=standards, ends=ends))
    if not judged:
        raise EvalkitError(f"{path.name} has no cell with a run to certify", "name stored runs, or settings")
    return judged, found.outcome


def certify(one: Judged, path: Path, *, now: datetime, days: int, key: bytes | None) -> None:
    """Writes the certificate of a run that passes; takes away one of an earlier verdict where it does not."""
    from evalkit import certificate
    from evalkit.records import Outcome
    from evalkit.sessions import uncounted, words

    if one.verdict.outcome is not Outcome.PASS:
        path.unlink(missing_ok=True)
        telling = ", ".join(c.name for c in one.verdict.checks if c.outcome is one.verdict.outcome)
        say(f"no certificate: {one.run.id} is {one.verdict.outcome.value}" + (f" by {telling}" if telling else ""))
        return
    if uncounted(one.run):
        path.unlink(missing_ok=True)
        say(f"no certificate: {one.run.id} is inconclusive: sessions {words(one.run)}; --fresh runs it again")
        return
    values = certificate.make_certificate(
        one.verdict, one.run, one.folder, standards=one.standards, now=now, days=days, key=key, ends=one.ends
    )
    certificate.write_certificate(values, path)
    print(f"certificate: {path}, until {values['expires']}")


def _standards(run: Run, baseline: Path | None, golden: Path | None) -> list[tuple[str, Path]]:
    """The files that a run is judged against: named ones, else golden/'s, a curve with its evidence."""
    from evalkit import golden as goldens
    from evalkit.baseline import GOLDEN_DIR
    from evalkit.judging import golden_place

    target, task = str(run.cell.get("target")), str(run.cell.get("task"))
    curve = golden_place(golden, run) if golden else goldens.curve_place(run)
    found = [
        ("baseline", baseline or goldens.baseline_path(target, task)),
        *([("golden", curve), ("evidence", goldens.evidence_path(curve))] if curve else []),
        ("references", GOLDEN_DIR / "reference_scores.yaml"),
    ]
    return [(role, path) for role, path in found if path.exists()]

"""A stored run against the repository's standards, or named ones: its verdict and its report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit import golden as goldens
from evalkit.baseline import GOLDEN_DIR, Baseline, load_baseline, load_reference_scores, record_baseline
from evalkit.compared import BASELINE, GOLDEN, SCORES, compared, restored
from evalkit.errors import EvalkitError
from evalkit.gate import GateSpec, judge
from evalkit.gate.repeats import join_repeats
from evalkit.golden import Curve, Standards
from evalkit.records import Check, Outcome, Run, Standard, Verdict
from evalkit.reread import contradiction, other_values
from evalkit.runfile import RUN_FILE, read_json
from evalkit.store import load_run

if TYPE_CHECKING:
    from evalkit.report.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run with what it was judged against."""

    run: Run
    verdict: Verdict
    standards: Standards
    source: str = ""  # the file that the verdict was read from; "" where it was judged here
    lost: tuple[str, ...] = ()  # of such a verdict: what it compared with and is not found again, a sentence each


def judge_run(
    run: Run, *, baseline: Path | None = None, golden: Path | None = None, margin: float | None = None,
    plain: Run | None = None,
) -> Judged:  # fmt: skip
    """The verdict on a run. `baseline` is a baseline file or the folder of a K=0 run, `golden` a curve's file, a folder
    of curves or of a run, `plain` a K=0 run in the same quant mode, for losslessness.

    What is not named is looked up in golden/ by the run's target and draft. What is named is demanded: a run that can't
    be compared with it fails; one that nothing in golden/ fits is inconclusive, and says what to record.
    """
    found = goldens.defaults_for(run)
    missing = found.missing
    if baseline is not None:
        found = replace(found, baseline=read_baseline(baseline))
        if found.baseline is not None and found.baseline.run_id == run.id and baseline.is_dir():
            raise EvalkitError(f"run {run.id} is given as its own baseline", "give another run, or a recorded baseline")
        missing = tuple(m for m in missing if "baseline" not in m)
    if golden is not None:
        found = replace(found, golden=read_golden(golden, run))
        missing = tuple(m for m in missing if "curve" not in m)
    spec = _demanding(margin, baseline, golden, plain)
    verdict = judge(
        run, baseline=found.baseline, golden=found.golden, references=found.references, spec=spec, plain=plain
    )
    rests = compared(found, places(run) | {r: p for r, p in ((BASELINE, baseline), (GOLDEN, golden)) if p is not None})
    return Judged(run=run, verdict=replace(verdict, notes=verdict.notes + missing, standards=rests), standards=found)


def places(run: Run) -> dict[str, Path]:
    """Where golden/ has the standards of a run, by role."""
    target, task = (str(run.cell.get(name)) for name in ("target", "task"))
    found = {BASELINE: goldens.baseline_path(target, task), SCORES: GOLDEN_DIR / "reference_scores.yaml"}
    curve = goldens.curve_place(run)
    return found if curve is None else {**found, GOLDEN: curve}


def judge_repeats(
    runs: Sequence[Run], *, baseline: Path | None = None, golden: Path | None = None, margin: float | None = None,
    plain: Run | None = None,
) -> Verdict:  # fmt: skip
    """One verdict on repeats of one setting, each judged against the same standards."""
    found = [judge_run(run, baseline=baseline, golden=golden, margin=margin, plain=plain) for run in runs]
    return join_repeats(runs, [one.verdict for one in found], baseline=found[0].standards.baseline,
                        spec=_demanding(margin, baseline, golden, plain))  # fmt: skip


def _demanding(margin: float | None, baseline: Path | None, golden: Path | None, plain: Run | None) -> GateSpec:
    """The gate's limits; what is named is demanded."""
    named = {"accuracy": baseline, "length": golden, "lossless": plain}
    return replace(spec_of(margin), demands=tuple(kind for kind, given in named.items() if given is not None))


def spec_of(margin: float | None) -> GateSpec:
    """The gate's limits with the command line's --margin, None for its default."""
    if margin is None:
        return GateSpec()
    if not 0 < margin < 0.5:  # NaN is in no range
        raise EvalkitError(f"--margin is {margin:g}, expected a fraction above 0 and below 0.5", "0.01 is one point")
    return GateSpec(accuracy_margin=margin)


def find_standard(word: Path | None, runs_dir: Path, what: str) -> Path | None:
    """A file or a run's folder that the command line names, or a stored run by its id; None for None. `what` is the
    option without its dashes; a golden may be a folder of curves."""
    if word is None or word.is_file() or (word / RUN_FILE).is_file():
        return word
    if what == "golden" and word.is_dir():
        return word
    folder = runs_dir / word
    if (folder / RUN_FILE).is_file():
        return folder
    if what == "golden":
        return goldens.find_file(str(word))
    raise EvalkitError(f"--{what} {word} is neither a file nor a stored run",
                       f"give a recorded {what}, or a run's folder or id below {runs_dir} (evalkit list)")  # fmt: skip


def read_golden(path: Path, run: Run) -> Curve:
    """A curve's file, the folder of a run taken as one (of another layout, say), or the one of a folder of curves that
    is the run's (see `golden_place`); where a file holds several models, the run's own."""
    path = golden_place(path, run)
    if path.is_dir():
        other = load_run(path)
        if other.id == run.id:
            raise EvalkitError(f"run {run.id} is given as its own golden", "give another run, or a recorded curve")
        return goldens.curve_of(other)
    try:
        return goldens.read_curve(path)
    except EvalkitError:
        return goldens.read_curve(path, str(run.cell.get("target")))


def golden_place(path: Path, run: Run) -> Path:
    """The file in a folder of curves that is of the run's target and draft method; any other path as it is. Never a
    guess: several that fit, or none, are an error that names them."""
    if not path.is_dir() or (path / RUN_FILE).is_file():
        return path
    found = [(file, curve) for file, curves in goldens.folder_curves(path).items() for curve in curves]
    draft = goldens.judged_as(run)
    method = str(run.cell.get("draft_method", draft))
    if method == "external":  # a server's
        method = str((run.cell.get("server") or {}).get("method") or draft)
    if draft and any(c.said and not c.said.method and c.said.draft == draft for _, c in found):
        method = draft
    try:
        curve = goldens.pick([c for _, c in found], model=str(run.cell.get("target")), method=method)
    except EvalkitError as e:
        raise EvalkitError(f"{path}: {e.what}", "give the curve's file") from None
    return next(file for file, one in found if one is curve)


def read_baseline(path: Path) -> Baseline:
    """A baseline's file, or the folder of a K=0 run taken as one."""
    if not path.is_dir():
        return load_baseline(path)
    with tempfile.TemporaryDirectory() as folder:
        made = load_run(path)
        file = Path(folder) / f"{made.id}.json"
        record_baseline(made, file)
        return load_baseline(file)


def write_report(run: Run, judged: Judged | None, path: Path) -> Path:
    """The HTML report of a run, judged or not."""
    return write_reports([(run, judged)], path)


def write_reports(found: Sequence[tuple[Run, Judged | None]], path: Path) -> Path:
    """One HTML report of several runs."""
    from evalkit.report.render import write_report as write

    return write(report_subjects(found), path)


def report_subjects(found: Sequence[tuple[Run, Judged | None]]) -> list[Subject]:
    """Runs with their verdicts and the standards beside which their pictures may stand."""
    from evalkit.report.subject import subjects

    rows = []
    for run, judged in found:
        standards = judged.standards if judged else goldens.defaults_for(run)
        rows.append((run, judged.verdict if judged else None, standards))
    read = [judged for _, judged in found if judged]
    return subjects(rows, {j.run.id: j.source for j in read}, {j.run.id: j.lost for j in read})


def judge_sweep(
    runs: Sequence[Run], *, baseline: Path | None = None, golden: Path | None = None, margin: float | None = None,
    plain: Run | None = None, in_order: bool = False,
) -> list[Judged]:  # fmt: skip
    """Each run judged as by `judge_run`, several with Holm's correction, or in the order given."""
    found = [judge_run(run, baseline=baseline, golden=golden, margin=margin, plain=plain) for run in runs]
    if len(found) < 2:
        return found
    from evalkit import sweep

    adjusted = sweep.adjust([j.verdict for j in found], in_order=in_order)
    return [replace(j, verdict=v) for j, v in zip(found, adjusted, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A verdict of a file, and what the file says of its run."""

    verdict: Verdict
    run: Mapping[str, Any]


def read_verdicts(path: Path) -> list[Written]:
    """What `evalkit gate --json FILE` wrote. A document that contradicts itself is refused."""
    try:
        data = read_json(path.read_text(encoding="utf-8"))
        made = [Written(verdict=_verdict(one), run=dict(one["run"] or {})) for one in data["verdicts"]]
        wrong = contradiction(data)
    except FileNotFoundError:
        raise EvalkitError(f"{path} does not exist", "write it with evalkit gate RUN... --json FILE") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        why = f"{type(e).__name__}: {e}"
        raise EvalkitError(f"{path} is no verdict ({why})", "write it with evalkit gate RUN... --json FILE") from None
    if wrong:
        raise EvalkitError(f"{path} contradicts itself: {wrong}", "write it again with evalkit gate RUN... --json FILE")
    return made


def _verdict(values: dict[str, Any]) -> Verdict:
    known = {f.name for f in fields(Check)}
    checks = tuple(
        Check(**{**{k: v for k, v in one.items() if k in known}, "outcome": Outcome(one["outcome"])})
        for one in values["checks"]
    )
    return Verdict(outcome=Outcome(values["outcome"]), checks=checks, run_id=str(values["run_id"]),
                   notes=tuple(str(note) for note in values.get("notes", ())),
                   standards=tuple(Standard(**one) for one in values.get("standards", ())))  # fmt: skip


def with_verdicts(runs: Sequence[Run], path: Path, runs_dir: Path | None = None) -> list[Judged | None]:
    """Verdicts that were written before, each beside its run and what it compared with; None for a run without one.

    A verdict is of the samples that it was made of: a run that the file describes otherwise is refused. Standards are
    looked for where they lay, beside the file, in golden/ and in `runs_dir`, and are none where they have changed.
    """
    folders = (path.parent, GOLDEN_DIR, GOLDEN_DIR.parent, *([runs_dir] if runs_dir else []))
    bad_last = (Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL)  # of several cells on one run the worst is shown
    written_by = sorted(read_verdicts(path), key=lambda w: bad_last.index(w.verdict.outcome))
    by_run = {w.verdict.run_id: w for w in written_by}
    if unknown := sorted(by_run.keys() - {r.id for r in runs}):
        raise EvalkitError(f"the verdict is of run {unknown[0]}, which is not given", "give the runs it was made of")
    out: list[Judged | None] = []
    for run in runs:
        written = by_run.get(run.id)
        if written is None:
            out.append(None)
            continue
        if differ := _other_run(written.run, run):
            raise EvalkitError(
                f"{path} is no verdict on run {run.id} as it is stored: {differ}",
                f"judge it again: evalkit gate {run.id} --json {path}",
            )
        readers = {BASELINE: read_baseline, GOLDEN: partial(read_golden, run=run), SCORES: load_reference_scores}
        found, lost = restored(written.verdict, run, goldens.defaults_for(run), readers, folders)
        if other := other_values(written.verdict, run, found):
            raise EvalkitError(
                f"{path} contradicts the standards that it names: {other}",
                f"judge it again: evalkit gate {run.id} --json {path}",
            )
        out.append(Judged(run=run, verdict=written.verdict, standards=found, source=path.name, lost=lost))
    return out


def _other_run(told: Mapping[str, Any], run: Run) -> str:
    """In what a verdict's run is not this one; "" where in nothing."""
    from evalkit.outputs.document import run_json

    here = run_json(run)
    if missing := [name for name in ("samples", "samples_sha") if name not in told]:
        return f"it does not say of which samples it is ({missing[0]})"
    parts = [(name, told[name], here[name]) for name in here if name in told and told[name] != here[name]]
    said = [f"{name.replace('_sha', '')} {_short(there)} there, {_short(own)} here" for name, there, own in parts[:3]]
    return ", ".join(said)


def _short(value: Any) -> str:
    words = str(value)
    return words[:12] if len(words) == 64 else words[:60]

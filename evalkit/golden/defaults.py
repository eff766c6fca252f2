"""What the repository's golden/ has for a run: its curve, its baseline and the published scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalkit.baseline import GOLDEN_DIR, Baseline, ReferenceScore, load_baseline, load_reference_scores
from evalkit.errors import EvalkitError
from evalkit.golden.curve import Curve
from evalkit.golden.read import read_curve
from evalkit.records import Run

JUDGED_BY = {"dspark-weak": "dspark"}  # drafts that are judged by another draft's curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """What a run is judged against; `missing` says, one sentence each, what was not found and how to get it."""

    golden: Curve | None
    baseline: Baseline | None
    references: tuple[ReferenceScore, ...]
    missing: tuple[str, ...] = ()


def golden_path(target: str, draft: str, root: Path = GOLDEN_DIR) -> Path:
    return root / f"{target}_{JUDGED_BY.get(draft, draft)}.yaml"


def baseline_path(target: str, task: str, root: Path = GOLDEN_DIR) -> Path:
    return root / f"{target}_{task}.baseline.json"


def baseline_for(target: str, task: str, root: Path = GOLDEN_DIR) -> Baseline | None:
    """The baseline that the repository has of a target on a task. Raises EvalkitError for a file that holds another
    one, and for one under the name that such files had before the task was in it."""
    path, before = baseline_path(target, task, root), root / f"{target}.baseline.json"
    if not path.exists():
        if before.exists() and load_baseline(before).task == task:
            raise EvalkitError(f"{before} has the name of older baselines", f"rename it to {path.name}")
        return None
    found = load_baseline(path)
    if (found.target, found.task) != (target, task):
        raise EvalkitError(f"{path} holds the baseline of {found.target} on task {found.task}",
                           f"rename it to {baseline_path(found.target, found.task).name}")  # fmt: skip
    return found


def defaults_for(run: Run, root: Path = GOLDEN_DIR) -> Standards:
    """The golden curve, baseline and published scores that the repository has for a run's target and draft.

    An absent file is told in `missing`; one that is there and broken raises.
    """
    target, draft = str(run.cell.get("target")), str(run.cell.get("draft"))
    task = str(run.cell.get("task"))
    curve_file, baseline_file = golden_path(target, draft, root), baseline_path(target, task, root)
    missing = []
    curve = None
    if run.cell.get("k") and not curve_file.exists():
        missing.append(f"no golden curve {curve_file.name}")
    elif run.cell.get("k"):
        curve = read_curve(curve_file)
    baseline = baseline_for(target, task, root)
    if baseline is None:
        missing.append(f"no baseline of {target} on task {task} in {baseline_file.name}")
    return Standards(golden=curve, baseline=baseline, references=published(root), missing=tuple(missing))


def published(root: Path = GOLDEN_DIR) -> tuple[ReferenceScore, ...]:
    """The published scores that the repository has."""
    scores = root / "reference_scores.yaml"
    return load_reference_scores(scores) if scores.exists() else ()

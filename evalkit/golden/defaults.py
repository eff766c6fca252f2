"""What the repository's golden/ has for a run: its curve, its baseline and the published scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalkit.baseline import GOLDEN_DIR, Baseline, ReferenceScore, load_baseline, load_reference_scores
from evalkit.config import DRAFTS, TARGETS
from evalkit.errors import EvalkitError
from evalkit.golden.curve import Curve
from evalkit.golden.read import read_curve
from evalkit.records import Run
from evalkit.shipped import shipped_draft

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


def curve_place(run: Run, root: Path = GOLDEN_DIR) -> Path | None:
    """Where the golden curve of a run's draft is, or would be recorded; None where no name says which draft it is."""
    draft = judged_as(run, root)
    return golden_path(str(run.cell.get("target")), draft, root) if draft else None


def judged_as(run: Run, root: Path = GOLDEN_DIR) -> str:
    """The name that a run's draft has in golden/; "" where it is called like a shipped draft and is none: a folder's
    name says nothing of what is in it.

    A shipped draft is known by its method and the hash of its files, whatever it is called. A draft of one's own is
    known by its name; a curve that was recorded of the same files is its curve too.
    """
    target, name = str(run.cell.get("target")), str(run.cell.get("draft"))
    method, sha = (run.fingerprint.get(key) for key in ("draft_method", "draft_sha"))
    if name in DRAFTS and method is not None and method != DRAFTS[name].method:
        name = ""
    hashed = isinstance(sha, str) and len(sha) == 64  # else without weights, or a server's, known by what it calls it
    if not hashed or target not in TARGETS:
        return name
    if name and (name not in DRAFTS or _recorded(golden_path(target, name, root), sha)):
        return name
    return shipped_draft(method, sha)


def _recorded(path: Path, sha: str) -> bool:
    """Whether a curve was recorded of the draft whose files have this hash."""
    if not path.exists():
        return False
    values = [v for by_k in read_curve(path).values.values() for v in by_k.values()]
    return any((v.fingerprint or {}).get("draft_sha") == sha for v in values)


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
    """The golden curve (see `curve_place`), baseline and published scores that the repository has for a run.

    An absent file is told in `missing`; one that is there and broken raises.
    """
    target, task = str(run.cell.get("target")), str(run.cell.get("task"))
    curve_file, baseline_file = curve_place(run, root), baseline_path(target, task, root)
    missing = []
    curve = None
    if run.cell.get("k") and curve_file is None:
        missing.append(f"no golden curve of this draft: it is called {run.cell.get('draft')}, and is not the one of "
                       "that name that evalkit has")  # fmt: skip
    elif run.cell.get("k") and curve_file is not None and not curve_file.exists():
        missing.append(f"no golden curve {curve_file.name}")
    elif run.cell.get("k") and curve_file is not None:
        curve = read_curve(curve_file)
    baseline = baseline_for(target, task, root)
    if baseline is None:
        missing.append(f"no baseline of {target} on task {task} in {baseline_file.name}")
    return Standards(golden=curve, baseline=baseline, references=published(root), missing=tuple(missing))


def published(root: Path = GOLDEN_DIR) -> tuple[ReferenceScore, ...]:
    """The published scores that the repository has."""
    scores = root / "reference_scores.yaml"
    return load_reference_scores(scores) if scores.exists() else ()

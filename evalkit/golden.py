"""Golden curves: accepted length by K. Read, look up, record. Nothing is ever interpolated.

The file shape is InferenceX's ({model: {mode: {K: accepted length}}}) with one more top-level key,
`evidence`, that holds where our own values come from; golden/README.md says why it is a sibling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evalkit.acceptance import AcceptanceStats, summarize
from evalkit.baseline import (
    GOLDEN_DIR,
    Baseline,
    ReferenceScore,
    atomic_write,
    load_baseline,
    load_reference_scores,
    mark,
    refuse_unfit,
)
from evalkit.errors import EvalkitError
from evalkit.records import SCHEMA, Run

EVIDENCE = "evidence"
CURVE_MARKS = ("target_sha", "draft_sha", "draft_width", "temperature", "task_sha", "quant")
COMPARED_MARKS = ("target_sha", "draft_width", "temperature", "task_sha")  # of a judged run with its golden
NOTED_MARKS = ("draft_sha", "quant")  # may differ, since they are what is judged; the reader is told
NEVER_WORKED = 1.05  # a draft whose accepted length may be this low is no golden
JUDGED_BY = {"dspark-weak": "dspark"}  # drafts that are judged by another draft's curve


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenValue:
    """Accepted length (tokens a step, the target's own included) at one K.

    se, histogram and fingerprint are None or empty for an imported curve, which publishes none.
    """

    k: int
    accepted_length: float
    mode: str
    source: str
    se: float | None = None
    clusters: int | None = None
    steps: int | None = None
    interval: tuple[float, float] | None = None
    histogram: tuple[int, ...] | None = None
    run_id: str = ""
    fingerprint: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        where = f"{self.source} at K={self.k}"
        if type(self.k) is not int or self.k < 1:
            raise EvalkitError(f"{self.source} has a value for K={self.k!r}, expected a whole number from 1")
        if type(self.accepted_length) not in (int, float) or not 1 <= self.accepted_length <= self.k + 1:
            raise EvalkitError(f"{where} is {self.accepted_length!r}, expected a number from 1 to {self.k + 1}")
        if self.se is not None and not (math.isfinite(self.se) and self.se >= 0):
            raise EvalkitError(f"{where} has a standard error of {self.se}")
        if self.se is not None and (self.clusters is None or self.clusters < 2):
            raise EvalkitError(f"{where} has a standard error of {self.clusters} samples")
        if self.histogram is not None and len(self.histogram) != self.k + 1:
            raise EvalkitError(f"{where} has a histogram of {len(self.histogram)} values, expected {self.k + 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The golden values of one model, by mode and K."""

    model: str
    source: str  # the file's name
    values: Mapping[str, Mapping[int, GoldenValue]]
    header: tuple[str, ...] = ()  # comment lines before the values: where an imported curve came from


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that occurs twice, where YAML readers keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice.pop()!r} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def read_curve(path: Path, model: str | None = None) -> Curve:
    """Reads a golden file, InferenceX's or ours. `model` is needed where the file holds several."""
    fix = "restore the file, or record it again"
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader
    except FileNotFoundError:
        raise EvalkitError(f"{path} does not exist", "record a golden curve first: evalkit golden record") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise EvalkitError(f"{path} cannot be read ({e})", fix) from None
    models = [name for name in data if name != EVIDENCE] if isinstance(data, dict) else []
    if model is None and len(models) == 1:
        model = str(models[0])
    if model is None or model not in models:
        raise EvalkitError(f"{path} has models {models}, expected {model or 'exactly one'}", "name one of them")
    evidence = data.get(EVIDENCE) or {}
    if evidence and evidence.get("schema") != SCHEMA:
        raise EvalkitError(f"{path}: {EVIDENCE} has schema {evidence.get('schema')}, expected {SCHEMA}", fix)
    evidence = evidence.get(model) or {}
    if not isinstance(data[model], dict) or not all(isinstance(v, dict) and v for v in data[model].values()):
        raise EvalkitError(f"{path}: {model} is not a table of modes, each a table of K", fix)
    values = {
        str(mode): {k: _value(path.name, str(mode), k, al, (evidence.get(mode) or {}).get(k)) for k, al in by_k.items()}
        for mode, by_k in data[model].items()
    }
    header = tuple(line.lstrip("# ").rstrip() for line in text.split(f"\n{model}:")[0].splitlines() if line[:1] == "#")
    return Curve(model=model, source=path.name, values=values, header=header)


def _value(source: str, mode: str, k: Any, length: Any, evidence: Mapping[str, Any] | None) -> GoldenValue:
    more = evidence or {}
    try:
        return GoldenValue(
            k=k,
            accepted_length=length,
            mode=mode,
            source=source,
            se=more.get("se"),
            clusters=more.get("samples"),
            steps=more.get("steps"),
            interval=tuple(more["interval"]) if more.get("interval") else None,
            histogram=tuple(more["histogram"]) if more.get("histogram") else None,
            run_id=more.get("run", ""),
            fingerprint=more.get("fingerprint"),
        )
    except (TypeError, ValueError) as e:
        raise EvalkitError(f"{source} at K={k}: the evidence cannot be read ({e})", "record it again") from None


def lookup(curve: Curve, k: int, mode: str | None = None) -> GoldenValue:
    """The value at exactly this K. `mode` is needed where the curve has several."""
    modes = list(curve.values)
    if mode is None and len(modes) == 1:
        mode = modes[0]
    if mode is None or mode not in curve.values:
        raise EvalkitError(f"golden/{curve.source} has modes {modes}, asked for {mode}", "name one of them")
    if k not in curve.values[mode]:
        have = ", ".join(f"K={x}" for x in sorted(curve.values[mode]))
        raise EvalkitError(
            f"golden/{curve.source} has no value at K={k} for {mode} (has {have}); nothing is interpolated",
            record_command(curve.model, k),
        )
    return curve.values[mode][k]


def record_command(target: str, k: int, draft: str = "") -> str:
    return f"evalkit golden record --target {target}{f' --draft {draft}' if draft else ''} --k {k}"


def record_curve(runs: Sequence[Run], path: Path, *, mode: str = "thinking_off", write: bool = True) -> str:
    """Writes the accepted lengths of `runs` (one a K) to `path`; returns a table of old and new values.

    Refuses incomplete, subset, failed and forced runs, K=0, a draft that never worked, and runs (or values
    that stay in the file) that differ in target, draft, task, quant mode, temperature or draft width.
    With write=False nothing is written: show the table, ask, then call again.
    """
    if not runs:
        raise EvalkitError("no run to record a golden curve from", "name at least one stored run")
    new = {value.k: value for value in (_from_run(run, mode, path.name) for run in runs)}
    if len(new) != len(runs):
        raise EvalkitError(f"several of the runs have the same K: {[r.cell.get('k') for r in runs]}", "name one a K")
    for run in runs[1:]:
        _same_marks(run.id, new[run.cell["k"]], runs[0].id, new[runs[0].cell["k"]])
    model = str(runs[0].cell.get("target"))
    old = read_curve(path, model) if path.exists() else None
    values = {name: dict(by_k) for name, by_k in old.values.items()} if old else {}
    before = values.get(mode, {})
    values[mode] = {**before, **new}
    first = next(iter(new.values()))
    for by_k in values.values():
        for kept in by_k.values():
            if kept.run_id not in {v.run_id for v in new.values()}:
                _same_marks(f"{path.name} at K={kept.k} ({kept.mode})", kept, runs[0].id, first)
    if write:
        atomic_write(path, _curve_text(model, values, runs[0]))
    return _table(before, new)


def _from_run(run: Run, mode: str, source: str) -> GoldenValue:
    k = run.cell.get("k")
    if not isinstance(k, int) or k < 1:
        raise EvalkitError(f"run {run.id} has K={k}: accepted length needs a K of at least 1", "name another run")
    refuse_unfit(run, "golden")
    marks = {key: mark(run, key) for key in CURVE_MARKS}
    absent = [key for key, value in marks.items() if value in (None, "")]
    if absent:
        raise EvalkitError(f"run {run.id} does not say its {', '.join(absent)}", "run it again with this evalkit")
    found = summarize(run.samples, k)
    _refuse_unhealthy(run, found)
    assert found.accepted_length is not None and found.interval is not None and found.se is not None
    return GoldenValue(
        k=k,
        accepted_length=round(found.accepted_length, 4),
        mode=mode,
        source=source,
        se=round(found.se, 6),
        clusters=found.clusters,
        steps=found.steps,
        interval=(round(found.interval.low, 4), round(found.interval.high, 4)),
        histogram=found.histogram,
        run_id=run.id,
        fingerprint=marks,
    )


def _refuse_unhealthy(run: Run, found: AcceptanceStats) -> None:
    if found.looks_forced:
        raise EvalkitError(
            f"run {run.id} looks forced: only one or two adjacent numbers of accepted drafts in {found.steps} steps",
            "run with real acceptance",
        )
    if found.accepted_length is None or found.interval is None:
        raise EvalkitError(f"run {run.id} has {found.steps} verify steps: no golden", "check that the draft runs")
    if found.interval.low <= NEVER_WORKED:
        raise EvalkitError(
            f"run {run.id} has an accepted length of {found.accepted_length:.3f} (95 % from "
            f"{found.interval.low:.3f}): a draft that may never have worked is no golden",
            "check that the draft belongs to this target",
        )


def _same_marks(name1: str, value1: GoldenValue, name2: str, value2: GoldenValue) -> None:
    one, two = value1.fingerprint or {}, value2.fingerprint or {}
    differ = [key for key in CURVE_MARKS if one.get(key) != two.get(key)]
    if differ:
        words = "; ".join(f"{key}: {one.get(key)} and {two.get(key)}" for key in differ)
        raise EvalkitError(
            f"{name1} and {name2} differ in {words}: one curve needs one configuration",
            "record all K of the curve together, from runs of one configuration",
        )


def _table(before: Mapping[int, GoldenValue], new: Mapping[int, GoldenValue]) -> str:
    rows = ["K   old     new     95 % interval       samples  steps"]
    for k in sorted({*before, *new}):
        old = f"{before[k].accepted_length:.4f}" if k in before else "-"
        if k in new and new[k].interval:
            v = new[k]
            assert v.interval is not None
            span = f"{v.interval[0]:.4f} .. {v.interval[1]:.4f}"
            rows.append(f"{k}   {old:6}  {v.accepted_length:.4f}  {span}  {v.clusters:7}  {v.steps}")
        else:
            rows.append(f"{k}   {old:6}  (kept)")
    return "\n".join(rows)


def _curve_text(model: str, values: Mapping[str, Mapping[int, GoldenValue]], run: Run) -> str:
    curve = {mode: {k: v.accepted_length for k, v in sorted(by_k.items())} for mode, by_k in values.items()}
    evidence = {mode: {k: _evidence(v) for k, v in sorted(by_k.items())} for mode, by_k in values.items()}
    cell = run.cell
    header = (
        "# Acceptance Length (AL) reference values, written by `evalkit golden record`; do not edit.\n"
        f"# dataset: {cell.get('task')} | temperature: {cell.get('temperature')} | draft: {cell.get('draft')} | "
        f"draft width: {mark(run, 'draft_width')} | quant: {cell.get('quant')}\n"
        f"# key = number of drafts a step (K); value = AL; `{EVIDENCE}` holds counts and intervals\n"
    )
    body = yaml.safe_dump({model: curve}, sort_keys=False)
    # default_flow_style None: the leaves in one line, so that a diff has one line a K
    more = yaml.safe_dump(
        {EVIDENCE: {"schema": SCHEMA, model: evidence}}, sort_keys=False, default_flow_style=None, width=10_000
    )
    return header + body + more


def _evidence(value: GoldenValue) -> dict[str, Any]:
    return {
        "run": value.run_id,
        "samples": value.clusters,
        "steps": value.steps,
        "se": value.se,
        "interval": list(value.interval or ()),
        "histogram": list(value.histogram or ()),
        "fingerprint": dict(value.fingerprint or {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """What a run is judged against; `missing` says, one sentence each, what was not found and how to get it."""

    golden: Curve | None
    baseline: Baseline | None
    references: tuple[ReferenceScore, ...]
    missing: tuple[str, ...] = ()


def golden_path(target: str, draft: str, root: Path = GOLDEN_DIR) -> Path:
    return root / f"{target}_{JUDGED_BY.get(draft, draft)}.yaml"


def baseline_path(target: str, root: Path = GOLDEN_DIR) -> Path:
    return root / f"{target}.baseline.json"


def defaults_for(run: Run, root: Path = GOLDEN_DIR) -> Standards:
    """The golden curve, baseline and published scores that the repository has for a run's target and draft.

    An absent file is told in `missing`; one that is there and broken raises.
    """
    target, draft = str(run.cell.get("target")), str(run.cell.get("draft"))
    curve_file, baseline_file = golden_path(target, draft, root), baseline_path(target, root)
    missing = []
    curve = baseline = None
    if run.cell.get("k") and not curve_file.exists():
        missing.append(f"no golden curve {curve_file.name}")
    elif run.cell.get("k"):
        curve = read_curve(curve_file)
    if baseline_file.exists():
        baseline = load_baseline(baseline_file)
    if baseline is None or baseline.task != run.cell.get("task"):
        missing.append(f"no baseline of {target} on task {run.cell.get('task')} in {baseline_file.name}")
        baseline = None
    scores = root / "reference_scores.yaml"
    references = load_reference_scores(scores) if scores.exists() else ()
    return Standards(golden=curve, baseline=baseline, references=references, missing=tuple(missing))

"""Golden files, InferenceX's and ours, read strictly: what is no accepted length by K is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.golden.curve import Curve, GoldenValue
from evalkit.golden.header import Header, read_header
from evalkit.golden.sidecar import EVIDENCE, evidence_path, read_sidecar
from evalkit.records import SCHEMA
from evalkit.yamlfile import parse_yaml

SHAPE = "MODEL: {MODE: {K: length}}, as golden/ has them"
FIX = "restore the file, or record it again"


def _load(path: Path) -> tuple[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, parse_yaml(text)
    except FileNotFoundError:
        raise EvalkitError(f"{path} does not exist", "record a golden curve first: evalkit golden record") from None
    except (OSError, ValueError) as e:
        raise EvalkitError(f"{path} cannot be read ({e})", FIX) from None


def is_reference_scores(path: Path) -> bool:
    """Whether a file is a list of published scores, which stands beside the curves in golden/ and is none."""
    data = _load(path)[1]
    return isinstance(data, dict) and isinstance(data.get("scores"), list)


def _models(data: Any) -> list[str]:
    return [name for name in data if name != EVIDENCE] if isinstance(data, dict) else []


def read_curves(path: Path) -> tuple[Curve, ...]:
    """Every model's curve in a file. Raises EvalkitError for a file without one."""
    models = _models(_load(path)[1])
    if is_reference_scores(path):
        raise EvalkitError(
            f"{path} holds published scores and no golden curve", "give a curve: golden/TARGET_DRAFT.yaml"
        )
    if not models:
        raise EvalkitError(f"{path} has models [], expected at least one", FIX)
    return tuple(read_curve(path, str(model)) for model in models)


def folder_curves(folder: Path) -> dict[Path, tuple[Curve, ...]]:
    """The curves of every YAML file in a folder; published scores are none.
    Raises EvalkitError for a file that cannot be read, since it may be the one that is meant."""
    files = [file for file in sorted(folder.glob("*.yaml")) if not is_reference_scores(file)]
    if not files:
        raise EvalkitError(f"{folder} has no golden curve", "give a folder of curves, a curve's file or a stored run")
    return {file: read_curves(file) for file in files}


def read_curve(path: Path, model: str | None = None) -> Curve:
    """Reads a golden file, InferenceX's or ours. `model` is needed where the file holds several."""
    text, data = _load(path)
    models = _models(data)
    if any(not isinstance(name, str) for name in models):
        raise EvalkitError(f"{path} has {models[0]!r} where a model's name should be", f"write {SHAPE}")
    if model is None and len(models) == 1:
        model = str(models[0])
    if model is None or model not in models:
        raise EvalkitError(f"{path} has models {models}, expected {model or 'exactly one'}", "name one of them")
    if (
        not isinstance(data[model], dict)
        or not data[model]
        or not all(isinstance(v, dict) and v for v in data[model].values())
    ):
        raise EvalkitError(f"{path}: {model} is not a table of modes, each a table of K", f"write {SHAPE}")
    lines = _comments(text.split(f"\n{model}:")[0])
    said = read_header(lines, [str(m) for m in data[model]], path.name)
    evidence = _evidence(path, data, model, said)
    values = {
        str(mode): {
            k: _value(path.name, str(mode), k, al, (evidence.get(mode) or {}).get(k), said) for k, al in by_k.items()
        }
        for mode, by_k in data[model].items()
    }
    return Curve(model=model, source=path.name, values=values, header=lines, said=said)


def _comments(text: str) -> tuple[str, ...]:
    """The comments without their #; a line that is set in further than a comment's first is its continuation."""
    lines: list[str] = []
    for line in (row[1:].rstrip() for row in text.splitlines() if row[:1] == "#"):
        if line[:2] == "  " and lines and lines[-1]:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line.lstrip("# "))
    return tuple(lines)


def _evidence(path: Path, data: Mapping[str, Any], model: str, said: Header) -> Mapping[str, Any]:
    """From the sidecar that the comments name; from the key `evidence` of older files; none for imported ones."""
    if said.evidence:
        if said.evidence != evidence_path(path).name:
            raise EvalkitError(f"{path} names {said.evidence} as its evidence, expected {evidence_path(path).name}",
                               "rename both files together")  # fmt: skip
        return read_sidecar(evidence_path(path), model)
    inside = data.get(EVIDENCE) or {}
    if inside and inside.get("schema") != SCHEMA:
        raise EvalkitError(f"{path}: {EVIDENCE} has schema {inside.get('schema')}, expected {SCHEMA}", FIX)
    return inside.get(model) or {}


def _value(
    source: str, mode: str, k: Any, length: Any, evidence: Mapping[str, Any] | None, said: Header
) -> GoldenValue:
    more = evidence or {}
    if said.evidence and more.get("accepted_length") != length:
        raise EvalkitError(
            f"{source} has {length} at K={k}, its {said.evidence} has {more.get('accepted_length', 'no value')}: "
            "one of the two was changed alone",
            "restore both files, or record the curve again",
        )
    if said.evidence and (odd := _unsound(more)):
        raise EvalkitError(f"{source} at K={k}: its evidence has {odd}", "restore both files, or record it again")
    try:
        value = GoldenValue(
            k=k,
            accepted_length=length,
            mode=mode,
            source=source,
            se=more.get("se"),
            clusters=more.get("samples"),
            steps=more.get("steps"),
            interval=tuple(more["interval"]) if more.get("interval") else None,
            histogram=tuple(more["histogram"]) if more.get("histogram") else None,
            covariance=tuple(tuple(row) for row in spread) if (spread := more.get("survival_covariance")) else None,
            run_id=more.get("run", ""),
            fingerprint=more.get("fingerprint"),
            counters=more.get("counters"),
            temperature=said.of(mode).temperature,
            dataset=said.dataset,
        )
    except (TypeError, ValueError) as e:
        raise EvalkitError(f"{source} at K={k}: the evidence cannot be read ({e})", "record it again") from None
    value.check_mean()
    return value


def _unsound(row: Mapping[str, Any]) -> str:
    """What a recorded value's evidence lacks; "" where it has all. Without a fingerprint it would fit any run."""
    span, length = row.get("interval"), row.get("accepted_length")
    if not isinstance(row.get("fingerprint"), dict) or not row["fingerprint"]:
        return "no fingerprint"
    if not isinstance(row.get("run"), str) or not isinstance(row.get("counters"), dict):
        return f"run {row.get('run')!r} and counters of {type(row.get('counters')).__name__}"
    counts, by_step = row.get("histogram"), "survival_covariance" in row  # a server's counters give no histogram
    known = isinstance(counts, list) and all(type(n) is int for n in counts)
    summed = known and (row.get("steps") == sum(counts or ()) if counts or by_step else True)
    if type(row.get("steps")) is not int or not summed:
        return f"{row.get('steps')!r} steps and a histogram of {counts}"
    numbers = isinstance(span, list) and len(span) == 2 and all(type(x) in (int, float) for x in span)
    if not isinstance(span, list) or not numbers or not span[0] - 0.01 <= length <= span[1] + 0.01:
        return f"an interval of {span} around {length}"
    return ""

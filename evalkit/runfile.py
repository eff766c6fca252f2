"""How a run lies on disk: run.json and samples.jsonl, their format and their readers."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.fingerprint import VERIFY, sha256_json, verify_facts
from evalkit.online_quant import FIELD, asked
from evalkit.records import SCHEMA, Bucket, CanonicalScore, RequestCounts, Run, Sample, StepRecord, Stopping
from evalkit.shipped import draft_fault

RUN_FILE, SAMPLES_FILE, LOCK_FILE = "run.json", "samples.jsonl", ".lock"
HALF_MAX = 65504.0  # the largest 16-bit float
AGAIN = "remove the run's folder and run again"


def pack_sample(sample: Sample, *, at: float = 0.0) -> bytes:
    """One line of samples.jsonl. Steps are rows of [k, accepted, accepted_trimmed(, cut(, confidence(, rejected)))]."""
    values = {f.name: getattr(sample, f.name) for f in fields(sample)}
    values["seconds"] = round(sample.seconds, 6)
    values["steps"] = [_pack_step(s) for s in sample.steps]
    values["pieces"], values["gaps"] = list(sample.pieces), pack_gaps(sample.gaps)
    values["forced"] = sample.forced or any(s.forced for s in sample.steps)
    values["scores"], values["extracted"] = dict(sample.scores), dict(sample.extracted)
    values["canonical"] = _pack_canonical(sample.canonical) if sample.canonical else {}
    counts = sample.counts
    values["counts"] = {n: getattr(counts, n) for n in RequestCounts.__dataclass_fields__} if counts else {}
    values["attempts"] = "" if sample.attempts == 1 else sample.attempts
    lean = {n: v for n, v in values.items() if v is not False and v not in ("", [], {})}
    return dump({**lean, "at": round(at, 3)}).encode() + b"\n"


def pack_gaps(gaps: Sequence[float]) -> str:
    """Base64 of little-endian 16-bit floats: 3 digits, and at most 65504, where a gap is infinite. JSON numbers would
    take three times the room."""
    halves = [min(float(g), HALF_MAX) for g in gaps]
    return base64.b64encode(struct.pack(f"<{len(halves)}e", *halves)).decode()


def unpack_gaps(text: str | Sequence[float]) -> tuple[float, ...]:
    """What `pack_gaps` made, or a plain row of numbers. Raises ValueError or struct.error for anything else."""
    if not isinstance(text, str):
        return tuple(text)
    data = base64.b64decode(text, validate=True)
    return struct.unpack(f"<{len(data) // 2}e", data)


def _pack_step(step: StepRecord) -> list[Any]:
    row: list[Any] = [step.k, step.accepted, step.accepted_trimmed]
    if step.cut or step.confidence or step.rejected:
        row.append(str(step.cut))
    if step.confidence or step.rejected:
        row.append([round(float(c), 4) for c in step.confidence])
    if step.rejected:
        row.append(list(step.rejected))
    return row


def _pack_canonical(found: CanonicalScore) -> dict[str, Any]:
    values = {f.name: getattr(found, f.name) for f in fields(found)}
    return {n: v for n, v in values.items() if v is not None and v not in ("", ())}


def _unpack_canonical(values: dict[str, Any] | None) -> CanonicalScore | None:
    if values is None:
        return None
    known = {"bucket": Bucket(values["bucket"]), "notes": tuple(values.get("notes", ()))}
    return CanonicalScore(**(values | known))


def unpack_sample(line: bytes, path: Path) -> tuple[Sample, float]:
    """The sample of one line, and the run's seconds when it was stored."""
    try:
        values = read_json(line)
        if not isinstance(values, dict):
            raise ValueError(f"it is a {type(values).__name__}, expected an object")
        at = float(values.pop("at", 0.0))
        steps = tuple(_unpack_step(row, values.get("forced", False)) for row in values.pop("steps", []))
        blank = {"doc_hash": "", "prompt_hash": "", "question": "", "gold": ""}
        values["pieces"] = tuple(values.get("pieces", ()))
        values["gaps"] = unpack_gaps(values.get("gaps", ()))
        canonical = _unpack_canonical(values.pop("canonical", None))
        if "counts" in values:
            values["counts"] = RequestCounts(**values["counts"])
        sample = Sample(**{**blank, **values}, steps=steps, canonical=canonical)
        _check_kinds(sample)
        return sample, at
    except (struct.error, ValueError, TypeError, IndexError, KeyError, AttributeError) as e:
        raise EvalkitError(f"{path} has a line that is no sample ({e})", AGAIN) from None


def _unpack_step(row: Any, forced: bool) -> StepRecord:
    """What `_pack_step` made. Raises ValueError with what is no step."""
    if not isinstance(row, list) or len(row) not in range(3, 7):
        raise ValueError(f"a step is {row!r}, expected [k, accepted, accepted_trimmed] and up to three more")
    for name, value in zip(("confidences", "rejected drafts"), row[4:], strict=False):
        if not isinstance(value, list):
            raise ValueError(f"a step's {name} are {value!r}, expected a list")
    cut, confidence, rejected = (row[i] if len(row) > i else () for i in (3, 4, 5))
    return StepRecord(k=row[0], accepted=row[1], accepted_trimmed=row[2], cut=cut or "", confidence=tuple(confidence),
                      rejected=tuple(rejected), forced=forced)  # fmt: skip


# A run's settings that are in its cell and, where they must agree with another run's, in its fingerprint.
TWICE = ("k", "draft_width", "quant", "temperature", "top_p", "top_k", "seed", "task", "shots", "max_tokens")


def _check_kinds(sample: Sample) -> None:
    """Refuses a value of another kind than its field's: it would be compared, summed or printed as what it is not."""
    for kind, names in KINDS.items():
        for name in names:
            if type(getattr(sample, name)) is not kind:
                raise ValueError(f"{name} is {getattr(sample, name)!r}, expected {kind.__name__}")
    if min(sample.doc_id, sample.tokens, sample.prompt_tokens, sample.cached_tokens) < 0 or sample.attempts < 1:
        raise ValueError("a count below 0")
    if odd := [x for x in sample.scores.values() if type(x) not in (int, float)]:
        raise ValueError(f"a score is {odd[0]!r}, expected a number")
    if odd := [x for s in sample.steps for x in (s.k, s.accepted, s.accepted_trimmed) if type(x) is not int]:
        raise ValueError(f"a step has {odd[0]!r}, expected whole numbers")
    if odd := [x for s in sample.steps for x in s.confidence if type(x) not in (int, float)]:
        raise ValueError(f"a confidence is {odd[0]!r}, expected a number")
    if type(sample.seconds) not in (int, float):
        raise ValueError(f"seconds is {sample.seconds!r}, expected a number")
    counts = sample.counts
    told = () if counts is None else (counts.accepted, counts.drafts, 0 if counts.steps is None else counts.steps)
    if odd := [x for x in told if type(x) is not int or x < 0]:
        raise ValueError(f"counts have {odd[0]!r}, expected whole numbers")


KINDS: dict[type, tuple[str, ...]] = {
    str: ("doc_hash", "prompt_hash", "question", "gold", "text", "finish_reason", "stop_hit", "error", "category",
          "reasoning"),
    int: ("doc_id", "tokens", "prompt_tokens", "cached_tokens", "attempts"),
    dict: ("scores", "extracted"),
    bool: ("forced",),
}  # fmt: skip
HEAD = {  # what run.json holds at least
    "id": str, "complete": bool, "cell": dict, "fingerprint": dict, "provenance": dict, "expected": int,
    "task_size": int,
}  # fmt: skip
MAY_HOLD: dict[str, tuple[type, ...]] = {
    "seconds": (int, float), "output_tokens": (int,), "samples": (int,), "counters": (dict,), "stopping": (dict,),
    "stopped": (str,),
}  # fmt: skip


def read_head(folder: Path) -> dict[str, Any]:
    """run.json of a run. Raises EvalkitError when it is absent, damaged or of another schema."""
    path = folder / RUN_FILE
    absent = EvalkitError(f"{folder} is no run: it has no {RUN_FILE}", "give a folder below runs/")
    head = read_document(path, absent=absent, fix=AGAIN)
    if not isinstance(head, dict):
        raise EvalkitError(f"{path} holds a {type(head).__name__}, expected an object", AGAIN)
    if "schema" not in head:
        raise EvalkitError(f"{path} does not say its schema, expected {SCHEMA}", AGAIN)
    if head["schema"] != SCHEMA:
        raise EvalkitError(f"{path} has schema {head['schema']}, not {SCHEMA}", "make the run again with this version")
    for key, kinds in {**{key: (kind,) for key, kind in HEAD.items()}, **MAY_HOLD}.items():
        if type(head.get(key)) not in kinds and (key in HEAD or key in head):
            what = f"a {key} that is {type(head[key]).__name__}" if key in head else f"no {key}"
            raise EvalkitError(f"{path} has {what}, expected {kinds[-1].__name__}", AGAIN)
    counts = [head["expected"], head["task_size"], head.get("seconds", 0), head.get("output_tokens", 0)]
    if min(counts) < 0 or not head["id"] or Path(head["id"]).name != head["id"]:
        raise EvalkitError(f"{path} has an id or a count that is none (id {head['id']!r}, counts {counts})", AGAIN)
    return head


def load_run(folder: Path) -> Run:
    """The run in a folder, complete or not. A complete one must be as it was written."""
    head, path = read_head(folder), folder / SAMPLES_FILE
    if head["complete"] and not path.exists():
        raise EvalkitError(f"{path} is missing", "restore the file or run again with --fresh")
    data = path.read_bytes() if path.exists() else b""
    samples: dict[int, Sample] = {}
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            sample, _ = unpack_sample(line, path)
            samples[sample.doc_id] = sample
    if head["complete"] and hashlib.sha256(data).hexdigest() != head.get("samples_sha256"):
        raise EvalkitError(f"{path} is not what the run wrote", "restore the file or run again with --fresh")
    if why := _edited(head, list(samples.values())):
        raise EvalkitError(f"{folder / RUN_FILE} was edited: {why}", "restore the file, or run again with --fresh")
    return Run(
        id=head["id"], complete=head["complete"], cell=head["cell"], fingerprint=head["fingerprint"],
        provenance=head["provenance"], samples=tuple(samples[i] for i in sorted(samples)),
        expected=head["expected"], task_size=head["task_size"], seconds=head.get("seconds", 0.0),
        output_tokens=head.get("output_tokens", 0), counters=head.get("counters", {}),
        stopping=_stopping(head.get("stopping"), folder / RUN_FILE), stopped=str(head.get("stopped", "")),
    )  # fmt: skip


def _edited(head: dict[str, Any], samples: Sequence[Sample]) -> str:
    """What of run.json contradicts the rest of it or the samples; "" where nothing does. A setting stands in it twice,
    as asked for (cell) and as what was hashed (fingerprint)."""
    cell, told = head["cell"], head["fingerprint"]
    if "hash" not in told:
        return "its fingerprint has no hash"
    if sha256_json({n: v for n, v in told.items() if n != "hash"}) != told["hash"]:
        return "its fingerprint is not what its hash is of"
    if not isinstance(cell.get("server", {}), dict):
        return f"the server of its cell is {cell['server']!r}"
    for name in (n for n in TWICE if n in cell and n in told):
        if cell[name] != told[name]:
            return f"{name} is {cell[name]!r} in its cell and {told[name]!r} in its fingerprint"
    if why := draft_fault(cell, told):
        return why
    if (verify := verify_facts(cell)) != {n: told[n] for n in VERIFY if n in told}:
        return f"its cell says {verify or VERIFY} of the verify rule, its fingerprint something else"
    both = {asked(cell, head["provenance"]), asked(told, head["provenance"])}
    if len(both) > 1:
        return f"online_quant_config is {cell.get(FIELD)!r} in its cell and {told.get(FIELD)!r} in its fingerprint"
    if not head["complete"]:
        return ""
    counts = {"samples": len(samples), "output_tokens": sum(s.tokens for s in samples)}
    for name, count in counts.items():
        if name in head and head[name] != count:
            return f"{name} is {head[name]!r}, its samples give {count}"
    return ""


def _stopping(values: dict[str, Any] | None, path: Path) -> Stopping | None:
    try:
        return None if values is None else Stopping(**values)
    except TypeError as e:
        raise EvalkitError(f"{path} has a stopping rule that is none ({e})", AGAIN) from None


def find_run(word: str, root: Path) -> Path:
    """The folder of a run given by path or by id."""
    for folder in (Path(word), root / word):
        if (folder / RUN_FILE).is_file():
            return folder
    if Path(word).is_dir():
        raise EvalkitError(f"{word} is a folder that holds no run: it has no {RUN_FILE}",
                           f"give a run's folder or its id below {root} (evalkit list shows them)")  # fmt: skip
    raise EvalkitError(f"no run {word!r}", f"give a run's folder or its id below {root} (evalkit list shows them)")


def list_runs(root: Path) -> list[dict[str, Any]]:
    """run.json of every run below `root`, oldest first."""
    heads = [read_head(p.parent) for p in root.glob(f"*/{RUN_FILE}")]
    return sorted(heads, key=lambda h: (h["provenance"].get("started", ""), h["id"]))


def read_document(path: Path, *, absent: EvalkitError, fix: str) -> Any:
    """A JSON file that this project writes. Raises `absent` where there is none, and EvalkitError with `fix` for one
    that can't be read."""
    try:
        return read_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise absent from None
    except (OSError, ValueError) as e:
        raise EvalkitError(f"{path} cannot be read ({e})", fix) from None


def read_given(path: Path, fix: str) -> Any:
    """A JSON file that a user hands in. Raises EvalkitError with `fix` for one that can't be read or is no JSON."""
    try:
        return read_json(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise EvalkitError(f"{path} cannot be read ({e.strerror})", fix) from None
    except ValueError as e:
        raise EvalkitError(f"{path} is not JSON ({e})", fix) from None


def read_json(text: str | bytes) -> Any:
    """Parsed JSON. NaN and Infinity, which only Python's reader takes, are a ValueError that names their key."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except _NotFinite:
        where = next(_not_finite(json.loads(text), ""))
        raise ValueError(f"{where} is no finite number") from None


class _NotFinite(Exception):
    pass


def _refuse(name: str) -> None:
    raise _NotFinite(name)


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path.lstrip(".")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_finite(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _not_finite(inner, f"{path}[{i}]")


def dump(value: Any, indent: int | None = None) -> str:
    """JSON text; a NaN is an error, never stored."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError as e:
        raise EvalkitError(f"a value to be stored is not a number ({e})", "report this as a bug of evalkit") from None

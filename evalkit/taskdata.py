"""What a task's YAML and its data files say, read and checked line by line. Knows nothing of lm-eval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import yaml

from evalkit.config import ROOT, Cell
from evalkit.errors import EvalkitError

Row = dict[str, Any]
CHAT_TASKS = frozenset({"gsm8k_inferencex"})  # written for chat models; not in the YAML, which is as it was published


def read_config(path: Path) -> dict[str, Any]:
    """The task as lm-eval takes it. Only a task that generates one text a document can be run."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise EvalkitError(f"{path} cannot be read as an lm-eval task ({e})", "use a plain YAML without tags") from None
    if not isinstance(config, dict) or "task" not in config:
        raise EvalkitError(f"{path} has no `task:` line", "use an lm-eval task YAML")
    if config.get("output_type", "generate_until") != "generate_until":
        raise EvalkitError(f"{path} is a {config['output_type']} task; evalkit run generates text",
                           "run it with python -m evalkit.lm_plugin --model evalkit")  # fmt: skip
    if int(config.get("repeats") or 1) != 1:
        raise EvalkitError(f"{path} asks for {config['repeats']} repeats", "set repeats to 1")
    return config


def fields(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that the task's templates read."""
    names: set[str] = set()
    for key in ("doc_to_text", "doc_to_target"):
        template = config.get(key)
        if isinstance(template, str):
            names |= jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(template))
            names |= set() if "{" in template else {template}
    return tuple(sorted(names))


def stops_of(until: Any, task: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(stop strings, notes) of a task's `until`. A plain string is one stop, not one for each of its characters."""
    if until is None or until == []:
        return (), ()
    if isinstance(until, str):
        notes: tuple[str, ...] = (f"stop {until!r} of {task} is a plain string, taken as a list of one",)
        until = [until]
    else:
        notes = ()
    if not isinstance(until, list | tuple) or not all(isinstance(s, str) for s in until):
        raise EvalkitError(f"the stops of {task} are {until!r}", "give `until` as a list of strings")
    if not all(until):
        raise EvalkitError(f"the stops of {task} hold an empty string, which stops at once", "remove it from `until`")
    return tuple(until), notes


def data_files(cell: Cell, config: Mapping[str, Any], path: Path, shots: int) -> dict[str, Path]:
    """Local file of each split needed; empty where the data come from the hub."""
    test = config.get("test_split") or config.get("validation_split") or "test"
    few = config.get("fewshot_split") or config.get("training_split") or "train"
    listed = (config.get("dataset_kwargs") or {}).get("data_files") or {}
    files = {s: locate(path, f) for s, f in listed.items()} if config.get("dataset_path") == "json" else {}
    if cell.data is not None:
        files[test] = cell.data
        sibling = cell.data.parent / "train.jsonl"
        if few not in files or sibling.is_file():
            files[few] = sibling
    if not files:
        return {}
    needed = {s: files[s].resolve() for s in ((few, test) if shots else (test,)) if s in files}
    for split, file in needed.items():
        if file.is_dir():
            inside = file / f"{split}.jsonl"
            raise EvalkitError(f"{file} is a folder, expected a JSONL file",
                               f"give {inside}" if inside.is_file() else "give a file in it")  # fmt: skip
        if not file.is_file():
            why = f" ({shots} shots are taken from it)" if split == few and split != test else ""
            raise EvalkitError(f"{file} does not exist{why}", "give the data's path, with train.jsonl beside it")
    return needed


def locate(definition: Path, file: str) -> Path:
    """A data file that a task's YAML names: beside the YAML, or in the repository, as lm-eval's command finds it."""
    beside, ours = definition.parent / file, ROOT / file
    return ours if ours.is_file() and not beside.is_file() else beside


def read_rows(path: Path, needed: Sequence[str]) -> list[Row]:
    """The objects of a JSONL file. The first bad line is an error that names file and line."""
    rows: list[Row] = []
    kinds: dict[str, type] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise EvalkitError(f"{path} cannot be read ({e.strerror})", "give the path of a readable file") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        except ValueError as e:  # JSON and UTF-8 errors alike
            raise _bad_line(path, number, f"is not JSON ({e})") from None
        except RecursionError:
            raise _bad_line(path, number, "is not JSON (nested too deep)") from None
        if b"\\ud" in line.lower() and _half_character(row):
            raise _bad_line(path, number, "holds half a character (a lone surrogate), which UTF-8 cannot hold")
        if not isinstance(row, dict):
            raise _bad_line(path, number, f"holds a {type(row).__name__}, not an object")
        for name in needed:
            value = row.get(name)
            if value is None or (isinstance(value, str) and not value.strip()):
                raise _bad_line(path, number, f"has no {name!r}" if value is None else f"has an empty {name!r}")
        for name, value in row.items():
            if value is not None and not isinstance(value, kinds.setdefault(name, type(value))):
                raise _bad_line(path, number, f"has a {type(value).__name__} for {name!r}, other than the lines above")
        rows.append(row)
    if not rows:
        raise EvalkitError(f"{path} has no lines", "give a file with one JSON object a line")
    return rows


def _bad_line(path: Path, number: int, what: str) -> EvalkitError:
    return EvalkitError(f"{path}, line {number} {what}", "mend or remove that line")


def _half_character(row: Any) -> bool:
    """Whether a text of the row cannot be written as UTF-8."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")

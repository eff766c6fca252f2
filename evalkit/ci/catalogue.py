"""ATOM's accuracy catalogue, read strictly: a missing entry or threshold is an error here, never a bar of 0.

`catalogue.schema.json` beside this file is its JSON schema; what a schema can't say is checked after it: exactly one
threshold and one spelling of the arguments, names once, variables and arguments that can be parsed, known placeholders.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import nearest
from evalkit import stats
from evalkit.errors import EvalkitError
from evalkit.runfile import read_given

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SCHEMA_FILE = Path(__file__).with_name("catalogue.schema.json")
THRESHOLDS = ("accuracy_threshold", "accuracy_test_threshold")
ARGUMENTS = ("extraArgs", "extra_args")
PLACEHOLDERS = frozenset({"MODEL_PATH", "OUTPUT_PATH"})
GSM8K_N = 1319  # the catalogues' bars are of all of gsm8k
BLIND = 5.0  # standard errors between baseline and threshold from which a loss goes unseen
DRAFT_OPTIONS = ("--num-speculative-tokens", "--speculative-num-draft-tokens", "--method", "--speculative-config")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of a catalogue. Scores and thresholds are fractions of 1; `accept_threshold` is an acceptance rate."""

    name: str
    model: str
    runner: str
    level: str
    env: Mapping[str, str]
    threshold: float
    baseline: float | None = None
    baseline_model: str = ""
    note: str = ""
    accept_threshold: float | None = None
    arguments: tuple[str, ...] = ()
    client_command: str = ""
    priority: str = ""
    shots: int | None = None  # None: what the catalogue's own client takes
    chat: bool = False

    @property
    def drafts(self) -> bool:
        """Whether the server's arguments ask for a draft."""
        return any(a.split("=")[0] in DRAFT_OPTIONS for a in self.arguments)

    def option(self, *names: str) -> str | None:
        """The value of a server's option, `--name VALUE` or `--name=VALUE`; the last one counts, as on any server."""
        found = None
        for i, word in enumerate(self.arguments):
            name, joined, value = word.partition("=")
            if name in names:
                found = value if joined else self.arguments[i + 1] if i + 1 < len(self.arguments) else None
        return found


def read_catalogue(path: Path) -> tuple[Entry, ...]:
    """A catalogue's entries. Raises EvalkitError with the first thing that is wrong and how many more there are."""
    values = read_given(path, "give a catalogue's JSON file")
    if found := problems(values):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise EvalkitError(f"{path.name}: {found[0]}{more}", "mend the catalogue")
    return tuple(_entry(row) for row in values)


def problems(values: Any) -> list[str]:
    """All that is wrong with a catalogue's JSON value, a line each; nothing where it is sound."""
    errors = sorted(_validator().iter_errors(values), key=lambda e: [str(part) for part in e.absolute_path])
    if errors:
        return [_in_words(error, values) for error in errors]
    names = [row["model_name"] for row in values]
    found = [f"{name!r} is there {names.count(name)} times" for name in dict.fromkeys(names) if names.count(name) > 1]
    for i, row in enumerate(values):
        found += [f"{_where(i, row)} {said}" for said in _semantic(row)]
    return found


def find_entry(entries: Sequence[Entry], name: str) -> Entry:
    """The entry of a name. An unknown name is an error with the nearest one."""
    for entry in entries:
        if entry.name == name:
            return entry
    names = tuple(entry.name for entry in entries)
    raise EvalkitError(f"the catalogue has no entry {name!r}", f"{nearest(name, names)}it has {', '.join(names)}")


def remarks(entry: Entry) -> list[str]:
    """What is sound and still makes a poor gate: bars that can't fail or can't pass, a baseline of another model."""
    found = []
    if entry.drafts and entry.accept_threshold is None:
        found.append("drafts, and has no mtp_accept_threshold: a draft that does nothing would pass")
    if entry.baseline is None:
        found.append("has no accuracy_baseline: what a loss is measured from is unknown")
        return found
    if entry.baseline_model and entry.baseline_model != entry.model:
        found.append(f"has the baseline of {entry.baseline_model}, another model")
    gap = entry.baseline - entry.threshold
    se = stats.proportion_se(round(entry.baseline * GSM8K_N), GSM8K_N)
    if gap <= 0:
        words = f"has a threshold of {entry.threshold:g} at or above its baseline of {entry.baseline:g}"
        found.append(f"{words}: a model as good as the baseline fails every other time")
    elif se and gap / se > BLIND:
        words = f"has a threshold {gap / se:.1f} standard errors under its baseline (n = {GSM8K_N})"
        found.append(f"{words}: it is blind to a loss of {100 * gap:.1f} pt")
    return found


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # a tenth of a second that only a catalogue needs

    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def _where(number: int, row: Any) -> str:
    name = row.get("model_name") if isinstance(row, dict) else None
    return f"entry {number + 1}" + (f" ({name})" if isinstance(name, str) and name else "")


def _in_words(error: Any, values: Any) -> str:
    """A schema's error (jsonschema's ValidationError) as what was found and what was expected, in one line."""
    path = list(error.absolute_path)
    if not path:
        return f"found {_short(values)}, expected a list of at least one entry"
    number = int(path[0])
    where, row = _where(number, values[number]), values[number]
    if len(path) == 1 and error.validator == "additionalProperties":
        known = tuple(json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))["items"]["properties"])
        unknown = [name for name in row if name not in known]
        return f"{where} has the unknown field {unknown[0]!r}; {nearest(unknown[0], known) or 'see its schema'}".strip()
    if len(path) == 1 and error.validator == "required":
        missing = [name for name in error.validator_value if name not in row]
        return f"{where} has no {', '.join(missing)}"
    if len(path) == 1:
        return f"{where} is {_short(row)}, expected an object"
    return f"{where} has {path[1]} {_short(error.instance)}, expected {_expected(error)}"


def _expected(error: Any) -> str:
    if error.validator == "enum":
        return "one of " + ", ".join(map(str, error.validator_value))
    if error.validator in ("minimum", "maximum"):
        return f"{'at least' if error.validator == 'minimum' else 'at most'} {error.validator_value}"
    if error.validator in ("minLength", "pattern"):
        return "some text"
    if error.validator == "anyOf":
        return "a number from 0 to 1, or null"
    return f"a {error.validator_value}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _semantic(row: Mapping[str, Any]) -> Iterator[str]:
    for names in (THRESHOLDS, ARGUMENTS):
        given = [name for name in names if name in row]
        if len(given) > 1:
            yield f"has both {' and '.join(given)}, expected one"
        elif not given and names is THRESHOLDS:
            yield f"has no {' or '.join(names)}"
    lines = [line for line in row["env_vars"].split("\n") if line.strip()]
    keys = [line.partition("=")[0].strip() for line in lines]
    if bad := [line for line in lines if not re.fullmatch(r"\s*[A-Za-z_]\w*=.*", line)]:
        yield f"has the env_vars line {bad[0]!r}, expected K=V"
    elif len(set(keys)) < len(keys):
        yield "sets a variable twice in env_vars"
    for name in (*ARGUMENTS, "client_command"):
        try:
            shlex.split(row.get(name, ""))
        except ValueError as e:
            yield f"has {name} that a shell could not read ({e})"
    unknown = sorted(set(_PLACEHOLDER.findall(row.get("client_command", ""))) - PLACEHOLDERS)
    if unknown:
        yield f"has the placeholder ${{{unknown[0]}}} in client_command, expected ${{MODEL_PATH}} or ${{OUTPUT_PATH}}"


def _entry(row: Mapping[str, Any]) -> Entry:
    lines = [line.strip() for line in row["env_vars"].split("\n") if line.strip()]
    return Entry(
        name=row["model_name"],
        model=row["model_path"],
        runner=row["runner"],
        level=row["test_level"],
        env=dict(line.split("=", 1) for line in lines),
        threshold=next(row[name] for name in THRESHOLDS if name in row),
        baseline=row.get("accuracy_baseline"),
        baseline_model=row.get("accuracy_baseline_model", ""),
        note=row.get("_baseline_note", ""),
        accept_threshold=row.get("mtp_accept_threshold"),
        arguments=tuple(shlex.split(next((row[name] for name in ARGUMENTS if name in row), ""))),
        client_command=row.get("client_command", ""),
        priority=row.get("priority", ""),
        shots=row.get("lm_eval_num_fewshot"),
        chat=row.get("lm_eval_use_chat_completions", "0") in ("1", "true"),
    )

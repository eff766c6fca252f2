"""What must be equal for two runs to be compared, and what a verdict is bound to. Standard library only.

Three sets of facts, all read from what a run stores (`run.json`):
- accuracy: the same questions, asked in the same way of the same target. K, draft and quant mode are left out, since
  they are what is judged;
- acceptance: the same, and the same draft, K, draft width, temperature and data;
- configuration: what serves the answers: target, draft, K, quant mode, engine, image, flags. Task, sampling and seed
  are no part of it: a performance run of the same configuration asks other questions.

A fact that a run does not record is `None`. It differs from any value: what is missing is never taken as equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evalkit import online_quant
from evalkit.records import Run

# The engine in this process is asked for plain completions. Runs stored before these facts were recorded are its.
ASKED = {"endpoint": "engine", "template": "none", "mode": "none", "bos": "tokenizer"}

ACCURACY = (  # the hash of the task is of its YAML (its version too), prompts and documents; samples pair by document
    "target_sha", "tokenizer_sha", "task", "task_sha", "prompts_sha", "shots", "template", "endpoint", "stop",
    "max_tokens", "temperature", "top_p", "top_k", "mode", "bos",
)  # fmt: skip
ACCEPTANCE = (*ACCURACY, "draft_method", "draft_sha", "k", "draft_width")
SERVED = (
    "target_sha", "tokenizer_sha", "draft_method", "draft_sha", "k", "draft_width", "quant", "dtype", "device",
)  # fmt: skip
# Of the cell: settings of the engine. Paths are in the hashes above; threads and memory are the machine's.
FLAGS = (
    "max_batch", "max_batched_tokens", "max_model_len", "page_size", "prefix_cache", "mono", "graphs", "kernels", "tp",
)  # fmt: skip
BEFORE = {"mono": "off", "graphs": "off", "kernels": "auto", "tp": 1}  # of runs stored before the engine had a choice
# How drafts are accepted, with what a run is that does not say: facts that are recorded where they are not this.
VERIFY = {"verify": "standard", "forced_length": 0.0, "confidence_threshold": 0.0, "verify_rows": 0}
# Of the engine's scheduler, likewise: when a prompt is computed changes no text, and is a configuration's own.
DELAYER = {"prefill_decode_interval": 0, "prefill_delayer": ""}
EXTRA = "extra_body"  # a fact of a run that has one; in a configuration it is one of the flags
PACKAGES = ("torch", "triton")
SHOWN = 12  # characters of a hash that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact in which two fingerprints differ."""

    name: str
    here: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.name} {self.words(self.here)} / {self.words(self.there)}"

    def words(self, value: Any) -> str:
        """One of the two values for people. A fact that is there only where it was asked for is else none."""
        return "none" if value is None and self.name == online_quant.FIELD else shown(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Facts by name, plain JSON values, and the sha256 of all of them."""

    fields: dict[str, Any]
    hash: str

    def differences(self, other: Fingerprint | Mapping[str, Any], names: Iterable[str] = ()) -> tuple[Difference, ...]:
        """The facts that are not the same in `other`; of `names` only, where they are given."""
        there = other.fields if isinstance(other, Fingerprint) else other
        asked = tuple(names) or tuple(dict.fromkeys((*self.fields, *there)))
        pairs = ((name, self.fields.get(name), there.get(name)) for name in asked)
        return tuple(Difference(name=n, here=a, there=b) for n, a, b in pairs if not _same(a, b))


def accuracy_fingerprint(run: Run | Mapping[str, Any]) -> Fingerprint:
    """What a run must share with another for their scores to be compared."""
    return make(_of(run, ACCURACY).fields | online_facts(run) | extra_facts(_parts(run)[1]))


def acceptance_fingerprint(run: Run | Mapping[str, Any]) -> Fingerprint:
    """What a run must share with another for their accepted lengths to be compared."""
    cell = _parts(run)[1]
    return make(_of(run, ACCEPTANCE).fields | verify_facts(cell) | online_facts(run) | extra_facts(cell))


def extra_facts(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What a run added to every request (`--extra-body`), in one form; nothing for one that added nothing."""
    spec = cell.get("server")
    text = spec.get("extra_body") if isinstance(spec, Mapping) else None
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, TypeError):  # of a file that was edited: it still is not nothing
        return {EXTRA: str(text)}
    return {EXTRA: json.dumps(found, sort_keys=True)} if found else {}


def verify_facts(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What of VERIFY a cell (or an engine's configuration) has otherwise; nothing for one at K=0."""
    found = {name: cell.get(name, default) for name, default in VERIFY.items()}
    return {name: value for name, value in found.items() if value != VERIFY[name]} if cell.get("k") else {}


def online_facts(run: Run | Mapping[str, Any]) -> dict[str, str]:
    """The weights quantised after loading, in canonical JSON; nothing where none are."""
    _, cell, provenance = _parts(run)
    asked = online_quant.asked(cell, provenance)
    return {online_quant.FIELD: asked} if asked else {}


def config_fingerprint(run_meta: Run | Mapping[str, Any]) -> Fingerprint:
    """The configuration that a run was made with. `run_meta` is a Run, or a mapping with its `cell`, `fingerprint`
    and `provenance` (the head in run.json). Any change of K, quant mode, draft, target, image, engine or flag changes
    the hash."""
    told, cell, provenance = _parts(run_meta)
    fields = {name: told.get(name, cell.get(name)) for name in SERVED}
    fields |= {name: cell.get(name, BEFORE.get(name)) for name in FLAGS} | verify_facts(cell)
    fields |= {name: cell[name] for name, default in DELAYER.items() if cell.get(name, default) != default}
    fields |= online_facts(run_meta)
    versions, extra = provenance.get("versions") or {}, extra_facts(cell)
    fields |= {
        "image": provenance.get("image", ""),
        "flags": {**(provenance.get("flags") or {}), **extra} if extra else provenance.get("flags", {}),
        "engine_code": provenance.get("code"),
        **{name: versions.get(name) for name in PACKAGES},
    }
    return make(fields)


def make(fields: Mapping[str, Any]) -> Fingerprint:
    """A fingerprint of the facts given."""
    values = json.loads(json.dumps(dict(fields), allow_nan=False))
    return Fingerprint(fields=values, hash=hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest())


def sha256_json(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys. NaN has no hash."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def docs_sha(doc_ids: Iterable[int]) -> str:
    """The hash of the documents that a run is to have; they are numbered in the data's order."""
    return sha256_json(sorted(doc_ids))


def shown(value: Any) -> str:
    """A fact for people: a hash by its first characters, what was not recorded as such, anything else whole."""
    if value is None:
        return "not recorded"
    whole = isinstance(value, str) and len(value) == 64
    return value[:SHOWN] if whole else repr(value) if value == "" or isinstance(value, list) else str(value)


def in_words(differences: Iterable[Difference]) -> str:
    """`shots 5 / 0, max_tokens 128 / 64`: each field with both values."""
    return ", ".join(map(str, differences))


def _of(run: Run | Mapping[str, Any], names: Iterable[str]) -> Fingerprint:
    told, cell, _ = _parts(run)
    return make({name: told.get(name, cell.get(name, ASKED.get(name))) for name in names})


def _parts(run: Run | Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(run, Run):
        return run.fingerprint, run.cell, run.provenance
    return run.get("fingerprint") or {}, run.get("cell") or {}, run.get("provenance") or {}


def _same(a: Any, b: Any) -> bool:
    """Equal values, both there; True is no 1."""
    return a is not None and b is not None and isinstance(a, bool) == isinstance(b, bool) and bool(a == b)

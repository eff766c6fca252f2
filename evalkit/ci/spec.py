"""A catalogue's entry as a gate specification (`evalkit gate SPEC`), with what can't be carried over said beside it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from evalkit.ci.catalogue import Entry
from evalkit.errors import EvalkitError
from evalkit.outputs.common import safe

SPEC_SCHEMA = 1  # of the specification's format, evalkit/spec/schema.json
K_OPTIONS = ("--num-speculative-tokens", "--speculative-num-draft-tokens")


def spec_values(entry: Entry, run: str = "") -> dict[str, Any]:
    """The keys of the specification. The threshold becomes the floor, in per cent; an entry with a draft demands the
    comparison with golden too, since a dead draft leaves the score as it is. `run` is a run's id or a glob of ids."""
    if not 0 < entry.threshold < 1:
        raise EvalkitError(
            f"{entry.name} has a threshold of {entry.threshold:g}: no floor", "give one above 0, below 1"
        )
    demanded = ["floor", "length"] if entry.drafts else ["floor"]
    return {
        "schema": SPEC_SCHEMA,
        "name": safe(entry.name),
        "floor": round(100 * entry.threshold, 6),
        "checks": demanded,
        "cells": [{"name": safe(entry.name), "run": run or run_glob(entry)}],
    }


def spec_text(entry: Entry, run: str = "", *, source: str = "") -> str:
    """The specification's YAML, with a comment for each thing that the catalogue says and the gate reads otherwise."""
    lines = [f"# Made by evalkit catalogue spec from {source or 'a catalogue'}, entry {entry.name!r}."]
    lines.append(f"# Served: {entry.model} on {entry.runner}, {' '.join(entry.arguments) or 'no arguments'}")
    lines += [f"# with {name}={value}" for name, value in entry.env.items()]
    lines.append(
        "# The catalogue's bar is a flexible-extract score that reaches it; the floor here is of strict-match,"
    )
    lines.append("# and the true score must be shown to lie above it.")
    shots = "the default of the catalogue" if entry.shots is None else entry.shots
    lines.append(f"# Shots: {shots}{', chat' if entry.chat else ''}: another number of them is another score.")
    if entry.baseline is not None:
        of = f" of {entry.baseline_model}" if entry.baseline_model else ""
        lines.append(f"# Its baseline{of} is {entry.baseline:g}, without a count: a number to look at. For a paired")
        lines.append("# comparison give `baseline`, a run at K=0, and demand `accuracy`.")
    if entry.note:
        lines.append(f"# Its note: {entry.note}")
    if entry.accept_threshold is not None:
        lines.append(f"# Its mtp_accept_threshold is {_length(entry)}; the gate compares with golden instead.")
    elif entry.drafts:
        lines.append("# It has no mtp_accept_threshold; the gate compares with golden.")
    head = "\n".join(" ".join(safe(line).split()) for line in lines)  # no text of the catalogue ends a comment
    body = yaml.safe_dump(spec_values(entry, run), sort_keys=False, allow_unicode=True, width=110)
    return f"{head}\n{body}"


def run_glob(entry: Entry) -> str:
    """Ids of stored runs of this model: TASK-TARGET-DRAFT-kK-QUANT, as runs are named."""
    target = re.sub(r"[^\w.]+", "-", entry.model.rstrip("/").rsplit("/", 1)[-1]).strip("-")
    k = _k(entry)
    return f"gsm8k*-{target}-*" + (f"k{k}-*" if k is not None else "")


def _k(entry: Entry) -> int | None:
    said = entry.option(*K_OPTIONS)
    return int(said) if said is not None and said.isdecimal() else None


def _length(entry: Entry) -> str:
    """The acceptance rate's bar, and as accepted length where K is known: 1 + rate x K."""
    rate, k = entry.accept_threshold, _k(entry)
    assert rate is not None
    return f"{rate:g}" + (f", an accepted length of {1 + rate * k:.2f} at K={k}" if k else "")

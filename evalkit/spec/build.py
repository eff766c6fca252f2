"""A specification's keys, already checked, made into the records of its cells. Percent and points become fractions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from engine.config import nearest
from evalkit.answers import AnswerLimits
from evalkit.errors import EvalkitError
from evalkit.gate.figures import Published
from evalkit.gate.limits import Against, GateSpec, PathShare
from evalkit.gate.names import BEGIN, CHECKS, is_check
from evalkit.spec.model import CellSpec
from evalkit.spec.waiver import Waiver, make_waiver

WORDS = ("baseline", "golden", "plain", "twin")
INHERITED = (*WORDS, "against", "checks", "floor", "paths", "golden_draft", "golden_quant", "margins", "caps")
MARGINS = {  # key of the file: field of GateSpec
    "accuracy": "accuracy_margin",
    "published": "score_margin",
    "length": "length_margin",
    "distribution": "distribution_margin",
    "position": "position_margin",
}
ANSWER_CAPS = {
    "stop_cut": "max_stop_cut",
    "empty": "max_empty",
    "reasoning_only": "max_reasoning_only",
    "degenerate": "max_degenerate",
    "format_drift": "drift",
}
CAPS = {"failed": "max_failed", "truncated": "max_truncated"}
DIRECT = ("alpha", "min_samples", "max_age_days", "tie_gap")

Values = Mapping[str, Any]


def build_cells(cell: Values, data: Values, common: Values, where: str) -> Iterator[CellSpec]:
    """The cells of one entry: one, or a sweep's. `where` is the entry's place, for messages."""
    merged = _merged(cell, data)
    limits = _limits(merged, data, where)
    known = {
        "limits": limits,
        "waiver": _waiver(cell, merged, data, limits, where),
        **{key: merged.get(key, "") for key in WORDS},
        "refused_by": _expected(cell.get("expect", {}), where),
    }
    name = cell.get("name", "")
    if "sweep" in cell:
        over = cell["sweep"]
        for quant, tp, k in product(over["quant"], over.get("tp", [None]), over["k"]):
            setting = {**common, "k": k, "quant": quant, **({} if tp is None else {"tp": tp})}
            layout = "" if tp is None else f" TP={tp}"
            yield CellSpec(name=f"{name} {quant} K={k}{layout}".strip(), setting=setting, **known)
    elif "setting" in cell:
        setting = {**common, **cell["setting"]}
        yield CellSpec(name=name or _named(setting), setting=setting, **known)
    elif "figures" in cell:
        figures = _figures(cell["figures"], where)
        yield CellSpec(name=name or figures.source, figures=figures, **known)
    else:
        kind = "run" if "run" in cell else "published"
        yield CellSpec(name=name or cell[kind], **{kind: cell[kind]}, **known)


def _expected(values: Values, where: str) -> tuple[str, ...]:
    """The checks that are to refuse the cell, by names that a check can have."""
    names = tuple(values.get("refused_by", ()))
    if odd := [name for name in names if not is_check(name)]:
        known = (*CHECKS, *(f"{begin}NAME" for begin in BEGIN))
        raise EvalkitError(f"{where}.expect.refused_by has {odd[0]!r}, which no check is called",
                           f"{nearest(odd[0], known)}use {', '.join(known)}")  # fmt: skip
    return names


def _merged(cell: Values, data: Values) -> dict[str, Any]:
    """What a cell is judged by: the whole specification's keys, replaced by its own; margins and caps one by one."""
    out = {key: data[key] for key in INHERITED if key in data}
    for key in INHERITED:
        if key in cell:
            out[key] = {**out.get(key, {}), **cell[key]} if key in ("margins", "caps") else cell[key]
    return out


def _waiver(cell: Values, merged: Values, data: Values, own: GateSpec, where: str) -> Waiver | None:
    asked = cell.get("waiver")
    if asked is None:
        return None
    wide = {**merged, **{part: {**merged.get(part, {}), **asked.get(part, {})} for part in ("margins", "caps")}}
    return make_waiver(asked, own, _limits(wide, data, where), MARGINS | CAPS | ANSWER_CAPS, where)


def _figures(values: Values, where: str) -> Published:
    found = Published(**values)
    if found.correct is None and found.length is None:
        raise EvalkitError(f"{where}.figures has neither a score nor a length", "give correct and n, or length and k")
    if found.correct is not None and found.n is not None and found.correct > found.n:
        raise EvalkitError(f"{where}.figures has {found.correct} right of {found.n}", "give the count of right answers")
    return found


def _named(setting: Values) -> str:
    words = [str(setting[key]) for key in ("draft", "quant") if key in setting]
    words += [f"{word}={setting[key]}" for key, word in (("k", "K"), ("tp", "TP")) if key in setting]
    return " ".join(words) or "default setting"


def _limits(merged: Values, data: Values, where: str) -> GateSpec:
    margins, caps = merged.get("margins", {}), merged.get("caps", {})
    known: dict[str, Any] = {field: margins[key] / 100 for key, field in MARGINS.items() if key in margins}
    known |= {field: caps[key] / 100 for key, field in CAPS.items() if key in caps}
    known |= {key: data[key] for key in DIRECT if key in data}
    answers = {field: caps[key] / 100 for key, field in ANSWER_CAPS.items() if key in caps}
    if "assumed_golden_error" in data:
        known["assumed_golden_se"] = data["assumed_golden_error"] / 100
    if "suspicious_rise" in data:
        known["suspicious_ratio"] = 1 + data["suspicious_rise"] / 100
    if "floor" in merged:
        known["floor"] = merged["floor"] / 100
    try:
        return GateSpec(
            **known,
            answers=AnswerLimits(**answers),
            demands=tuple(merged.get("checks", ())),
            golden_draft=merged.get("golden_draft", "same"),
            golden_quant=merged.get("golden_quant", "any"),
            against=tuple(_against(a) for a in merged.get("against", ())),
            paths=tuple(PathShare(name=name, share=x / 100) for name, x in merged.get("paths", {}).items()),
        )
    except EvalkitError as e:
        raise EvalkitError(f"{where}: {e.what}", e.fix) from None


def _against(values: Values) -> Against:
    margin = values.get("margin")
    return Against(name=values["score"], margin=None if margin is None else margin / 100)

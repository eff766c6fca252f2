"""Golden files in words: `evalkit golden check`, `show` and `diff`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.baseline import GOLDEN_DIR, load_reference_scores
from evalkit.errors import EvalkitError
from evalkit.formats import interval, signed
from evalkit.golden.curve import Curve, GoldenValue
from evalkit.golden.read import read_curves
from evalkit.layout import fold, fold_lines, pairs, table


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMode:
    """What a check found of one mode of one curve."""

    model: str
    mode: str
    ks: tuple[int, ...]
    falls: tuple[tuple[int, int], ...]  # neighbouring K between which it falls
    implied: str  # why the implied survival is unusable over all K; "" when it is usable
    implied_to: int  # the largest K up to which it is usable; 0: none
    unit: str  # as the comments name it; "" when they do not
    missing: tuple[str, ...]  # K in between that it does not have
    evidence: int  # values with an interval


def check_file(path: Path) -> tuple[CheckedMode, ...]:
    """Reads every curve of a file. Raises EvalkitError for what cannot be read, a value out of its unit included."""
    out = []
    for curve in read_curves(path):
        for mode, by_k in curve.values.items():
            ks = tuple(sorted(by_k))
            out.append(
                CheckedMode(
                    model=curve.model,
                    mode=mode,
                    ks=ks,
                    falls=tuple(curve.falls(mode)),
                    implied=curve.implied(mode),
                    implied_to=curve.implied_to(mode),
                    unit=curve.said.unit if curve.said else "",
                    missing=tuple(f"K={k}" for k in range(ks[0], ks[-1]) if k not in ks),
                    evidence=sum(v.se is not None for v in by_k.values()),
                )
            )
    return tuple(out)


def check_text(path: Path, checked: tuple[CheckedMode, ...]) -> str:
    """A few lines a file, at most 80 columns apart from the file's name."""
    lines = [f"{path.name}: {len(checked)} curve{'s' if len(checked) > 1 else ''}"]
    for one in checked:
        span = f"K={min(one.ks)}..{max(one.ks)}" if len(one.ks) > 1 else f"K={min(one.ks)}"
        lines.append(f"  {one.model} {one.mode}: {span}{', without ' + ', '.join(one.missing) if one.missing else ''}")
        falls = ", ".join(f"K={a} to K={b}" for a, b in one.falls)
        lines.append(f"    {'not monotone: falls from ' + falls if one.falls else 'monotone'}")
        if not one.implied:
            lines.append("    implied survival: usable")
        else:
            upto = f"usable up to K={one.implied_to} only" if one.implied_to else "unusable"
            lines.append(f"    implied survival: {upto}")
            lines.append(f"      {one.implied}")
        lines.append(f"    unit: {one.unit or 'not said; the shape of the file is that of accepted length'}")
        spread = f"{one.evidence} of {len(one.ks)} values" if one.evidence else "no value"
        lines.append(f"    {spread} with an interval")
    return "\n".join(lines)


def check_scores_text(path: Path) -> str:
    """A line on a file of published scores; raises EvalkitError where one contradicts itself."""
    scores = load_reference_scores(path)
    noun = "published score" if len(scores) == 1 else "published scores"
    return f"{path.name}: no golden curve; {len(scores)} {noun}, each agreeing with its counts"


def find_file(word: str, root: Path = GOLDEN_DIR) -> Path:
    """A curve's file, by path or by its name in golden/ (with or without .yaml)."""
    for path in (Path(word), root / word, root / f"{word}.yaml"):
        if path.is_file():
            return path
    have = ", ".join(sorted(p.stem for p in root.glob("*.yaml") if p.stem != "reference_scores")) or "none"
    raise EvalkitError(f"no golden curve {word!r}", f"give a file, or a name in golden/ ({have})")


def show_text(curve: Curve, width: int = 0) -> str:
    """A curve with all that is known of it, laid out for `width` columns (0: as wide as it is)."""
    lines = [f"{curve.source}: {curve.model}"]
    said = curve.said
    if said is not None:
        known = {
            "source run": said.source_run, "source": said.source, "not known": said.unknown,
            "dataset": said.dataset, "engine": f"{said.engine} {said.hardware}".strip(),
            "method": said.method, "draft": said.draft, "script": said.script,
            "speculative": ", ".join(f"{a}={b}" for a, b in said.speculative.items()),
        }  # fmt: skip
        lines.append(pairs([(what, str(value)) for what, value in known.items() if value], width))
    for mode, by_k in curve.values.items():
        columns = ("K", "length", "std error", "95 % interval", "documents", "steps")
        rows = [_row(value) for _, value in sorted(by_k.items())]
        if not any(value.se is not None for value in by_k.values()):  # a bare curve: its lengths are all of it
            columns, rows = columns[:3], [row[:3] for row in rows]
        lines += ["", fold(f"{mode}{_sampling(curve, mode)}", width, "  ", "    ")]
        lines.append(table(columns, rows, "lrllrr"[: len(columns)], width, indent=4))
        if curve.falls(mode):
            lines.append("    not monotone: " + ", ".join(f"falls from K={a} to K={b}" for a, b in curve.falls(mode)))
    return fold_lines("\n".join(lines), width)


def _sampling(curve: Curve, mode: str) -> str:
    if curve.said is None:
        return ""
    s = curve.said.of(mode)
    words = {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "answers up to": s.output_len}
    told = ", ".join(f"{what} {value}" for what, value in words.items() if value is not None)
    return f" ({told})" if told else ""


def _row(value: GoldenValue) -> tuple[str, ...]:
    if value.se is None or value.interval is None:
        return str(value.k), str(value.accepted_length), "not published", "", "", ""
    return (str(value.k), f"{value.accepted_length:.4f}", f"{value.se:.4f}", interval(*value.interval),
            str(value.clusters), str(value.steps))  # fmt: skip


def pair_curves(old: Sequence[Curve], new: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """The curves of two files that are compared: those of one model; or the only one of each, whatever its model."""
    if len(old) == len(new) == 1:
        return [(old[0], new[0])]
    there = {curve.model: curve for curve in new}
    found = [(curve, there[curve.model]) for curve in old if curve.model in there]
    if not found:
        models = [", ".join(curve.model for curve in curves) for curves in (old, new)]
        what = f"{old[0].source} has curves of {models[0]}, {new[0].source} of {models[1]}"
        raise EvalkitError(f"{what}: no model in both", "give two files that hold one model, or one curve each")
    return found


def diff_text(old: Curve, new: Curve, width: int = 0) -> str:
    """Old and new lengths at every K that either has, by mode. The spread of the difference is given where both
    sides publish one."""
    lines = [f"{old.source} ({old.model}) -> {new.source} ({new.model})"]
    a, b = _marks(old), _marks(new)
    if a is None or b is None:  # a bare curve: nothing is known of its setting, so nothing of it differs
        silent = [curve.source for curve, marks in ((old, a), (new, b)) if marks is None]
        verb = "are bare curves and say" if len(silent) > 1 else "is a bare curve and says"
        lines.append(f"  {' and '.join(silent)} {verb} nothing of the setting: whether it is the same is not known")
    else:
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                lines.append(f"  differs in {key}: {_shown(a.get(key))} -> {_shown(b.get(key))}")
    for mode in dict.fromkeys([*old.values, *new.values]):
        before, after = old.values.get(mode, {}), new.values.get(mode, {})
        if not before or not after:
            lines.append(f"  {mode}: only in {old.source if before else new.source}, nothing to compare it with")
            continue
        rows = [_difference(k, before.get(k), after.get(k)) for k in sorted({*before, *after})]
        lines += [f"  {mode}", table(("K", "old", "new", "difference"), rows, "lrrl", width, indent=4)]
    return fold_lines("\n".join(lines), width)


def _shown(value: object) -> str:
    return "not recorded" if value is None else str(value)


def _marks(curve: Curve) -> Mapping[str, object] | None:
    return next((v.fingerprint for by_k in curve.values.values() for v in by_k.values() if v.fingerprint), None)


def _difference(k: int, a: GoldenValue | None, b: GoldenValue | None) -> tuple[str, ...]:
    old, new = (f"{x.accepted_length:.4f}" if x else "-" for x in (a, b))
    if a is None or b is None:
        return str(k), old, new, ""
    words = signed(b.accepted_length - a.accepted_length)
    if a.se is not None and b.se is not None:
        words += f" ± {math.hypot(a.se, b.se):.4f}"
    return str(k), old, new, words

"""One run with all that the page says of it: verdict, standards, acceptance, curves. Several runs make a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evalkit.acceptance import (
    AcceptanceStats,
    Group,
    Position,
    by_answer_length,
    counted_positions,
    of_run,
    positions_of,
)
from evalkit.acceptance.columns import Steps, steps_of
from evalkit.baseline import STRICT, Baseline, ReferenceScore, mark
from evalkit.fingerprint import Difference, in_words
from evalkit.gate.accuracy import baseline_differences
from evalkit.golden import Curve, GoldenValue, Standards, differing_marks, said_otherwise
from evalkit.online_quant import quant_name
from evalkit.records import Run, Verdict
from evalkit.report import curves, drafts, samples, subsets, tables, text

LABEL = 60  # characters
NAMES = ("task", "target", "draft", "engine")  # values that say themselves what they are
_WARNING = re.compile(r"(?:^|; )warning: ([^;]+)")  # in a note, or in the message of a check


@dataclass(frozen=True, kw_only=True)  # no slots: what is derived is worked out once, when it is first asked for
class Subject:
    """A run on the page. `label` tells it from the page's other runs; `index` is its place among them."""

    run: Run
    verdict: Verdict | None
    golden: GoldenValue | Curve | None
    baseline: Baseline | None
    references: tuple[ReferenceScore, ...]
    label: str
    index: int = 0
    source: str = ""  # the file that the verdict was read from; "" where it was judged for this page
    lost: tuple[str, ...] = ()  # what such a verdict compared with and is not found again, a sentence each

    @cached_property
    def k(self) -> int:
        return self.run.cell.get("k") or 0

    @property
    def link(self) -> str:
        """The run's id as the page's links name it (#sample=7&run=...)."""
        return text.visible(self.run.id)

    @cached_property
    def engine(self) -> str:
        """What ran the target: a server's name and version, or this project's own engine."""
        return str(self.run.cell.get("engine") or self.run.provenance.get("engine") or "evalkit engine")

    @cached_property
    def acceptance(self) -> AcceptanceStats:
        return of_run(self.run)

    @cached_property
    def curve(self) -> tuple[Position, ...]:
        found = self.acceptance
        if not found.by_step:
            return counted_positions(found)
        return positions_of(self.steps, found.k) if found.steps else ()

    @cached_property
    def steps(self) -> Steps:
        return steps_of(self.run.samples, self.run.cell.get("k"))

    @cached_property
    def by_draft(self) -> tuple[curves.Point, ...]:
        """Kept at each position, given those before: the conditional rates of `curve` that there are, as points."""
        return tuple(
            curves.Point(low=p.position, high=p.position, steps=p.judged, value=p.conditional,
                         interval=p.conditional_band)
            for p in self.curve if p.conditional is not None
        )  # fmt: skip

    @cached_property
    def by_length(self) -> tuple[Group, ...]:
        return by_answer_length(self.run.samples, self.acceptance.k)

    @cached_property
    def _at_k(self) -> drafts.GoldenView:
        return drafts.golden_view(self.golden, self.k, mark(self.run, "mode")) if self.k else drafts.GoldenView()

    @cached_property
    def golden_differs(self) -> str:
        """In what the golden at the run's K is of another setting, in words; "" where in nothing, or without one."""
        value = self._at_k.value
        differ = [] if value is None else [*differing_marks(value, self.run), *said_otherwise(value, self.run)]
        return text.names(differ)

    @cached_property
    def view(self) -> drafts.GoldenView:
        """The golden at the run's K; one of another setting is none, and no picture stands beside it."""
        value = self._at_k.value
        if value is None or not self.golden_differs:
            return self._at_k
        return drafts.GoldenView(
            missing=(f"golden not comparable: {value.source} differs from this run in {self.golden_differs}",)
        )

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """In what the baseline is of another setting than the run: then no difference to it means anything."""
        return baseline_differences(self.baseline, self.run) if self.baseline is not None else ()

    @property
    def not_comparable(self) -> str:
        """The same in words, the baseline's value first; "" where nothing differs."""
        return in_words(self.differences)

    @cached_property
    def partner(self) -> Baseline | None:
        """The baseline, where the run's answers may stand beside its own."""
        return None if self.differences else self.baseline

    @cached_property
    def pairs(self) -> samples.Paired | None:
        return samples.pair(self.run, self.partner, STRICT)

    @cached_property
    def categories(self) -> tuple[subsets.Subset, ...]:
        return subsets.by_category(self.run, self.partner)

    @cached_property
    def scored(self) -> tuple[int, int]:
        return samples.scored(self.run.samples, STRICT)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What the gate warns of though it is no check: figures too good to be believed unread. In the gate's words."""
        if self.verdict is None:
            return ()
        notes = [m[1] for note in self.verdict.notes if (m := _WARNING.match(note))]
        inside = [f"{c.name}: {m[1]}" for c in self.verdict.checks for m in _WARNING.finditer(c.message)]
        return tuple(dict.fromkeys((*notes, *inside)))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of this run must know first."""
        read = (f"verdict from {self.source}, not judged again",) if self.source else ()
        return (*self.remarks, *read, *self.lost, *tables.warnings(self.run), *subsets.warnings(self.categories))

    def check(self, name: str) -> Mapping[str, Any]:
        """The numbers of the verdict's check with this name; empty where there is none."""
        return next((c.numbers for c in self.verdict.checks if c.name == name), {}) if self.verdict else {}


def subjects(
    found: Sequence[tuple[Run, Verdict | None, Standards]],
    sources: Mapping[str, str] | None = None,
    lost: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Subject]:
    """Runs of one page, ordered as a sweep is read: engine, draft, K, quant mode; with labels that tell them apart.
    `sources` names, by run, the files that verdicts were read from; `lost` what they compared with and is gone."""
    labels = _labels([run for run, _, _ in found])
    made = [
        Subject(run=run, verdict=verdict, golden=standards.golden, baseline=standards.baseline,
                references=standards.references, label=label, source=(sources or {}).get(run.id, ""),
                lost=(lost or {}).get(run.id, ()))
        for (run, verdict, standards), label in zip(found, labels, strict=True)
    ]  # fmt: skip
    if len(made) != 2:  # two runs are compared in the order given
        made.sort(key=lambda s: (s.engine, str(s.run.cell.get("draft")), s.k, _quant_order(s.run), s.run.id))
    return [Subject(**{**_fields(s), "index": i}) for i, s in enumerate(made)]


def _fields(s: Subject) -> dict[str, Any]:
    return {f: getattr(s, f) for f in s.__dataclass_fields__}


def _quant_order(run: Run) -> tuple[int, str]:
    name = str(run.cell.get("quant", ""))
    known = ("float32", "bf16", "fp8", "nvfp4")
    return (known.index(name) if name in known else len(known), name)


def label_of(words: str) -> str:
    """A label fit for pictures and lists: what a run says of itself is as untrusted as what its model wrote."""
    shown = " ".join(text.visible(words).split())
    return shown if len(shown) <= LABEL else f"{shown[: LABEL - 1]}\u2026"


def _served(run: Run) -> dict[str, str]:
    """How the requests were served: what accepted length and small differences of texts may depend on."""
    server = run.cell.get("server")
    own = server if isinstance(server, Mapping) else None
    found = {"TP": (own or run.cell).get("tp"), "concurrency": own.get("concurrency") if own else None,
             "batch": None if own is not None else run.cell.get("max_batch")}  # fmt: skip
    found["thinking"] = {"thinking_on": "on", "thinking_off": "off"}.get(str(run.fingerprint.get("mode")))
    return {name: str(value) for name, value in found.items() if value is not None}


def _labels(runs: Sequence[Run]) -> list[str]:
    """`K=7 nvfp4`, with whatever else differs between the runs, and a number where nothing does."""
    keys = [k for k in ("task", "target", "draft", "draft_width", "temperature", "seed", "limit", "engine")
            if len({str(r.cell.get(k)) for r in runs if k != "draft" or r.cell.get("k")}) > 1]  # fmt: skip
    plain = []
    served = [_served(run) for run in runs]
    names = dict.fromkeys(name for told in served for name in told)
    others = [name for name in names if len({told[name] for told in served if name in told}) > 1]
    for run, told in zip(runs, served, strict=True):
        words = [f"K={run.cell.get('k')}", quant_name(run.cell, run.provenance)]
        for key in keys:
            value = str(run.cell.get(key))
            if key == "limit" and value == "0":
                value, key = "whole", ""
            words.append(
                value if key in ("task", "target", "draft", "engine", "") else f"{key.replace('_', ' ')} {value}"
            )
        words += [f"{name} {told[name]}" for name in others if name in told]
        words += ["forced"] if run.forced else []
        plain.append(label_of(" ".join(w for w in words if w)))
    seen: dict[str, int] = {}
    out = []
    for label in plain:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if plain.count(label) == 1 else f"{label} #{seen[label]}")
    return out

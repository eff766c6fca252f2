"""`evalkit gate --audit SPEC`: how often this gate passes, fails and can't tell, at several true effects; and what it
has done over the runs that are stored. It reports; it never changes a margin or a threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from evalkit.baseline import Baseline, ReferenceScore, load_baseline, load_reference_scores
from evalkit.errors import EvalkitError
from evalkit.gate.common import combine
from evalkit.golden import GoldenValue, lookup, read_curve
from evalkit.golden.defaults import baseline_for, golden_path
from evalkit.layout import fold_lines
from evalkit.outlook import flips
from evalkit.percent import percent
from evalkit.records import Outcome
from evalkit.spec.audit_text import audit_text
from evalkit.spec.find import find_file
from evalkit.spec.model import CellSpec, Spec
from evalkit.spec.read import read_spec
from evalkit.spec.simulate import Effect, Rates, Truth, draw, geometric, outcome, passes
from evalkit.spec.standards import golden_file

FACTORS = (0.0, 0.5, 1.0, 1.5, 2.0, 4.0)  # true losses, in margins


def audit_spec(path: Path, *, runs_dir: Path, draws: int, seed: int, width: int = 0) -> str:
    """The audit of a specification, as text; laid out for `width` columns, 0: as wide as it is."""
    if draws < 10:
        raise EvalkitError(f"--draws is {draws}", "give at least 10; a rate of 5 % is known to 2 points from 400")
    from evalkit.spec.history import history_text

    spec = read_spec(path)
    cells = truths(spec)
    rows = list(simulate(spec, cells, draws=draws, seed=seed))
    return "\n".join([audit_text(spec, cells, rows, seed, width), "", fold_lines(history_text(spec, runs_dir), width)])


def simulate(spec: Spec, cells: Sequence[tuple[CellSpec, Truth]], *, draws: int, seed: int) -> Iterator[Rates]:
    """The rates at every true effect: no loss, then accuracy, then accepted length at multiples of the margin."""
    limits = cells[0][0].limits
    yield rates("no loss", cells, [Effect()] * len(cells), spec, draws, (seed, 0))
    for j, factor in enumerate(FACTORS[1:], start=1):
        losses = [factor * _accuracy_margin(c, t) for c, t in cells]
        if any(losses):
            words = f"accuracy {-100 * losses[0]:+.2g} pt ({factor:g} margins)"
            yield rates(words, cells, [Effect(accuracy=x) for x in losses], spec, draws, (seed, 1, j), factor == 1)
    if any(t.histogram for _, t in cells):
        for j, factor in enumerate(FACTORS[1:], start=1):
            loss = factor * limits.length_margin
            words = f"accepted length {percent(-loss, sign=True)} ({factor:g} margins)"
            effects = [Effect(length=factor * c.limits.length_margin if t.histogram else 0.0) for c, t in cells]
            yield rates(
                words, cells, effects, spec, draws, (seed, 2, j), factor == 1 and all(t.histogram for _, t in cells)
            )


def rates(
    what: str, cells: Sequence[tuple[CellSpec, Truth]], effects: Sequence[Effect], spec: Spec, draws: int,
    seed: Sequence[int], on_margin: bool = False,
) -> Rates:  # fmt: skip
    """The whole gate `draws` times: every cell's tests, Holm over the cells or their order, one outcome."""
    rng = np.random.default_rng(list(seed))
    ends = {o: 0 for o in Outcome}
    some = 0
    for _ in range(draws):
        found = [draw(t, e, c.limits, rng) for (c, t), e in zip(cells, effects, strict=True)]
        ended = [Outcome(outcome(p, c.limits.alpha)) for p, (c, _) in zip(found, cells, strict=True)]
        if spec.correction and len(cells) > 1:
            enough = passes(found, spec.alpha, in_order=spec.in_order)
            ended = [
                Outcome.INCONCLUSIVE if o is Outcome.PASS and not ok else o for o, ok in zip(ended, enough, strict=True)
            ]
        ends[combine(ended)] += 1
        some += Outcome.PASS in ended
    share = {o: n / draws for o, n in ends.items()}
    return Rates(
        what=what, draws=draws, passed=share[Outcome.PASS], any_passed=some / draws, failed=share[Outcome.FAIL],
        inconclusive=share[Outcome.INCONCLUSIVE], on_margin=on_margin,
    )  # fmt: skip


def truths(spec: Spec) -> list[tuple[CellSpec, Truth]]:
    """What each cell would be if nothing were lost, from its standards; cells broken on purpose are left out."""
    references = load_reference_scores(find_file(spec.scores, spec.folder, "file of published scores"))
    out = [(c, _truth(spec, c, references)) for c in spec.cells if not c.refused_by]
    if not out:
        raise EvalkitError(f"{spec.path.name} has no cell that is to pass", "an audit needs one")
    return out


def _truth(spec: Spec, cell: CellSpec, references: Sequence[ReferenceScore]) -> Truth:
    by_name = {ref.name: ref for ref in references}
    for name in (a.name for a in cell.limits.against):
        if name not in by_name:
            raise EvalkitError(f"{spec.path.name}: no published score {name!r}", f"use {', '.join(by_name)}")
    asked = [(by_name[a.name], a.margin or cell.limits.score_margin) for a in cell.limits.against]
    published = tuple((ref.n, margin) for ref, margin in asked)
    own = by_name.get(cell.published)
    base = None if cell.published or cell.figures else _baseline(spec, cell)
    if base is not None:
        n, score = base.n, base.score
    elif cell.figures is not None and cell.figures.n:
        n, score = cell.figures.n, (cell.figures.correct or 0) / cell.figures.n
    else:
        ref = own or (asked[0][0] if asked else None)
        if ref is None:
            raise EvalkitError(f"{spec.path.name}: nothing says how many questions cell {cell.name} has",
                               "record its baseline, or name a published score")  # fmt: skip
        n, score = ref.n, ref.score
    return Truth(
        n=n, score=score, discordant=flips(score), paired=base is not None or bool(cell.run),
        published=published, **_golden_truth(spec, cell),
    )  # fmt: skip


def _baseline(spec: Spec, cell: CellSpec) -> Baseline | None:
    if cell.baseline.endswith(".json"):
        return load_baseline(find_file(cell.baseline, spec.folder, "baseline"))
    if cell.baseline or not cell.setting:
        return None
    return baseline_for(str(cell.setting.get("target", "gradeschool-m3")), str(cell.setting.get("task", "gradeschool")))


def _golden_truth(spec: Spec, cell: CellSpec) -> dict:
    """Golden's histogram, size and design effect at the cell's K. A cell without a run and without a published length
    has no acceptance to simulate."""
    k = cell.setting.get("k") if cell.setting else None
    file = golden_file(spec, cell.golden) if cell.golden else None
    if file is None and cell.setting:
        usual = golden_path(str(cell.setting.get("target", "gradeschool-m3")), str(cell.setting.get("draft", "dspark")))
        file = usual if usual.exists() else None
    if not k or file is None:
        return {}
    value: GoldenValue = lookup(read_curve(file), k)
    if value.histogram is None or value.se is None:
        shape = geometric(value.accepted_length, k)
        return {"histogram": shape, "length": value.accepted_length, "measured": False}
    counts = np.array(value.histogram, dtype=np.float64)
    total, values = float(counts.sum()), np.arange(counts.size)
    mean = float(counts @ values) / total
    naive = (float(counts @ values**2) / total - mean**2) / total
    return {
        "histogram": tuple(float(x) for x in counts / total), "golden_documents": value.clusters or 0,
        "steps": total / (value.clusters or total), "design_effect": value.se**2 / naive if naive > 0 else 1.0,
    }  # fmt: skip


def _accuracy_margin(cell: CellSpec, truth: Truth) -> float:
    """The smallest margin of the cell: a loss of this much lies on a margin, and no cell that has it may pass."""
    margins = [*([cell.limits.accuracy_margin] if truth.paired else []), *(m for _, m in truth.published)]
    return min(margins, default=0.0)

"""The audit of a specification as text: what was simulated, the rates, and what they mean for the margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalkit.formats import percent
from evalkit.layout import fold_lines, table
from evalkit.spec.model import CellSpec, Spec
from evalkit.spec.simulate import Rates, Truth, slack

OFTEN = 0.2  # a sound configuration left open more often than this is worth a remark


def audit_text(
    spec: Spec, cells: Sequence[tuple[CellSpec, Truth]], rows: Sequence[Rates], seed: int, width: int = 0
) -> str:
    """The whole page, without the history of stored runs; laid out for `width` columns, 0: as wide as it is."""
    head, advice = "\n".join(_head(spec, cells, rows[0].draws, seed)), "\n".join(_advice(spec, rows))
    return "\n".join([fold_lines(head, width), _table(rows, width), fold_lines(advice, width)])


def _head(spec: Spec, cells: Sequence[tuple[CellSpec, Truth]], draws: int, seed: int) -> Iterator[str]:
    limits, truth = cells[0][0].limits, cells[0][1]
    holm = f", {spec.correction} over the cells" if spec.correction and len(cells) > 1 else ""
    yield (
        f"{spec.name}: {len(cells)} cells, {draws} simulated gates for each true effect, seed {seed}, "
        f"alpha {spec.alpha:g}{holm}"
    )
    kind = f"unpaired against {len(truth.published)} published scores"
    if truth.paired:
        kind = f"paired, {100 * truth.discordant:g} % of them flip without a loss (assumed)"
    yield f"  {truth.n} questions at {truth.score:.4f}; {kind}"
    if truth.histogram:
        golden = f"{truth.golden_documents} documents" if truth.measured else "curve only, uncertainty assumed"
        yield f"  golden: {golden}; {truth.steps:.1f} steps a document, design effect {truth.design_effect:.2f}"
    if silent := [c.name for c, t in cells if t.histogram is None and c.golden]:
        yield (
            f"  no accepted length is known of {', '.join(silent)}: as long as that is so the gate can't pass them; "
            "the rates below are those of the other checks"
        )
    yield (
        f"  margins: accuracy {100 * limits.accuracy_margin:g} pt, published {100 * limits.score_margin:g} pt, "
        f"length {100 * limits.length_margin:g} %"
    )
    yield ""


def _table(rows: Sequence[Rates], width: int) -> str:
    columns = ("true effect, in every cell", "gate passes", "some cell passes", "fails", "can't tell", "")
    cells = [
        (r.what, *map(percent, (r.passed, r.any_passed, r.failed, r.inconclusive)),
         "<- on the margin" if r.on_margin else "")
        for r in rows
    ]  # fmt: skip
    return table(columns, cells, "lrrrrl", width, indent=2)


def _advice(spec: Spec, rows: Sequence[Rates]) -> Iterator[str]:
    yield ""
    for r in (r for r in rows if r.on_margin):
        limit = spec.alpha + slack(spec.alpha, r.draws)
        words = f"MORE than alpha + 3 simulation errors ({100 * limit:.1f} %)"
        if r.any_passed <= limit:
            words = "at most alpha" if r.any_passed <= spec.alpha else "within the simulation's error of alpha"
        yield f"  false passes at {r.what}: {100 * r.any_passed:.1f} %, {words}"
    good = rows[0]
    yield f"  false fails without any loss: {100 * good.failed:.1f} %; can't tell: {100 * good.inconclusive:.1f} %"
    if good.inconclusive > OFTEN:
        yield "  a sound configuration is often left open: take more questions, repeats, or a wider margin beforehand"

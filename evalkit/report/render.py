"""Tables -> one self-contained HTML page: no script, nothing loaded, every stored text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from evalkit.acceptance import AcceptanceStats, by_answer_length, by_category, positions
from evalkit.baseline import Baseline, ReferenceScore, atomic_write, mark
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Run, Verdict
from evalkit.report import charts, drafts, samples, summary, tables, text

TEMPLATES = Path(__file__).parent / "templates"
ICONS = {"pass": "✓", "fail": "✗", "inconclusive": "?", summary.NOT_JUDGED: "·"}


def render(
    run: Run,
    verdict: Verdict | None,
    *,
    acceptance: AcceptanceStats | None,
    golden: GoldenValue | Curve | None = None,
    baseline: Baseline | None = None,
    references: Sequence[ReferenceScore] = (),
) -> str:
    """The page as text. What is missing (golden, baseline, steps) is said in words in its place.

    `golden` is the value at the run's K or the whole curve; the curve also gives an implied survival.
    """
    k = run.cell.get("k") or 0
    steps = acceptance if acceptance is not None and acceptance.steps else None
    view = drafts.golden_view(golden, k, mark(run, "mode")) if k else drafts.GoldenView()
    return _template().render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        run=run,
        k=k,
        outcome=summary.outcome(verdict),
        icons=ICONS,
        reason=summary.reason(verdict),
        facts=tables.configuration(run),
        warnings=tables.warnings(run),
        checks=[(check, tables.paired_words(check)) for check in verdict.checks] if verdict else [],
        notes=[*(verdict.notes if verdict else ()), *run.provenance.get("notes", ())],
        scores=tables.score_table(run, baseline),
        baseline=baseline,
        references=tables.reference_table(run, references),
        acceptance=steps,
        no_draft=drafts.NO_DRAFT,
        golden=view,
        drafts=_draft_parts(run, verdict, steps, view) if steps is not None else None,
        buckets=tables.bucket_table(run),
        disagreement=tables.disagreement_table(run),
        groups=samples.changed_samples(run, baseline),
        failed=samples.failed_samples(run),
        provenance=tables.provenance(run),
    )


def _inert(value: object) -> object:
    """Every text that the template prints, before it is escaped; only our own markup is left as it is."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _keep_together(words: str) -> str:
    """Numbers that must not be broken over two lines: `0.94 ± 0.01`, `0.93 .. 0.95`."""
    for joint in (" ± ", " .. ", " %"):
        words = words.replace(joint, joint.replace(" ", "\u00a0"))
    return words


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_inert,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["keep_together"] = _keep_together
    return environment.get_template("report.html.j2")


def _draft_parts(
    run: Run, verdict: Verdict | None, found: AcceptanceStats, view: drafts.GoldenView
) -> dict[str, object]:
    shares = [n / found.steps for n in found.histogram]
    curve = positions(run.samples, found.k)
    bands = [p.survival_band for p in curve]
    categories = [g for g in by_category(run.samples, found.k) if g.label]
    lengths = by_answer_length(run.samples, found.k)
    return {
        "figures": drafts.acceptance_table(found, view),
        "distribution": drafts.distribution_table(verdict),
        "histogram": drafts.histogram_table(found, view),
        "histogram_chart": Markup(charts.histogram(shares, view.histogram)),
        "survival": drafts.survival_table(curve, view),
        "survival_chart": Markup(charts.survival(found.survival, view.survival, bands)),
        "banded": any(bands),
        "lengths": drafts.group_table("lengths", "Accepted length by tokens of the answer", "tokens", lengths),
        "categories": drafts.group_table("categories", "Accepted length by category", "category", categories),
        "calibration": drafts.calibration_table(found.calibration),
    }


def write_page(page: str, path: Path) -> Path:
    """Writes the page to `path`, whole or not at all, and returns `path`."""
    atomic_write(path, page)
    return path

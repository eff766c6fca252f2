"""Runs -> one self-contained HTML page: nothing loaded, one script known by its hash, every stored text escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from evalkit import layout
from evalkit.acceptance import by_category
from evalkit.baseline import Baseline, ReferenceScore
from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.gate import GateSpec
from evalkit.golden import Curve, GoldenValue
from evalkit.online_quant import quant_name
from evalkit.records import Run, Verdict
from evalkit.report import (
    again,
    best,
    bundle,
    cards,
    checks,
    compare,
    drafts,
    figures,
    grid,
    origin,
    samples,
    subsets,
    tables,
    text,
)
from evalkit.report.subject import Subject, label_of

TEMPLATES = Path(__file__).parent / "templates"
ICONS = {"pass": "✓", "fail": "✗", "inconclusive": "?", cards.NOT_JUDGED: "·"}
SCORE_PLOTS = ("loss", "scores", "lengths", "mde")


def render(
    run: Run,
    verdict: Verdict | None,
    *,
    golden: GoldenValue | Curve | None = None,
    baseline: Baseline | None = None,
    references: Sequence[ReferenceScore] = (),
) -> str:
    """The page of one run. `golden` is the value at its K or the whole curve, which also gives an implied survival."""
    label = label_of(f"K={run.cell.get('k')} {quant_name(run.cell, run.provenance)}")
    return render_page(
        [Subject(run=run, verdict=verdict, golden=golden, baseline=baseline, references=tuple(references), label=label)]
    )


def render_page(found: Sequence[Subject], *, full: str = "", budget: int = bundle.BUDGET) -> str:
    """The page of several runs. `full` names the file with all samples, for a page that can't hold them."""
    packed = bundle.bundle(found, budget)
    drawn = figures.drawn(figures.plots(found))
    single = len(found) == 1
    chosen = best.best_of(found)
    rows = grid.rows(found, chosen)
    labels = [s.label for s in found]
    draft_plots = [
        {"name": name, "plots": [p for p in drawn if p.group == name and p.name not in SCORE_PLOTS]}
        for name, _ in figures.groups(found)
    ]
    return template("report.html.j2").render(
        **page_parts(),
        single=single,
        outcome=cards.outcome([s.verdict for s in found]),
        headline=cards.headline(found),
        title=title(found),
        origin=origin.words(found),
        contents=_contents(found),
        mixed=cards.mixed(found),
        warnings=_warnings(found),
        cards=cards.cards(found[0]) if single else (),
        matrices=grid.matrices(rows),
        columns=grid.columns(found),
        rows=rows,
        best=[b.words(labels) for b in chosen],
        score_plots=[p for p in drawn if p.name in SCORE_PLOTS],
        draft_plots=draft_plots,
        acceptance_missing=_without_acceptance(found),
        comparison=_comparison(found) if len(found) == 2 else None,
        details=[_detail(s) for s in found],
        capped=capped_words(packed, full),
        blocks=packed.blocks,
        questions=packed.questions,
    )  # fmt: skip


def _warnings(found: Sequence[Subject]) -> list[str]:
    said = [f"{s.label}: {w}" if len(found) > 1 else w for s in found for w in s.warnings]
    both = compare.warning(found[0].run, found[1].run) if len(found) == 2 else ""
    return [both[:1].upper() + both[1:], *said] if both else said


def title(found: Sequence[Subject]) -> str:
    """What was run: the settings that all runs share, and how many runs there are."""
    cells = [s.run.cell for s in found]
    words = []
    for key in ("task", "target", "draft"):
        values = list(dict.fromkeys(str(c.get(key)) for c in cells if key != "draft" or c.get("k")))
        words.append(", ".join(values[:3]) + (" ..." if len(values) > 3 else ""))
    name = " \u00b7 ".join(w for w in words if w)
    return f"{name} \u00b7 {found[0].label}" if len(found) == 1 else f"{name} \u00b7 {len(found)} runs"


def capped_words(packed: bundle.Bundle, full: str) -> str:
    if not packed.capped:
        return ""
    where = f"all are in {full}, beside this page" if full else "the stored runs have all of them"
    return (
        f"{text.count(packed.shown)} of {text.counting(packed.total, 'sample')} are in this page: those to read first "
        f"(flipped, wrong, without an answer, readings that disagree) and an even spread of the rest; {where}."
    )


def _contents(found: Sequence[Subject]) -> list[tuple[str, str]]:
    first = [("checks", "Checks")] if len(found) == 1 else [("sweep", "Sweep")]
    first += [("comparison", "Comparison")] if len(found) == 2 else []
    return [*first, ("score", "Score"), ("acceptance", "Acceptance"), ("samples", "Samples"),
            ("again", "Where this comes from")]  # fmt: skip


def _without_acceptance(found: Sequence[Subject]) -> list[str]:
    out = []
    for s in found:
        words = ""
        if s.k == 0:
            words = drafts.NO_DRAFT
        elif not s.acceptance.steps:
            words = f"No verify step was counted in this run of K={s.k}: there is no accepted length to report."
            words += f" {counter_words(s.run)}"
        if words:
            out.append(words.strip() if len(found) == 1 else f"{s.label}: {words.strip()}")
    return out


def counter_words(run: Run) -> str:
    """What the engine's own counters say of acceptance where no steps are stored; "" where they say nothing."""
    named = {k: v for k, v in run.counters.items() if isinstance(v, int | float | dict) and _about_drafts(k)}
    if not named:
        return ""
    told = "; ".join(f"{name.replace('_', ' ')} {text.plain(value)}" for name, value in named.items())
    return f"The engine's counters say: {told}. They have no steps, so no position, histogram or interval can be shown."


def _about_drafts(name: str) -> bool:
    return any(word in name for word in ("accept", "draft", "spec", "verify"))


def _detail(s: Subject) -> dict[str, Any]:
    verdict, run = s.verdict, s.run
    return {
        "index": s.index,
        "link": s.link,
        "label": s.label,
        "outcome": cards.NOT_JUDGED if verdict is None else verdict.outcome.value,
        "checks": checks.rows(verdict),
        "notes": [*(verdict.notes if verdict else ()), *run.provenance.get("notes", ())],
        "scores": tables.score_table(run, s.partner, s.not_comparable),
        "baseline": s.baseline,
        "not_comparable": s.not_comparable,
        "references": tables.reference_table(run, s.references),
        "subsets": subsets.table(s.categories),
        "clustered": subsets.clustered_words(s.categories),
        "buckets": tables.bucket_table(run),
        "errors": samples.error_table(run, s.index),
        "disagreement": tables.disagreement_table(run),
        "cut": drafts.cut_words(s.acceptance),
        "golden_missing": s.view.missing if s.k else (),
        "drafts": _draft_parts(s) if s.acceptance.steps else None,
        "flips": samples.flips_table(run, s.partner, s.index),
        "facts": tables.configuration(run),
        "provenance": tables.provenance(run),
        "reproduce": again.reproduce(run),
    }


def _draft_parts(s: Subject) -> dict[str, text.Table]:
    found, run = s.acceptance, s.run
    categories = [g for g in by_category(run.samples, found.k) if g.label]
    return {
        "figures": drafts.acceptance_table(found, s.view),
        "distribution": drafts.distribution_table(s.verdict),
        "histogram": drafts.histogram_table(found, s.view),
        "survival": drafts.survival_table(s.curve, s.view, s.by_draft),
        "lengths": drafts.group_table("lengths", "Accepted length by tokens of the answer", "tokens", s.by_length),
        "categories": drafts.group_table("categories", "Accepted length by category", "category", categories),
        "calibration": drafts.calibration_table(found.calibration),
    }


def _comparison(found: Sequence[Subject]) -> dict[str, Any]:
    a, b = found
    made = compare.compare(a.run, b.run)
    return {
        "a": a,
        "b": b,
        "flips": compare.flip_table(made),
        "figures": compare.figures_table(made),
        "subsets": subsets.table(made.categories, "B", "A"),
        "lost": compare.flipped_table("lost", made.lost),
        "gained": compare.flipped_table("gained", made.gained),
        "n_lost": len(made.lost),
        "n_gained": len(made.gained),
        "n_texts": len(made.divergences),
        "divergences": compare.divergence_table(made),
    }


def _inert(value: object) -> object:
    """Every text that the template prints, before it is escaped; only our own markup is left as it is."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _figures(words: str) -> str:
    """Our own words, numbers as a page shows them and none broken over two lines."""
    return layout.joined(text.typeset(words))


@cache
def page_parts() -> dict[str, Any]:
    """Style and script of every page, and the script's hash: the only one that the page's policy lets run."""
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return {
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_inert,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["joined"] = layout.joined
    environment.filters["figures"] = _figures
    environment.filters["markup"] = Markup  # of our own figures only
    environment.globals["icons"] = ICONS
    environment.globals["tie_gap"] = f"{GateSpec().tie_gap:g}"
    environment.globals["check_columns"] = checks.COLUMNS
    return environment


def write_page(page: str, path: Path) -> Path:
    """Writes the page to `path`, whole or not at all, and returns `path`."""
    return write_text(path, page)


def write_report(found: Sequence[Subject], path: Path) -> Path:
    """The page, and beside it a file with all samples where the page can't hold them."""
    if path.is_dir():
        raise EvalkitError(f"{path} is a folder, not a file", f"name the page in it: -o {path / 'report.html'}")
    full = bundle.beside(path)
    page = render_page(found, full=full.name)
    if full.name in page:
        path.parent.mkdir(parents=True, exist_ok=True)
        bundle.write_all(found, full)
    else:
        full.unlink(missing_ok=True)  # of a page written before
    return write_page(page, path)

"""The page's tables as markdown, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.report import again, best, cards, checks, compare, drafts, grid, subsets, tables, text
from evalkit.report.subject import Subject
from evalkit.report.text import Table, inline

HIDDEN = "<details><summary>{}</summary>\n"


def page_markdown(found: Sequence[Subject]) -> str:
    """One run: answers, checks, scores, provenance. Several: the sweep's table, what is best, each run's checks that
    do not pass. Two: what changed from the first to the second as well."""
    outcome = cards.outcome([s.verdict for s in found])
    parts = [f"**{outcome}**: {inline(cards.headline(found))}\n"]
    if mixed := cards.mixed(found):
        parts.append(f"> **{inline(mixed)}**\n")
    if len(found) == 1:
        (s,) = found
        parts += [_cards(s), *(_checks(s))]
        parts += [_table(tables.score_table(s.run, s.partner, s.not_comparable)), *_warned(s)]
    else:
        chosen = best.best_of(found)
        parts.append(_sweep(found, chosen))
        parts.append("\n".join(f"- {inline(b.words([s.label for s in found]))}" for b in chosen) + "\n")
        for s in found:
            parts += _warned(s)
    if len(found) == 2:
        parts += _comparison(found)
    for s in found:
        parts += [HIDDEN.format(f"{inline(s.label)}: run {inline(s.run.id)}")]
        parts += _checks(s) if len(found) > 1 else []
        parts += [_table(drafts.acceptance_table(s.acceptance, s.view))] if s.acceptance.steps else []
        rows = [(f.name, f.value) for f in tables.configuration(s.run)]
        parts += [_table(subsets.table(s.categories))] if s.categories else []
        parts += [f"{inline(words)}\n"] if (words := subsets.clustered_words(s.categories)) else []
        parts += [_rows(("setting", "value"), "ll", rows), _block(again.reproduce(s.run)), "</details>\n"]
    return "\n".join(parts)


def write_tables(words: str, path: Path) -> Path:
    """Writes the markdown to `path`, whole or not at all, and returns `path`."""
    if path.is_dir():
        raise EvalkitError(f"{path} is a folder, not a file", f"name the file in it: -o {path / 'report.md'}")
    return write_text(path, words)


def _cards(s: Subject) -> str:
    rows = [(c.question, c.outcome, c.figure, "; ".join((c.words, *c.reasons))) for c in cards.cards(s)]
    return _rows(("question", "answer", "figure", "why"), "llrl", rows)


def _checks(s: Subject) -> list[str]:
    if s.verdict is None:
        return []
    rows = [row.cells for row in checks.rows(s.verdict)]
    notes = "".join(f"- {inline(note)}\n" for note in s.verdict.notes)
    return [_rows(checks.COLUMNS, checks.ALIGN, rows), *([notes] if notes else [])]


def _warned(s: Subject) -> list[str]:
    return [f"> {inline(s.label)}: {inline(words)}\n" for words in s.warnings]


def _sweep(found: Sequence[Subject], chosen: Sequence[best.Best]) -> str:
    columns = grid.columns(found)
    made = grid.rows(found, chosen)
    rows = [[f"{e.text} ({e.note})" if e.note else e.text for e in row.entries] + [row.best] for row in made]
    return _rows([name for name, _ in columns] + [""], "".join(a for _, a in columns) + "l", rows)


def _comparison(found: Sequence[Subject]) -> list[str]:
    a, b = found
    made = compare.compare(a.run, b.run)
    return [
        *([f"> {inline(words)}\n"] if (words := compare.warning(a.run, b.run)) else []),
        f"A is {inline(a.label)} (run {inline(a.run.id)}), B is {inline(b.label)} (run {inline(b.run.id)}).\n",
        _table(compare.flip_table(made)), _table(compare.figures_table(made)),
        *([_table(subsets.table(made.categories, "B", "A"))] if any(c.told for c in made.categories) else []),
        HIDDEN.format("Answers that flipped, and where the texts part"),
        _table(compare.flipped_table("lost", made.lost)), _table(compare.flipped_table("gained", made.gained)),
        _table(compare.divergence_table(made)), "</details>\n",
    ]  # fmt: skip


def _table(t: Table) -> str:
    if not t.rows:
        return f"{inline(t.missing)}\n" if t.missing else ""
    return f"{inline(t.caption)}\n\n" + _rows(t.columns, t.align, t.rows)


def _rows(columns: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(inline(c) for c in columns) + " |",
             "|" + "|".join("--:" if a == "r" else "---" for a in align) + "|"]  # fmt: skip
    return "\n".join([*lines, *("| " + " | ".join(inline(c) for c in row) + " |" for row in rows)]) + "\n"


def _block(words: str) -> str:
    """A code block that what is in it can't close."""
    fence = "`" * max(3, 1 + max((len(run) for run in _ticks(words)), default=0))
    return f"{fence}sh\n{text.visible(words)}\n{fence}\n"


def _ticks(words: str) -> list[str]:
    return re.findall("`+", words)

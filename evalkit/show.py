"""A stored run as plain text: acceptance by position and group, answers, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evalkit.acceptance import (
    AcceptanceStats,
    Group,
    by_answer_length,
    by_category,
    counted_positions,
    of_run,
    positions,
)
from evalkit.acceptance.model import FEW_CLUSTERS
from evalkit.console import path_rows
from evalkit.fingerprint import online_facts, verify_facts
from evalkit.layout import fold, pairs, table
from evalkit.listing import layout_of
from evalkit.records import Run
from evalkit.report import text
from evalkit.report.drafts import cut_words
from evalkit.shares import bucket_counts
from evalkit.stats import Interval

SETTINGS = ("task", "target", "draft", "k", "quant", "draft_width", "temperature", "top_p", "top_k", "shots",
            "max_tokens", "seed", "limit")  # fmt: skip
ENDS = {"length": "cut by the token limit", "stop": "ended by itself"}  # by finish_reason


def run_text(run: Run, width: int = 0) -> str:
    """All parts that the run has something for, laid out for `width` columns (0: as wide as they are). Lengths are in
    tokens a step, rates are fractions of 1."""
    found = of_run(run)
    parts = [_acceptance(run, found, width)]
    if found.steps and found.survival:
        parts.append(_positions(run, found, width))
    if any(s.steps or s.counts for s in run.samples):
        parts.append(_groups("by tokens of the answer", "tokens", by_answer_length(run.samples, found.k), width))
        categories = by_category(run.samples, found.k)
        if any(g.label for g in categories):
            parts.append(_groups("by category", "category", categories, width))
    parts += [_part("paths", path_rows(run), width), *_buckets(run, width), _part("settings", _settings(run), width)]
    return "\n\n".join(part for part in parts if part)


def _part(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    return f"{title}\n{pairs(rows, width)}" if rows else ""


def _acceptance(run: Run, found: AcceptanceStats, width: int) -> str:
    if found.accepted_length is None or found.acceptance_rate is None:
        return ""
    rows = [("accepted length", f"{text.length(found.accepted_length)}{_span(found)}")]
    if found.pooled_differs():
        rows.append(("mean of requests", f"{text.length(found.mean_of_requests)}  (not the published definition)"))
    if not found.by_step:
        rows.append(("from", found.source))
    else:
        rows.append(("trimmed at stops", text.length(found.accepted_length_trimmed)))
    if found.emitted_per_step is not None:
        rows.append(("tokens a forward", f"{text.length(found.emitted_per_step)}  (steps without a draft included)"))
    rows.append(("acceptance rate", f"{text.share(found.acceptance_rate)}  (of K={found.k} drafts; falls with K)"))
    if found.survival:
        rows.append(("useful K", f"{found.useful_k}  (last position that over 5 % of the steps reach)"))
    if found.design_effect is not None:
        rows.append(("design effect", f"{found.design_effect:.2f}  ({found.clusters} documents)"))
    if found.by_step:
        rows.append(("steps", f"{found.steps} verify, {found.steps_without_draft} without a draft"))
        rows.append(("steps cut", f"{found.cut_at_stop} at a stop, {found.cut_at_limit} at the token limit"))
    else:
        rows.append(("steps", f"{found.steps} verify  (not told: those cut, those without a draft)"))
    rows.append(("temperature", f"{run.cell.get('temperature', 'not recorded')}"))
    mode = "FORCED: no evidence" if found.forced else "looks forced" if found.looks_forced else "real"
    rows.append(("acceptance is", mode))
    return _part("acceptance", rows, width)


def _span(found: AcceptanceStats) -> str:
    if found.interval is None:
        return "  (one document: no interval)" if found.by_step else "  (no spread is told)"
    few = f", few documents: {found.clusters}" if found.unit == "samples" and found.clusters < FEW_CLUSTERS else ""
    return f"  95 % {text.interval(found.interval.low, found.interval.high, 3)}{few}"


def _positions(run: Run, found: AcceptanceStats, width: int) -> str:
    """Survival and conditional rates, and what the second leave out."""
    rows = [
        (str(p.position), str(p.steps), text.share(p.survival), _band(p.survival_band), str(p.judged),
         "none" if p.conditional is None else text.share(p.conditional), _band(p.conditional_band))
        for p in (positions(run.samples, found.k) if found.by_step else counted_positions(found))
    ]  # fmt: skip
    columns = ("j", "steps", "S_j", "95 % band", "judged", "kept", "95 % band")
    words = "by position: survival S_j of all steps; kept: of the blocks judged at j, where all drafts before were kept"
    notes = [*(["bands hold for all j at once"] if found.by_step else []), cut_words(found)]
    return "\n".join([
        fold(words, width, later="  "), table(columns, rows, "rrrrrrr", width, indent=2),
        *(fold(note, width, "  ", "  ") for note in notes),
    ])  # fmt: skip


def _band(band: Interval | None) -> str:
    return text.interval(band.low, band.high) if band is not None else "none"


def _groups(title: str, label: str, groups: Sequence[Group], width: int) -> str:
    rows = [
        (g.label or "none", str(g.samples), str(g.steps),
         "-" if g.accepted_length is None else text.length(g.accepted_length) + text.spread(g.se, 3))
        for g in groups
    ]  # fmt: skip
    return f"{title}\n{table((label, 'samples', 'steps', 'accepted length'), rows, 'lrrl', width, indent=2)}"


def _buckets(run: Run, width: int) -> list[str]:
    """What became of the answers, in the buckets of every other table, and how those that came ended."""
    found = {bucket.value: n for bucket, n in bucket_counts(run.samples).items() if n}
    ends = Counter(ENDS.get(s.finish_reason, "end not recorded") for s in run.samples if not s.error)
    parts = {"answers": found, "ends of the answers": dict(ends.most_common())}
    return [_part(title, [(name, str(n)) for name, n in counts.items()], width) for title, counts in parts.items()]


def _settings(run: Run) -> list[tuple[str, str]]:
    told = {key: run.cell[key] for key in SETTINGS if run.cell.get(key) not in (None, "")}
    told |= layout_of(run.cell) | verify_facts(run.cell) | online_facts(run)
    return [(name, str(value)) for name, value in told.items()]

"""A stored run as plain text of at most 80 columns: acceptance by position and group, answers, settings."""

from __future__ import annotations

import textwrap
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
from evalkit.fingerprint import verify_facts
from evalkit.records import Run
from evalkit.report import text
from evalkit.shares import bucket_counts
from evalkit.stats import Interval

WIDTH = 80
SETTINGS = ("task", "target", "draft", "k", "quant", "draft_width", "temperature", "top_p", "top_k", "shots",
            "max_tokens", "seed", "batch", "limit")  # fmt: skip
ENDS = {"length": "cut by the token limit", "stop": "ended by itself"}  # by finish_reason


def run_text(run: Run) -> str:
    """All parts that the run has something for. Lengths are in tokens a step, rates are fractions of 1."""
    found = of_run(run)
    parts = [_acceptance(run, found)]
    if found.steps and found.survival:
        parts.append(_positions(run, found))
    if any(s.steps or s.counts for s in run.samples):
        parts.append(_groups("by tokens of the answer", by_answer_length(run.samples, found.k)))
        categories = by_category(run.samples, found.k)
        if any(g.label for g in categories):
            parts.append(_groups("by category", categories))
    parts += [_paths(run), _buckets(run), _settings(run)]
    return "\n\n".join(part for part in parts if part)


def _acceptance(run: Run, found: AcceptanceStats) -> str:
    if found.accepted_length is None or found.acceptance_rate is None:
        return ""
    rows = [("accepted length", f"{text.length(found.accepted_length)}{_span(found)}")]
    if found.pooled_differs():
        rows.append(("mean of requests", f"{text.length(found.mean_of_requests)}  (not the published definition)"))
    if not found.by_step:
        rows.append(("from", found.source))
    else:
        rows.append(("  trimmed at stops", text.length(found.accepted_length_trimmed)))
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
    return "acceptance\n" + "\n".join(f"  {what:18} {value}" for what, value in rows)


def _span(found: AcceptanceStats) -> str:
    if found.interval is None:
        return "  (one document: no interval)" if found.by_step else "  (no spread is told)"
    few = f", few documents: {found.clusters}" if found.unit == "samples" and found.clusters < FEW_CLUSTERS else ""
    return f"  95 % {text.interval(found.interval.low, found.interval.high, 3)}{few}"


def _positions(run: Run, found: AcceptanceStats) -> str:
    rows = [
        "by position: survival S_j of all steps, conditional S_j / S_(j-1)",
        "  j   steps  S_j     95 %, all j at once  conditional  95 %, all j at once",
    ]
    for p in positions(run.samples, found.k) if found.by_step else counted_positions(found):
        conditional = "none  " if p.conditional is None else text.share(p.conditional)
        rows.append(
            f"  {p.position:<2} {p.steps:>6}  {text.share(p.survival)}  {_band(p.survival_band)}     {conditional}"
            f"       {_band(p.conditional_band)}"
        )
    return "\n".join(row.rstrip() for row in rows) if found.steps else ""


def _band(band: Interval | None) -> str:
    return text.interval(band.low, band.high) if band is not None else " " * 16


def _groups(title: str, groups: Sequence[Group]) -> str:
    width = max(24, *(min(len(g.label), 40) for g in groups)) if groups else 24
    rows = [f"{title:{width + 2}} samples    steps  accepted length"]
    for g in groups:
        length = "-" if g.accepted_length is None else text.length(g.accepted_length)
        rows.append(
            f"  {(g.label or 'none')[:width]:{width}} {g.samples:7} {g.steps:8}  {length}{text.spread(g.se, 3)}"
        )
    return "\n".join(rows)


def _paths(run: Run) -> str:
    """Paths of the engine and the share of the decode steps that each served."""
    rows = [f"{name} {value}" for name, value in path_rows(run)]
    wrapped = [textwrap.fill(row, 76, initial_indent="  ", subsequent_indent="    ") for row in rows]
    return "\n".join(["paths", *wrapped]) if rows else ""


def _buckets(run: Run) -> str:
    """What became of the answers, in the buckets of every other table, and how those that came ended."""
    found = {bucket.value: n for bucket, n in bucket_counts(run.samples).items() if n}
    ends = Counter(ENDS.get(s.finish_reason, "end not recorded") for s in run.samples if not s.error)
    parts = {"answers": found, "ends of the answers": dict(ends.most_common())}
    return "\n\n".join(
        f"{title}\n" + "\n".join(f"  {name:24} {n}" for name, n in counts.items())
        for title, counts in parts.items()
        if counts
    )


def _settings(run: Run) -> str:
    words = [f"{key} {run.cell[key]}" for key in SETTINGS if run.cell.get(key) not in (None, "")]
    words += [f"{key} {value}" for key, value in verify_facts(run.cell).items()]
    lines, line = [], " "
    for word in words:
        if len(line) + len(word) + 3 > WIDTH and line.strip():
            lines.append(line)
            line = " "
        line += f" {word}" if not line.strip() else f", {word}"
    return "settings\n" + "\n".join([*lines, line])

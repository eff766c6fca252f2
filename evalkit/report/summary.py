"""The run in a few rows: for the terminal's table, and as markdown. Same words and numbers as the page."""

from __future__ import annotations

from evalkit.acceptance import AcceptanceStats
from evalkit.baseline import FLEXIBLE, STRICT
from evalkit.records import Outcome, Run, Verdict
from evalkit.report import text
from evalkit.report.samples import scored
from evalkit.report.tables import configuration, warnings
from evalkit.shares import bucket_counts

NOT_JUDGED = "not judged"


def outcome(verdict: Verdict | None) -> str:
    return NOT_JUDGED if verdict is None else verdict.outcome.value


def reason(verdict: Verdict | None) -> str:
    """The verdict's reason in one sentence: the first check that decided it, and how many others did."""
    if verdict is None:
        return "No gate was run on this run: its numbers are shown, nothing is concluded."
    if not verdict.checks:
        return "Nothing was compared."
    if verdict.outcome is Outcome.PASS:
        n = len(verdict.checks)
        return "The only check passes." if n == 1 else f"All {n} checks pass."
    decided = [c for c in verdict.checks if c.outcome is verdict.outcome]
    if not decided:
        return f"No single check says {verdict.outcome.value}."
    first, more = decided[0], len(decided) - 1
    others = f" ({more} more {'check says' if more == 1 else 'checks say'} {verdict.outcome.value})" if more else ""
    return f"{first.name}: {first.message.rstrip('.')}{others}."


def accepted_length_words(run: Run, acceptance: AcceptanceStats | None) -> str:
    """`4.042 (3.980 .. 4.104), 12,345 steps`; or why there is none."""
    if run.cell.get("k") == 0:
        return "none at K=0"
    if acceptance is None or acceptance.accepted_length is None:
        return "no verify step was counted"
    span = acceptance.interval
    counted = acceptance.source != "steps"
    none = "no spread is told" if counted else "no interval from one sample"
    limits = none if span is None else text.interval(span.low, span.high, 3)
    words = f"{text.length(acceptance.accepted_length)} ({limits}), {text.count(acceptance.steps)} steps"
    return f"{words}, from {acceptance.source}" if counted else words


def summary_table(run: Run, acceptance: AcceptanceStats | None, verdict: Verdict | None) -> list[tuple[str, str]]:
    """(name, value) rows, top to bottom."""
    failed = sum(bool(s.error) for s in run.samples)
    truncated = sum(not s.error and s.finish_reason == "length" for s in run.samples)
    rows = [("run", run.id)]
    rows += [(fact.name, fact.value) for fact in configuration(run)]
    rows += [("warning", words) for words in warnings(run)]
    rows += [(name, text.score(*scored(run.samples, name))) for name in (STRICT, FLEXIBLE)]
    graded = [c for s in run.samples if not s.error and (c := s.canonical) is not None]
    if graded:
        rows.append(("canonical", text.score(sum(c.correct is True for c in graded), len(graded))))
        rows.append(("buckets", text.counted({b.value: n for b, n in bucket_counts(run.samples).items()})))
    rows.append(("accepted length", accepted_length_words(run, acceptance)))
    if acceptance is not None and acceptance.acceptance_rate is not None:
        rows.append(("acceptance rate", text.share(acceptance.acceptance_rate)))
    rows.append(("failed, truncated", f"{text.count(failed)}, {text.count(truncated)}"))
    if run.seconds > 0:
        speed = f" ({text.speed(run.output_tokens, run.seconds)})" if run.output_tokens else ""
        rows.append(("generated", f"{text.count(run.output_tokens)} tokens in {text.duration(run.seconds)}{speed}"))
    rows.append(("verdict", f"{outcome(verdict)}: {reason(verdict)}"))
    return rows


def summary_markdown(run: Run, acceptance: AcceptanceStats | None, verdict: Verdict | None) -> str:
    """The summary and the checks as two markdown tables, for a pull request."""
    lines = [f"**{outcome(verdict)}**: {_inline(reason(verdict))}", "", "| | |", "|---|---|"]
    lines += [f"| {_inline(name)} | {_inline(value)} |" for name, value in summary_table(run, acceptance, verdict)[:-1]]
    if verdict is None:
        return "\n".join(lines) + "\n"
    lines += ["", "| check | outcome | expected | found |", "|---|---|---|---|"]
    for check in verdict.checks:
        cells = (check.name, check.outcome.value, check.expected, check.found)
        lines.append("| " + " | ".join(_inline(cell) for cell in cells) + " |")
    lines += [f"- {_inline(note)}" for note in ("", *verdict.notes) if note]
    return "\n".join(lines) + "\n"


def _inline(words: str) -> str:
    """Text inside a markdown table cell: one line, nothing that markdown or HTML would act on."""
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`"), ("\n", " ")):
        words = words.replace(raw, safe)
    return text.visible(words)

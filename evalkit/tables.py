"""Stored runs as pandas frames, for a notebook: samples, steps, acceptance by position, by group, and checks.

    from pathlib import Path
    from evalkit.store import load_run
    from evalkit import tables
    runs = [load_run(folder) for folder in Path("runs").iterdir()]
    tables.runs(runs)

Every frame has the run's id in `run`, so frames of several runs can be put together. Lengths are tokens a step with
the target's own token, rates and shares fractions of 1, times seconds. What has no value is NaN or None there.
pandas is imported when a frame is made, not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from evalkit.acceptance import by_answer_length, by_category, of_run, positions
from evalkit.fingerprint import online_facts
from evalkit.records import Run, Verdict

if TYPE_CHECKING:
    from pandas import DataFrame


def _frame(rows: Iterable[dict[str, Any]], columns: list[str]) -> DataFrame:
    import pandas

    made = pandas.DataFrame(list(rows))
    return made if len(made.columns) else pandas.DataFrame(columns=columns)


def _k(run: Run) -> int:
    return int(run.cell.get("k") or 0)


def samples(runs: Iterable[Run]) -> DataFrame:
    """One row a sample: what was asked and answered, tokens, seconds, `score:FILTER` (0 or 1; lm-eval's filters)
    and its own accepted length (1 + accepted / steps of that request alone)."""
    rows = []
    for run in runs:
        for s in run.samples:
            drafted = [step for step in s.steps if step.k]
            length = 1 + sum(t.accepted for t in drafted) / len(drafted) if drafted else None
            rows.append(
                {
                    "run": run.id, "k": _k(run), "temperature": run.cell.get("temperature"), "doc_id": s.doc_id,
                    "doc_hash": s.doc_hash, "prompt_hash": s.prompt_hash, "category": s.category, "gold": s.gold,
                    "text": s.text, "finish_reason": s.finish_reason, "error": s.error, "tokens": s.tokens,
                    "prompt_tokens": s.prompt_tokens, "seconds": s.seconds, "steps": len(drafted),
                    "accepted_length": length, "forced": s.forced,
                }
                | {f"score:{name}": value for name, value in s.scores.items()}
            )  # fmt: skip
    return _frame(rows, ["run", "doc_id"])


def steps(runs: Iterable[Run]) -> DataFrame:
    """One row a step, in order: drafts proposed (`k`, 0: a step without a draft), accepted raw and after trimming at
    a stop or limit, and what cut it."""
    return _frame(
        (
            {
                "run": run.id, "doc_id": s.doc_id, "step": i, "k": t.k, "accepted": t.accepted,
                "accepted_trimmed": t.accepted_trimmed, "cut": str(t.cut),
            }
            for run in runs for s in run.samples for i, t in enumerate(s.steps)
        ),
        ["run", "doc_id", "step", "k", "accepted", "accepted_trimmed", "cut"],
    )  # fmt: skip


def acceptance(runs: Iterable[Run]) -> DataFrame:
    """One row a run and position: survival and conditional rate with 95 % bands that hold for all positions at
    once (documents as clusters)."""
    rows = []
    for run in runs:
        for p in positions(run.samples, _k(run)):
            rows.append(
                {
                    "run": run.id, "k": _k(run), "position": p.position, "steps": p.steps, "survival": p.survival,
                    "survival_low": p.survival_band.low if p.survival_band else None,
                    "survival_high": p.survival_band.high if p.survival_band else None,
                    "conditional": p.conditional,
                    "conditional_low": p.conditional_band.low if p.conditional_band else None,
                    "conditional_high": p.conditional_band.high if p.conditional_band else None,
                }
            )  # fmt: skip
    return _frame(rows, ["run", "k", "position", "survival", "conditional"])


def groups(runs: Iterable[Run]) -> DataFrame:
    """One row a run and group: accepted length and its clustered standard error by category of the document and by
    tokens of the answer, with the run's temperature."""
    rows = []
    for run in runs:
        for kind, found in (("category", by_category(run.samples, _k(run))),
                            ("answer tokens", by_answer_length(run.samples, _k(run)))):  # fmt: skip
            rows += [
                {
                    "run": run.id, "k": _k(run), "temperature": run.cell.get("temperature"), "kind": kind,
                    "group": g.label, "samples": g.samples, "steps": g.steps, "accepted_length": g.accepted_length,
                    "se": g.se,
                }
                for g in found
            ]  # fmt: skip
    return _frame(rows, ["run", "kind", "group", "accepted_length"])


def runs(runs: Iterable[Run]) -> DataFrame:
    """One row a run: its settings and its headline figures (see acceptance.AcceptanceStats for each)."""
    rows = []
    for run in runs:
        found = of_run(run)
        answered = [s for s in run.samples if not s.error]
        names = {name: None for s in answered for name in s.scores}
        rows.append(
            {"run": run.id, "complete": run.complete, "samples": len(run.samples)}
            | {"failed": len(run.samples) - len(answered)}
            | {key: run.cell.get(key) for key in ("task", "target", "draft", "k", "quant", "temperature", "seed")}
            | online_facts(run)
            | {f"score:{n}": sum(s.scores.get(n, 0.0) for s in answered) / len(answered) for n in names}
            | {
                "accepted_length": found.accepted_length, "accepted_length_se": found.se,
                "accepted_length_trimmed": found.accepted_length_trimmed, "mean_of_requests": found.mean_of_requests,
                "tokens_per_forward": found.emitted_per_step, "acceptance_rate": found.acceptance_rate,
                "useful_k": found.useful_k, "steps": found.steps, "steps_without_draft": found.steps_without_draft,
                "design_effect": found.design_effect, "forced": found.forced or found.looks_forced,
                "acceptance_from": found.source, "output_tokens": run.output_tokens, "seconds": run.seconds,
            }
        )  # fmt: skip
    return _frame(rows, ["run"])


def checks(verdicts: Iterable[Verdict]) -> DataFrame:
    """One row a check of each verdict; `outcome` is pass, fail or inconclusive."""
    return _frame(
        (
            {"run": v.run_id, "verdict": v.outcome.value, "check": c.name, "outcome": c.outcome.value,
             "expected": c.expected, "found": c.found, "message": c.message}
            for v in verdicts for c in v.checks
        ),
        ["run", "verdict", "check", "outcome"],
    )  # fmt: skip

"""What the command line prints: one table of a run, the lines of a verdict, a list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from evalkit import layout, sessions
from evalkit.formats import percent
from evalkit.online_quant import asked, quant_name, words
from evalkit.records import Bucket, Outcome, Run, Sample, Verdict
from evalkit.views import STRICT

if TYPE_CHECKING:
    from evalkit.sweep import Row

COLOUR = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.INCONCLUSIVE: "yellow"}


def console(stderr: bool = False) -> Console:
    """The console: colours on a terminal, plain text elsewhere. What it prints is laid out before (evalkit.layout).

    Text is printed as it is: rich would take the brackets of `kv[dense]=bf16` for markup and `:k:` for an emoji.
    """
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def filter_names(samples: Iterable[Sample]) -> list[str]:
    """Names of the scores that the samples have, in the task's order."""
    names: dict[str, None] = {}
    for sample in samples:
        names |= dict.fromkeys(sample.scores)
    return list(names)


def run_rows(run: Run) -> list[tuple[str, str]]:
    """A run in figures: (what, value)."""
    from evalkit.acceptance import of_run  # numpy
    from evalkit.outlook import gpu_count, minutes
    from evalkit.report import text

    answered = [s for s in run.samples if not s.error]
    rows = []
    for name in filter_names(answered):
        rows.append((name, text.mean_score([s.scores[name] for s in answered if name in s.scores])))
    rows += _canonical_row(answered, run)
    found = of_run(run)
    if found.accepted_length is not None and found.acceptance_rate is not None:
        length = text.length(found.accepted_length) + text.spread(found.se, 3)
        what = "; forced: drawn, not verified" if run.forced else "; looks forced" if found.looks_forced else ""
        rows.append(("accepted length", f"{length}  (of at most {found.k + 1}{what})"))
        rows.append(("acceptance rate", text.share(found.acceptance_rate)))
    steps = f"{found.steps} verify" + (f", {found.steps_without_draft} plain" if found.steps_without_draft else "")
    rows.append(("steps", steps if found.steps else f"{found.steps_without_draft} plain"))
    if not found.by_step:
        rows.append(("acceptance", f"from {found.source}"))
    rows += path_rows(run)
    rows.append(("samples", f"{len(run.samples)} of {run.task_size}" if len(run.samples) < run.task_size
                 else f"{len(run.samples)}"))  # fmt: skip
    if run.stopped:
        rows.append(("stopped early", f"{run.stopped}{_spared(run)}"))
    rows.append(("truncated", str(sum(s.finish_reason == "length" for s in answered))))
    rows.append(("failed", str(len(run.samples) - len(answered))))
    speed = text.speed(run.output_tokens, run.seconds, plain=True) if run.seconds else "-"
    rows.append(("speed", f"{speed}  ({run.output_tokens} tokens)"))
    gpus = gpu_count(run.cell, run.fingerprint)
    spent = f"  ({minutes(run.seconds * gpus)} GPU-minutes on {gpus} GPU{'s' if gpus > 1 else ''})" if gpus else ""
    rows.append(("time", f"{run.seconds:.1f} s{spent}"))
    return rows


def _spared(run: Run) -> str:
    """What ending early saved, at the speed of the samples that were asked."""
    n = len(run.samples)
    return f"; about {run.seconds * (run.expected - n) / n:.0f} s not spent" if 0 < n < run.expected else ""


def path_rows(run: Run) -> list[tuple[str, str]]:
    """Which paths of the engine served the decode steps, of those that its counters name."""
    told, rows = run.counters, [("sessions", said)] if (said := sessions.words(run)) else []
    share, total = told.get("mono_share"), told.get("decode_ticks")
    if isinstance(share, int | float):
        refused = told.get("mono_refused") or {}
        why = "".join(f", {reason} {n}" for reason, n in refused.items())
        rows.append(("Mono", f"{percent(share)} of {total} decode steps" + (f"  (refused{why[1:]})" if why else "")))
    if isinstance(delayer := told.get("prefill_delayer"), dict):
        held, ticks = delayer.get("hold_decode_interval", 0), delayer.get("ticks", 0)
        rows.append(("prefill delayer", f"interval {delayer.get('interval')}: {held} of {ticks} ticks held"
                     + (f" ({percent(held, ticks)})" if ticks else "")))  # fmt: skip
    if isinstance(fused := told.get("fused_verify_topk_steps"), int) and fused:
        rows.append(("fused verify top-k", f"{fused} of {total} decode steps"))
    if isinstance(ops := told.get("kernels"), dict) and ops.get("triton"):
        other = f"; plain torch for {', '.join(ops['twin'])}" if ops.get("twin") else ""
        rows.append(("kernels", f"Triton in {told.get('kernels_steps')} of {total} decode steps{other}"))
    if isinstance(hits := told.get("graph_hits"), int):
        rows.append(("graph sizes", f"{hits} hits, {told.get('graph_misses')} misses, "
                     f"{told.get('graph_padding_rows')} padding rows"))  # fmt: skip
    return rows


def _canonical_row(answered: Sequence[Sample], run: Run) -> list[tuple[str, str]]:
    """The canonical score, and every bucket that is no answer; nothing for a run stored without it."""
    from evalkit.report import text
    from evalkit.shares import bucket_counts

    graded = [s.canonical for s in answered if s.canonical is not None]
    if not graded:
        return []
    others = {b.value: n for b, n in bucket_counts(run.samples).items() if b is not Bucket.ANSWERED}
    score = text.mean_score([float(c.correct is True) for c in graded])
    return [("canonical", "; ".join(part for part in (score, text.counted(others)) if part))]


def run_table(run: Run, width: int = 0) -> Text:
    """What is printed after a run: its setting, and each figure behind its name."""
    cell = run.cell
    mode = quant_name(cell, run.provenance)
    title = f"{cell.get('task')}  {cell.get('target')} + {cell.get('draft')}  K={cell.get('k')}  {mode}"
    text = Text(layout.fold_lines(title, width), style="bold")
    return Text("").append_text(text).append(f"\n\n{layout.pairs(run_rows(run), width)}\n")


def verdict_text(verdict: Verdict, width: int = 0) -> Text:
    """The verdict in one line, each check in one more, and the notes; folded at words to `width` columns, 0 is not."""
    text = Text()
    text.append(f"verdict: {verdict.outcome.value.upper()}\n", style=f"bold {COLOUR[verdict.outcome]}")
    for check in verdict.checks:
        text.append(f"  {check.outcome.value:12}", style=COLOUR[check.outcome])
        text.append(folded(f"{check.name}: {check.message}", width) + "\n")
    for note in verdict.notes:
        text.append("  note        " + folded(note, width) + "\n", style="dim")
    text.rstrip()
    return text


def folded(words: str, width: int, indent: int = 16) -> str:
    """`words` behind a first column of 14, later lines under the second one."""
    return layout.fold(words, width, " " * indent)[indent - 2 :]


def sweep_table(rows: Sequence[Row], width: int = 0, *, in_order: bool = False) -> Text:
    """Runs of a sweep side by side, with raw and adjusted p-values."""
    how = "Holm p that one adjusted for the number of runs"
    how = "in order the largest up to it, 1 from the first run that does not pass" if in_order else how
    words = (
        f"p is for a loss under the margin, raw; run p is the largest of the run's tests, and {how}: a run passes only "
        "where it is small enough too"
    )
    shown = []
    for row in rows:
        values = (row.accuracy_p, row.length_p, row.p, row.adjusted)
        shown.append((row.run, row.outcome.value, *("-" if p is None else f"{p:.2g}" for p in values)))
    columns = ("run", "verdict", "accuracy p", "length p", "run p", "in order" if in_order else "Holm p")
    text = Text(layout.table(columns, shown, width=width))
    for outcome, colour in COLOUR.items():
        text.highlight_regex(rf"(?<=  ){outcome.value}(?=  |\n|$)", colour)
    return text.append(f"\n{layout.fold(words, width)}\n", style="dim")


def sweep_reason(verdict: Verdict, width: int = 0) -> Text:
    """One line on what kept a run from passing, or that it passed."""
    telling = [c for c in verdict.checks if c.outcome is verdict.outcome and c.outcome is not Outcome.PASS]
    text = Text(layout.fold(verdict.run_id, width, f"{verdict.outcome.value:14}"))
    text.stylize(COLOUR[verdict.outcome], 0, len(verdict.outcome.value))
    for check in telling:
        text.append("\n" + layout.fold(f"{check.name}: {check.message}", width, "  ", "    "))
    return text


def runs_table(runs: Sequence[Run], width: int = 0) -> Text:
    """One line a run, oldest first; more where the window is narrower than that. Runs of one setting that differ in
    batch, TP or concurrency say so."""
    from evalkit.listing import layouts

    rows, told = [], layouts(runs)
    for run, layout_words in zip(runs, told, strict=True):
        answered = [s for s in run.samples if not s.error]
        scores = [s.scores[STRICT] for s in answered if STRICT in s.scores]
        steps = [t for s in answered for t in s.steps if t.k]
        online = words(asked(run.cell, run.provenance))
        rows.append((
            run.id + (f" {online}" if online and "-online-" not in run.id else ""),  # ids of before did not say it
            f"{len(run.samples)}/{run.expected}"
            + (f" of {run.task_size}" if run.expected < run.task_size else "")
            + ("" if run.complete else "  interrupted")
            + ("  stopped" if run.stopped else ""),
            f"{sum(scores) / len(scores):.4f} ({sum(scores):.0f}/{len(scores)})" if scores else "-",
            (f"{1 + sum(t.accepted for t in steps) / len(steps):.3f}" if steps else "-")
            + (" forced" if run.forced else ""),
            str(run.provenance.get("started", ""))[:19].replace("T", " "),
            *([layout_words] if any(told) else []),
        ))  # fmt: skip
    names = ("id", "samples", "strict-match", "accepted length", "started", *(["layout"] if any(told) else []))
    return Text(layout.table(names, rows, width=width))


def settings(run: Run) -> dict[str, Any]:
    """What `evalkit show --json` prints: all but the samples."""
    return {f.name: getattr(run, f.name) for f in fields(run) if f.name != "samples"}

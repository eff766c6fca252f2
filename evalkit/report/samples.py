"""The run's samples beside the baseline's: pairs, what was lost and gained, and words on one sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from evalkit.baseline import FLEXIBLE, HASH_CHARS, STRICT, Baseline, Row
from evalkit.records import Run, Sample
from evalkit.report import text
from evalkit.report.text import Table
from evalkit.scoring import score_sample

FLIPS = 30  # rows of the table of flipped answers; the sample list has all
FIELD_LIMIT = 300  # bytes of a gold answer or an extracted one


class Change(StrEnum):
    """A sample against the baseline, in the order in which a reader wants them."""

    LOST = "lost"
    WRONG_BOTH = "both wrong"
    WRONG_UNPAIRED = "wrong, no pair"
    GAINED = "gained"


MEANING = {
    Change.LOST: "wrong here, right in the baseline",
    Change.WRONG_BOTH: "wrong here and in the baseline",
    Change.WRONG_UNPAIRED: "wrong here, with no baseline result for the question",
    Change.GAINED: "right here, wrong in the baseline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Counts of the questions that both have: up went from wrong to right, down from right to wrong."""

    n: int
    up: int
    down: int
    baseline_correct: int  # of the n


def partner(sample: Sample, baseline: Baseline | None) -> Row | None:
    """The baseline's row for the same document and the same prompt; a failed sample has none."""
    if baseline is None or sample.error:
        return None
    row = baseline.rows.get(sample.doc_hash[:HASH_CHARS])
    return row if row is not None and row.prompt_hash == sample.prompt_hash[:HASH_CHARS] else None


def pair(run: Run, baseline: Baseline | None, name: str) -> Paired | None:
    """Paired counts of one score; None where nothing can be paired."""
    if name not in (STRICT, FLEXIBLE):
        return None
    both = [
        (int(s.scores[name]), row.strict if name == STRICT else row.flexible)
        for s in run.samples
        if s.scores.get(name) in (0, 1) and (row := partner(s, baseline)) is not None
    ]
    if not both:
        return None
    return Paired(
        n=len(both),
        up=sum(here > there for here, there in both),
        down=sum(here < there for here, there in both),
        baseline_correct=sum(there for _, there in both),
    )


def accepted_length(sample: Sample) -> str:
    verify = [step for step in sample.steps if step.k >= 1]
    if not verify:
        return "no verify step"
    value = 1 + sum(step.accepted for step in verify) / len(verify)
    return f"{text.length(value)} over {len(verify)} steps"


def change_of(sample: Sample, baseline: Baseline | None) -> Change | None:
    if sample.error or sample.scores.get(STRICT) not in (0, 1):
        return None
    row, right = partner(sample, baseline), sample.scores[STRICT] == 1
    if right:
        return Change.GAINED if row is not None and not row.strict else None
    if row is None:
        return Change.WRONG_UNPAIRED
    return Change.LOST if row.strict else Change.WRONG_BOTH


def canonical_words(sample: Sample, limit: int) -> str:
    """`canonical 1000 (currency), right, from marker "$1,000"`; or the bucket of a sample without an answer."""
    found = sample.canonical or score_sample(sample)
    if found.correct is None:
        return f"canonical: {found.bucket.value}"
    notes = f" ({', '.join(found.notes)})" if found.notes else ""
    why = f"; readings disagree: {found.disagreement}" if found.disagreement else ""
    span = text.clip(text.visible(found.raw_span), limit)
    return f"canonical {found.value}{notes}, {'right' if found.correct else 'wrong'}, {found.reason} {span!r}{why}"


def finish_words(sample: Sample) -> str:
    if sample.finish_reason == "length":
        return "truncated at the token limit"
    return f"finished ({text.visible(sample.finish_reason) or 'reason not recorded'})"


def flips_table(run: Run, baseline: Baseline | None, index: int, limit: int = FLIPS) -> Table:
    """The answers that were lost against the baseline, then those gained: what a reviewer opens first."""
    found = [(change_of(s, baseline), s) for s in run.samples]
    flipped = sorted(
        ((c, s) for c, s in found if c in (Change.LOST, Change.GAINED)), key=lambda x: x[0] is Change.GAINED
    )
    rows = tuple(
        (f"#{s.doc_id}", str(change), gold_answer(s), _short(s.extracted.get(STRICT, "")),
         _short(s.extracted.get(FLEXIBLE, "")))
        for change, s in flipped[:limit]
    )  # fmt: skip
    counts = [sum(c is kind for c, _ in flipped) for kind in (Change.LOST, Change.GAINED)]
    rest = f", the first {limit} shown" if len(flipped) > limit else ""
    return Table(
        name=f"flips-{index}", caption=f"Answers lost ({counts[0]}) and gained ({counts[1]}) to the baseline{rest}",
        columns=("sample", "change", "gold", STRICT, FLEXIBLE), align="lllll", rows=rows,
        missing="No answer flipped against the baseline." if baseline is not None else
        "No baseline, so no answer can be said to have flipped.", fine=baseline is not None,
    )  # fmt: skip


def gold_answer(sample: Sample) -> str:
    """The gold answer's number where the gold is a worked solution."""
    return _short(sample.gold.rsplit("####", 1)[-1].strip()) or "not recorded"


def _short(raw: str) -> str:
    return text.clip(text.visible(raw), FIELD_LIMIT) or "found nothing"


def error_table(run: Run, index: int, limit: int = 12) -> Table:
    """The errors of failed requests, counted."""
    counts = Counter(text.clip(text.visible(s.error), FIELD_LIMIT) for s in run.samples if s.error)
    rows = tuple((words, text.count(n)) for words, n in counts.most_common(limit))
    return Table(name=f"errors-{index}", caption="Requests that failed: no answer, not counted as wrong",
                 columns=("error", "requests"), align="lr", rows=rows)  # fmt: skip


def scored(samples: Sequence[Sample], name: str) -> tuple[int, int]:
    """(correct, n) of one score over the samples that have one of 0 or 1; a failed request has none."""
    values = [s.scores[name] for s in samples if not s.error and s.scores.get(name) in (0, 1)]
    return sum(value == 1 for value in values), len(values)

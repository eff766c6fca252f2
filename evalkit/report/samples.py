"""The run's samples beside the baseline's: pairs, what was lost and gained, and the samples that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from evalkit.baseline import FLEXIBLE, HASH_CHARS, STRICT, Baseline, Row
from evalkit.records import Run, Sample
from evalkit.report import text
from evalkit.scoring import score_sample

PAGE_BUDGET = 1_500_000  # bytes of questions and completions in one page
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """One sample of the list, as text that is safe to show (escaping is the template's)."""

    doc_id: int
    change: Change
    question: str
    gold: str
    extracted: tuple[tuple[str, str], ...]  # filter, what it found
    completion: str
    finish: str
    accepted_length: str
    canonical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGroup:
    """The samples of one kind of change."""

    change: Change
    meaning: str
    samples: tuple[SampleView, ...]


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


def _change(sample: Sample, baseline: Baseline | None) -> Change | None:
    if sample.error or sample.scores.get(STRICT) not in (0, 1):
        return None
    row, right = partner(sample, baseline), sample.scores[STRICT] == 1
    if right:
        return Change.GAINED if row is not None and not row.strict else None
    if row is None:
        return Change.WRONG_UNPAIRED
    return Change.LOST if row.strict else Change.WRONG_BOTH


def _view(sample: Sample, change: Change) -> SampleView:
    def show(raw: str) -> str:
        return text.clip(text.visible(raw), FIELD_LIMIT)

    found = tuple((name, show(got) if got else "found nothing") for name, got in sample.extracted.items())
    completion = text.visible(sample.text)
    return SampleView(
        doc_id=sample.doc_id,
        change=change,
        question=text.visible(sample.question),
        gold=show(sample.gold) or "not recorded",
        extracted=found,
        completion=completion if completion.strip() else "(empty)",
        finish=f"{sample.tokens} tokens, {_finish(sample)}",
        accepted_length=accepted_length(sample),
        canonical=canonical_words(sample, FIELD_LIMIT),
    )


def canonical_words(sample: Sample, limit: int) -> str:
    """`canonical 1000 (currency), right, from marker "$1,000"`; or the bucket of a sample without an answer."""
    found = sample.canonical or score_sample(sample)
    if found.correct is None:
        return f"canonical: {found.bucket.value}"
    notes = f" ({', '.join(found.notes)})" if found.notes else ""
    why = f"; readings disagree: {found.disagreement}" if found.disagreement else ""
    span = text.clip(text.visible(found.raw_span), limit)
    return f"canonical {found.value}{notes}, {'right' if found.correct else 'wrong'}, {found.reason} {span!r}{why}"


def _finish(sample: Sample) -> str:
    if sample.finish_reason == "length":
        return "truncated at the token limit"
    return f"finished ({text.visible(sample.finish_reason) or 'reason not recorded'})"


def changed_samples(run: Run, baseline: Baseline | None, budget: int = PAGE_BUDGET) -> tuple[SampleGroup, ...]:
    """Every wrong sample and every gained one, by kind of change. Texts are cut evenly where all of them
    together would take more than `budget` bytes in the page."""
    views = [_view(s, c) for s in run.samples if (c := _change(s, baseline)) is not None]
    limit = text.fair_limit([text.weight(t) for v in views for t in (v.question, v.completion)], budget)
    cut = [replace(v, question=text.clip(v.question, limit), completion=text.clip(v.completion, limit)) for v in views]
    groups = []
    for change in Change:
        members = tuple(v for v in cut if v.change is change)
        if members:
            groups.append(SampleGroup(change=change, meaning=MEANING[change], samples=members))
    return tuple(groups)


def failed_samples(run: Run) -> tuple[tuple[int, str], ...]:
    """(doc_id, error) of the requests that came to nothing."""
    return tuple((s.doc_id, text.clip(text.visible(s.error), FIELD_LIMIT)) for s in run.samples if s.error)


def scored(samples: Sequence[Sample], name: str) -> tuple[int, int]:
    """(correct, n) of one score over the samples that have one of 0 or 1; a failed request has none."""
    values = [s.scores[name] for s in samples if not s.error and s.scores.get(name) in (0, 1)]
    return sum(value == 1 for value in values), len(values)

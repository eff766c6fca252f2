"""What a run stores of an answer's reading, held against the text that it stores: both readings of lm-eval, evalkit's
own, and the tokens. The text is read again by the same rules; that costs well under a millisecond an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evalkit.gate.common import FAIL, INCONCLUSIVE, checked
from evalkit.numbers import equal, whole_text
from evalkit.reading import gold_number
from evalkit.records import Bucket, CanonicalScore, Check, Run, Sample
from evalkit.scoring import score_sample
from evalkit.views import FLEXIBLE, STRICT, Pick, View, flexible_view, strict_view

NAME = "stored reading"
PICKS: Mapping[str, Pick] = {"gsm8k": "first", "gradeschool": "first", "gsm8k_inferencex": "last"}  # as their YAML says
LOST = "\ufffd"  # of a token that is part of a character: its text is not in the answer's


def reading_check(run: Run, answered: Sequence[Sample]) -> list[Check]:
    """Nothing where every stored reading is that of the stored text.

    What no version of the rules could have stored is a fail: the samples were edited. Where evalkit's own rule reads a
    text otherwise now, the run may be of an older rule: inconclusive. Tasks with filters of their own keep their
    scores; forced samples have no text, and samples without one and without a reading nothing to compare.
    """
    pick = PICKS.get(str(run.cell.get("task")))
    told = [s for s in answered if not s.forced and (s.text or s.extracted or s.canonical)]
    wrong: dict[int, str] = {}
    older: dict[int, str] = {}
    for sample in told:
        if words := next(_contradictions(sample, pick, served="server" in run.cell), ""):
            wrong[sample.doc_id] = words
        elif words := _otherwise(sample):
            older[sample.doc_id] = words
    found, outcome = (wrong, FAIL) if wrong else (older, INCONCLUSIVE)
    if not found:
        return []
    first, words = next(iter(found.items()))
    message = f"{len(found)} of {len(told)} stored readings are not those of their texts; first document {first}: "
    message += words
    why = "the samples were edited: run again" if wrong else "the run is of an older rule, or was edited: run again"
    expected = "scores, readings and tokens that the stored texts give"
    return [checked(NAME, outcome, expected, message, f"{message}; {why}", contradictions=len(wrong), other=len(older))]


def _contradictions(sample: Sample, pick: Pick | None, *, served: bool) -> Iterator[str]:
    if pick is not None:
        yield from _view(sample, STRICT, strict_view(sample.text, sample.gold, pick))
        yield from _view(sample, FLEXIBLE, flexible_view(sample.text, sample.gold))
    if sample.canonical is not None:
        yield from _impossible(sample, sample.canonical)
    if not served:
        yield from _tokens(sample)


def _view(sample: Sample, name: str, found: View) -> Iterator[str]:
    if name in sample.scores and sample.scores[name] != float(found.correct):
        yield f"{name} is {sample.scores[name]:g}, its text gives {float(found.correct):g}"
    if name in sample.extracted and sample.extracted[name] != found.extracted:
        yield f"{name} read {sample.extracted[name]!r}, its text gives {found.extracted!r}"


def _impossible(sample: Sample, told: CanonicalScore) -> Iterator[str]:
    """What no rule reads: an answer that is not in the text, or one that is graded against arithmetic."""
    if told.raw_span and told.raw_span not in _whole(sample).text:
        yield f"its answer was read from {told.raw_span!r}, which is not in its text"
    plain = told.value and not {"fraction", "exponent"} & set(told.notes)  # 4/2 is no 2, though its value is
    number, gold = whole_text(told.value) if plain else None, gold_number(sample.gold)
    if told.correct is not None and number and gold and told.correct != equal(number, gold):
        called = "right" if told.correct else "wrong"
        yield f"its answer {told.value} is called {called}, the gold answer is {gold.text}"


def _tokens(sample: Sample) -> Iterator[str]:
    """Of the built-in engine, which stores the text of each token it emitted; a stop takes some off the end."""
    if sample.text and not sample.tokens:
        yield "it has a text and no token"
    if not sample.pieces:
        return
    if len(sample.pieces) != sample.tokens:
        yield f"tokens is {sample.tokens}, the text of {len(sample.pieces)} is stored"
    made = "".join(sample.pieces)
    if LOST not in made and not made.startswith(sample.text):
        yield "its text is not that of its tokens"


def _otherwise(sample: Sample) -> str:
    """How evalkit's rule of today reads the text, where that is not what is stored; "" where it is. Whether a text
    broke down is told by token ids too, which are not stored."""
    told = sample.canonical
    if told is None:
        return ""
    now = score_sample(_whole(sample))
    if Bucket.DEGENERATE in (told.bucket, now.bucket):
        return ""
    pairs = ((name, getattr(told, name), getattr(now, name)) for name in ("bucket", "value", "correct"))
    return next((f"canonical {name} is {a!s}, read now it is {b!s}" for name, a, b in pairs if a != b), "")


def _whole(sample: Sample) -> Sample:
    """The sample as it was read: thinking that came in a field of its own is all that an empty answer has."""
    if sample.text.strip() or not sample.reasoning:
        return sample
    return replace(sample, text=f"<think>{sample.reasoning}")

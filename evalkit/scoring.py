"""The canonical score: one written rule that reads an answer as a careful person would. Standard library only.

lm-eval's strict-match and flexible-extract stay as they are (`views.py`, for comparison with published numbers); this
score stands beside them, tells what they missed and why, and says which samples have no answer to grade at all.

The rule, in this order, each step with its reason:

1. Thinking is removed: `<think>...</think>`, and all before a lone `</think>` (the prompt had opened it). Hidden
   reasoning is never graded, it may hold numbers that were given up again (C15). Thinking that never ends leaves what
   stood before it; if that is nothing, the sample is "reasoning only".
2. A run-on is cut: once the text has an answer, a new line that starts with `Question:` (or `Q:`, or another turn of
   a chat) is the model going on with its own next question.
3. The answer is read from the last `####` (a model may recite worked examples first, C01); without one from the last
   `\\boxed{}`; without one from the last "answer is" or "Answer:"; without one from the last number in the text.
   A `####` that opens a heading ("#### Step 2: add") is no marker.
4. In a marker's line the number is the first one, or the side of an equation that is one number. Numbers are read by
   the rule in `numbers.py`; equality with the gold answer is exact.
5. A text without an answer is not wrong: it was truncated, cut by a stop, degenerate, or has no number (`Bucket`). A
   last number in running text does not count as an answer where the text was cut off: it may be any number. Nor does
   the number of a marker at whose very end a stop fired that may belong to it (`,` or `.` or `=`): 1,234 would be 1. A
   stop that fired inside of thinking cut it, whatever the text would have said.

The denominator is all requests. A request that failed is neither right nor wrong: `score_range` gives the score if all
of them were wrong and if all were right, and a gate uses the first (C84).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from evalkit.degenerate import degenerate
from evalkit.disagreement import disagreement
from evalkit.numbers import equal
from evalkit.reading import cut_run_on, gold_number, read, visible
from evalkit.records import Bucket, CanonicalScore, Sample

_GOES_ON = re.compile(r"[,.:/=+*\-]")  # what a stop may begin with to cut a number, or the sum that is the answer
_TIMEOUT = re.compile(r"timed?[- ]?out", re.IGNORECASE)


def canonical(
    text: str, gold: str, *, finish_reason: str = "", stop_hit: str = "", tokens: int = 1, token_ids: Sequence[int] = ()
) -> CanonicalScore:
    """Reads and grades one text. `tokens` 0 says that the engine emitted none; see the module for the rule."""
    if not text.strip():
        bucket = Bucket.EMPTY if tokens else Bucket.ZERO_TOKENS
        return CanonicalScore(bucket=bucket, reason=bucket.value)
    seen, capped = visible(text), finish_reason == "length"
    notes = ["thinking"] if seen.thinking else []
    if not seen.text.strip():
        bucket = Bucket.TRUNCATED_IN_THINKING if capped and seen.unclosed else Bucket.REASONING_ONLY
        bucket = Bucket.STOP_CUT if seen.unclosed and not capped and fired(stop_hit) else bucket
        return CanonicalScore(bucket=bucket, reason=bucket.value, notes=tuple(notes))
    body = cut_run_on(seen.text)
    notes += ["run-on"] if len(body) < len(seen.text) else []
    found, broken = read(body), degenerate(text, token_ids)
    notes += ["degenerate"] if broken else []
    whole = len(body) < len(seen.text) or bool(body[found.end :].strip(" \t*_`$}.")) or body.endswith("\n")
    goes_on = not whole and fired(stop_hit) and _GOES_ON.match(stop_hit) is not None
    if found.explicit and found.number is not None and (whole or not (capped or goes_on)):
        bucket = Bucket.ANSWERED
    elif broken:
        bucket = Bucket.DEGENERATE
    elif (capped and not found.explicit) or (capped and not whole):
        bucket = Bucket.TRUNCATED
    elif fired(stop_hit) and (goes_on or not found.explicit) and "run-on" not in notes:
        bucket = Bucket.STOP_CUT
    else:
        bucket = Bucket.ANSWERED if found.number is not None else Bucket.NO_ANSWER
    number, target = found.number, gold_number(gold)
    graded = bucket is Bucket.ANSWERED and number is not None and target is not None
    if number is not None:
        notes += [*number.notes, *([number.kind] if number.kind in ("fraction", "exponent") else [])]
    return CanonicalScore(
        value=number.text if number else "",
        raw_span=number.raw if number else "",
        correct=equal(number, target) if graded and number and target else None,
        bucket=bucket,
        reason=broken if bucket is Bucket.DEGENERATE else found.where,
        notes=tuple(dict.fromkeys(notes)),
    )


def fired(stop_hit: str) -> bool:
    """Whether a stop was a string in the text; an end-of-turn token is an end, no cut."""
    return bool(stop_hit) and not stop_hit.isdigit() and not re.fullmatch(r"<[^<>\s]*>", stop_hit)


def bucket_of(sample: Sample) -> Bucket:
    """What became of a sample: as stored, else worked out from its text."""
    if sample.error:
        return Bucket.TIMEOUT if _TIMEOUT.search(sample.error) else Bucket.FAILED
    if sample.forced:
        return Bucket.FORCED
    return (sample.canonical or score_sample(sample)).bucket


def score_sample(sample: Sample, token_ids: Sequence[int] = ()) -> CanonicalScore:
    """The canonical score of a sample, with the reason why lm-eval's readings disagree with it. A text of forced
    acceptance has none, whatever it says."""
    if sample.error:
        return CanonicalScore(bucket=bucket_of(sample), reason="the request came to nothing")
    if sample.forced:
        return CanonicalScore(bucket=Bucket.FORCED, reason="acceptance was forced")
    found = canonical(
        sample.text, sample.gold, finish_reason=sample.finish_reason, stop_hit=sample.stop_hit, tokens=sample.tokens,
        token_ids=token_ids,
    )  # fmt: skip
    return replace(found, disagreement=disagreement(sample, found))


def score_samples(samples: Sequence[Sample]) -> list[CanonicalScore]:
    """The canonical score of every sample: the stored one, or worked out now."""
    return [score_sample(s) if s.forced or s.canonical is None else s.canonical for s in samples]

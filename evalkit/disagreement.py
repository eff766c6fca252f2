"""Why strict-match, flexible-extract and the canonical score of a sample do not agree. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

from evalkit.reading import cut_run_on, read, visible
from evalkit.records import Bucket, CanonicalScore, Sample
from evalkit.views import FLEXIBLE, STRICT, Pick, flexible_view, strict_view

FORMS = {  # a form of the answer's characters -> what it is called
    "full width": "full width", "sign": "sign", "fraction": "fraction", "exponent": "exponent", "currency": "currency",
    "percent": "percent", "separators": "separators",
}  # fmt: skip
MEANING: Mapping[str, str] = {
    "marker missing": "no `####` before the answer",
    "boxed": "the answer is in \\boxed{}",
    "bold": "the answer stands between asterisks",
    "no blank": "no single blank after `####`",
    "currency": "a currency sign before the answer",
    "full width": "full-width digits or signs in the answer",
    "sign": "a plus, or a minus other than the ASCII one",
    "separators": "thousands separators other than commas, or commas that a filter split",
    "fraction": "the answer is left as a fraction",
    "exponent": "the answer has an exponent",
    "percent": "a percent sign after the answer",
    "decimals": "18.0 for 18, or 18 for 18.0",
    "unit": "words or units around the answer",
    "punctuation": "commas or dots after the answer were taken for a number",
    "trailing text": "more numbers after the answer",
    "recited example": "another `####` before the answer",
    "run-on": "the text goes on with a question of its own",
    "thinking": "numbers or markers inside the thinking",
    "clock time": "the answer is no number",
    "other": "none of the known reasons",
}


def pick_of(sample: Sample) -> Pick:
    """Which `####` the task's strict-match takes, as far as this sample shows it."""
    found = sample.extracted.get(STRICT)
    first, last = (strict_view(sample.text, sample.gold, pick).extracted for pick in ("first", "last"))
    return "last" if found == last != first else "first"


def disagreement(sample: Sample, found: CanonicalScore) -> str:
    """The reason in a word or two; "" where all three agree, or where the task has no such filters."""
    if STRICT not in sample.scores:
        return ""
    strict, flexible = sample.scores[STRICT] == 1, sample.scores.get(FLEXIBLE, sample.scores[STRICT]) == 1
    right = found.correct is True
    if strict == flexible == right:
        return ""
    if found.bucket is not Bucket.ANSWERED:
        return "clock time" if found.reason == "marker" and found.bucket is Bucket.NO_ANSWER else found.bucket.value
    pick = pick_of(sample)

    def agree(text: str) -> bool:
        views = (strict_view(text, sample.gold, pick), flexible_view(text, sample.gold))
        return all(v.correct == right for v in views)

    shown = visible(sample.text)
    if "thinking" in found.notes and agree(shown.text):
        return "thinking"
    body = cut_run_on(shown.text)
    if len(body) < len(shown.text) and agree(body):
        return "run-on"
    return _missed(body, found) if strict != right else _flexible(body, found)


def _missed(body: str, found: CanonicalScore) -> str:
    """Why strict-match is not the canonical reading."""
    if found.reason != "marker":
        return "boxed" if found.reason == "boxed" else "marker missing"
    markers = body.count("####")
    form = form_of(body, found)
    if markers > 1 and form in ("", "unit"):
        return "recited example"
    return form or "other"


def form_of(body: str, found: CanonicalScore) -> str:
    """What in the answer's own characters a plain `#### N` does not have."""
    form = next((word for note, word in FORMS.items() if note in found.notes), "")
    if form:
        return form
    head = body[body.rfind("####") + 4 : read(body).end].removesuffix(found.raw_span)
    if "*" in head or "_" in head:
        return "bold"
    if head.strip() == "+":
        return "sign"
    if any(c.isalpha() for c in head) or "=" in head:
        return "unit"
    if head != " ":
        return "no blank"
    if "." in found.raw_span:
        return "decimals"
    return "unit" if "unit" in found.notes else ""


def _flexible(body: str, found: CanonicalScore) -> str:
    """Why flexible-extract alone is not the canonical reading."""
    last = flexible_view(body, "").extracted
    if not any(c.isdigit() for c in last):
        return "punctuation"
    rest = body[read(body).end :]
    if any(c.isdigit() for c in rest):
        return "trailing text"
    form = next((word for note, word in FORMS.items() if note in found.notes), "")
    return form or ("decimals" if "." in found.raw_span else "unit" if "unit" in found.notes else "other")

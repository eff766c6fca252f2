"""Two runs side by side: answers that flipped, the exact test, where their texts part, accepted length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.chances import p_value
from evalkit.lossless import first_difference
from evalkit.records import Run, Sample
from evalkit.report import text
from evalkit.report.best import LengthDifference, differing, length_difference
from evalkit.report.samples import gold_answer
from evalkit.report.subsets import Subset, of_pairs
from evalkit.report.text import Table

SHOWN = 40  # flips and divergences listed in the page; the sample list has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two texts of one prompt part: the token (or, where a run stored none, the character) and both sides."""

    doc_id: int
    unit: str  # token | character
    at: int
    left: str
    right: str
    flipped: str  # gained | lost | ""
    gaps: tuple[float | None, float | None] = (None, None)  # top-two logit gap there of A and of B, where recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run b against run a on the questions both have with the same prompt."""

    a: Run
    b: Run
    paired: int
    alone: tuple[int, int]  # samples of a and of b without a partner
    lost: tuple[tuple[Sample, Sample], ...]  # right in a, wrong in b
    gained: tuple[tuple[Sample, Sample], ...]
    both_right: int
    p: float | None  # exact McNemar
    midp: float | None
    interval: stats.Interval | None
    length: LengthDifference | None
    same_text: int
    texts: int  # pairs with two texts
    divergences: tuple[Divergence, ...]
    categories: tuple[Subset, ...]


def compare(a: Run, b: Run) -> Comparison:
    """What changed from `a` to `b`. A failed request is in no pair."""
    there = {(s.doc_hash, s.prompt_hash): s for s in a.samples if not s.error}
    here = [s for s in b.samples if not s.error]
    both = [(there[key], s) for s in here if (key := (s.doc_hash, s.prompt_hash)) in there]
    scored = [(x, y) for x, y in both if x.scores.get(STRICT) in (0, 1) and y.scores.get(STRICT) in (0, 1)]
    lost = tuple((x, y) for x, y in scored if x.scores[STRICT] > y.scores[STRICT])
    gained = tuple((x, y) for x, y in scored if x.scores[STRICT] < y.scores[STRICT])
    flips = {y.doc_id: "lost" for _, y in lost} | {y.doc_id: "gained" for _, y in gained}
    parts = [d for x, y in both if (d := first_divergence(x, y, flips.get(y.doc_id, ""))) is not None]
    n = len(scored)
    return Comparison(
        a=a, b=b, paired=n, alone=(len(there) - len(both), len(here) - len(both)), lost=lost, gained=gained,
        both_right=sum(x.scores[STRICT] == 1 == y.scores[STRICT] for x, y in scored),
        p=stats.mcnemar_exact(len(gained), len(lost)) if n else None,
        midp=stats.mcnemar_midp(len(gained), len(lost)) if n else None,
        interval=stats.tango_interval(len(gained), len(lost), n) if n else None,
        length=length_difference(b, a), same_text=sum(x.text == y.text for x, y in both), texts=len(both),
        divergences=tuple(sorted(parts, key=lambda d: (not d.flipped, d.at, d.doc_id))),
        categories=of_pairs(scored),
    )  # fmt: skip


def warning(a: Run, b: Run) -> str:
    """What else than K and quant mode differs between two runs that are compared; "" where nothing does."""
    names = differing(a, b)
    drafts = [str(r.cell.get("draft")) for r in (a, b) if r.cell.get("k")]
    names += ["draft"] if len(set(drafts)) > 1 or _weights(a, b) else []
    if not names:
        return ""
    return f"the two runs differ in {text.names(names)}: what changes from A to B may come from that"


def _weights(a: Run, b: Run) -> bool:
    """Whether both name their draft's weights, and they are others."""
    found = [r.fingerprint.get("draft_sha") for r in (a, b) if r.cell.get("k")]
    return None not in found and len(set(found)) > 1


def first_divergence(a: Sample, b: Sample, flipped: str = "") -> Divergence | None:
    """None for equal texts."""
    if a.text == b.text:
        return None
    left, right, unit = (a.pieces, b.pieces, "token") if a.pieces and b.pieces else (a.text, b.text, "character")
    at = first_difference(left, right)
    if at is None:  # the same tokens, and a text that was cut elsewhere
        left, right, unit = a.text, b.text, "character"
        at = first_difference(left, right) or 0
    width = 1 if unit == "token" else 12
    sides = [("".join(s[at : at + width]) if at < len(s) else "(ended)") for s in (left, right)]
    gaps = [s.gaps[at] if unit == "token" and at < len(s.gaps) else None for s in (a, b)]
    return Divergence(doc_id=b.doc_id, unit=unit, at=at + 1, left=sides[0], right=sides[1], flipped=flipped,
                      gaps=(gaps[0], gaps[1]))  # fmt: skip


def flip_table(found: Comparison) -> Table:
    """The fourfold table, with its exact test in the caption."""
    test = "nothing is paired"
    if found.p is not None and found.midp is not None:
        test = f"exact McNemar {p_value(found.p, 3)}, mid-p {p_value(found.midp, 3).removeprefix('p ')}"
    n, lost, gained = found.paired, len(found.lost), len(found.gained)
    return Table(
        name="flips", caption=f"{text.count(n)} pairs, {test}",
        columns=("", "B right", "B wrong"), align="lrr",
        rows=(("A right", text.count(found.both_right), f"{text.count(lost)} lost"),
              ("A wrong", f"{text.count(gained)} gained", text.count(n - found.both_right - lost - gained))),
    )  # fmt: skip


def flipped_table(change: str, pairs: Sequence[tuple[Sample, Sample]], limit: int = SHOWN) -> Table:
    """The samples that were lost, or gained, with what both runs answered."""
    rows = tuple(
        (f"#{y.doc_id}", gold_answer(y), _answer(x), _answer(y))
        for x, y in sorted(pairs, key=lambda p: p[1].doc_id)[:limit]
    )
    rest = f", the first {limit} shown" if len(pairs) > limit else ""
    words = "right in A, wrong in B" if change == "lost" else "wrong in A, right in B"
    return Table(name=change, caption=f"{change}: {words} ({text.count(len(pairs))}{rest})",
                 columns=("sample", "gold", "A answers", "B answers"), align="llll", rows=rows,
                 missing=f"No answer was {change}.", fine=True)  # fmt: skip


def _answer(sample: Sample) -> str:
    return text.clip(text.visible(sample.extracted.get(STRICT, "")), 200) or "found nothing"


def figures_table(found: Comparison) -> Table:
    """What changed from A to B, with 95 % intervals."""
    n = found.paired
    rows = []
    if n and found.interval is not None:
        difference = (len(found.gained) - len(found.lost)) / n
        span = text.points_interval(found.interval.low, found.interval.high)
        rows.append((f"{STRICT}, B minus A", text.points(difference), span, "paired, Tango"))
    if found.length is not None:
        x = found.length
        span = text.interval(x.interval.low, x.interval.high, 3, plus=True)
        rows.append(("accepted length, B minus A", text.signed(x.difference, 3), span,
                     f"{text.count(x.documents)} documents as clusters, {p_value(x.p)}"))  # fmt: skip
    rows.append(("same text", text.percent(found.same_text, found.texts), "", f"{text.count(found.same_text)} of "
                 f"{text.count(found.texts)} questions with an answer in both"))  # fmt: skip
    if any(found.alone):
        what = "answers of A / of B whose question or prompt the other has not"
        rows.append(("without a partner", f"{found.alone[0]} / {found.alone[1]}", "", what))
    return Table(name="difference", caption="What changes from A to B",
                 columns=("figure", "difference", "95 %", "how"), align="lrrl", rows=tuple(rows))  # fmt: skip


def divergence_table(found: Comparison, limit: int = SHOWN) -> Table:
    """Where the texts part, flipped answers first."""
    rows = tuple(
        (f"#{d.doc_id}", d.flipped or "same score", f"{d.unit} {text.count(d.at)}", _quoted(d.left), _quoted(d.right),
         *(_gap(gap) for gap in d.gaps))
        for d in found.divergences[:limit]
    )  # fmt: skip
    n = len(found.divergences)
    rest = f", the first {limit} shown" if n > limit else ""
    return Table(
        name="divergences", caption=f"First divergence of {text.count(n)} texts{rest}", align="llrllrr", rows=rows,
        columns=("sample", "score", "first differs at", "A has", "B has", "A's top-two gap", "B's top-two gap"),
        missing="No text differs." if found.texts else "No question has an answer in both runs.",
    )  # fmt: skip


def _gap(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.4f}"


def _quoted(words: str) -> str:
    return f"\u201c{text.visible(text.clip(words, 120)).replace(chr(10), chr(9166))}\u201d"

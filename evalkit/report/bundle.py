"""Samples packed into the page: compressed, read by the page's script when a reader comes to them.

Each run is one block: JSON, deflated, base64, in a script element that is data and never runs. What a model wrote is
in it only as base64; the script puts it into the page as text. Where all samples would make the page too large, those
that a reviewer opens first stay (flipped, wrong, without an answer, readings that disagree), with an even spread of
the rest, and the page says so and names the file with all of them.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.baseline import STRICT
from evalkit.records import Bucket, Sample
from evalkit.report import text
from evalkit.report.samples import Change, canonical_words, change_of, finish_words
from evalkit.report.subject import Subject
from evalkit.runfile import pack_sample
from evalkit.scoring import bucket_of
from evalkit.store import write_atomic

BUDGET = 2_300_000  # bytes of base64 in one page
FIELD = 20_000  # characters of a text; a page is not the place to read a megabyte
CONFIDENT = 4000  # samples up to which the confidences of a page's one or two runs go with them
SHORT = 300  # bytes of a gold answer or an extracted one
FIRST_GUESS = 12_000  # samples that are packed at most: hardly more ever fit
STATES = {Bucket.TIMEOUT: "failed", Bucket.FAILED: "failed", Bucket.TRUNCATED: "truncated",
          Bucket.TRUNCATED_IN_THINKING: "truncated", Bucket.ANSWERED: ""}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One run's samples as they stand in the page."""

    index: int
    label: str
    run_id: str
    shown: int
    total: int
    data: str  # base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    blocks: tuple[Block, ...]

    @property
    def capped(self) -> bool:
        return any(b.shown < b.total for b in self.blocks)

    @property
    def shown(self) -> int:
        return sum(b.shown for b in self.blocks)

    @property
    def total(self) -> int:
        return sum(b.total for b in self.blocks)


def bundle(found: Sequence[Subject], budget: int = BUDGET) -> Bundle:
    """All samples of the runs, or as many as fit into `budget` bytes of base64."""
    total = sum(len(s.run.samples) for s in found)
    share, limit = min(1.0, FIRST_GUESS / max(total, 1)), FIELD
    confidence = len(found) <= 2 and total <= CONFIDENT
    for _ in range(8):
        made = Bundle(blocks=tuple(_block(s, share, limit, confidence) for s in found))
        size = sum(len(b.data) for b in made.blocks)
        if size <= budget:
            return made
        if confidence and size < 2 * budget:
            confidence = False
        elif limit > 2000 and max((len(x.text) for s in found for x in s.run.samples), default=0) > 2000:
            limit = 2000
        else:
            share *= 0.93 * budget / size
    return made


def _block(s: Subject, share: float, limit: int, confidence: bool) -> Block:
    samples = s.run.samples
    picked = _pick(s, max(1, round(share * len(samples)))) if share < 1 else list(range(len(samples)))
    rows = [_row(s, samples[i], limit, confidence) for i in picked]
    packed = json.dumps({"label": s.label, "run": text.visible(s.run.id), "rows": rows}, ensure_ascii=True,
                        separators=(",", ":"), allow_nan=False)  # fmt: skip
    data = base64.b64encode(zlib.compress(packed.encode("ascii"), 6)).decode("ascii")
    return Block(index=s.index, label=s.label, run_id=s.run.id, shown=len(rows), total=len(samples), data=data)


def _pick(s: Subject, count: int) -> list[int]:
    """Places of the samples that stay: the ones to read first, then an even spread of the others."""
    first, rest = [], []
    for i, sample in enumerate(s.run.samples):
        changed = change_of(sample, s.baseline) is not None
        plain = sample.canonical is None or sample.canonical.disagreement == ""
        (first if changed or sample.error or not plain or sample.finish_reason == "length" else rest).append(i)
    if len(first) >= count:
        first = [first[round(j * (len(first) - 1) / max(count - 1, 1))] for j in range(count)]
        return sorted(set(first))
    left = count - len(first)
    spread = {rest[j * len(rest) // left] for j in range(left)} if left < len(rest) else set(rest)
    return sorted({*first, *spread})


def _row(s: Subject, sample: Sample, limit: int, confidence: bool) -> dict[str, Any]:
    """One sample. Absent keys mean nothing: the script knows each of them."""
    bucket = bucket_of(sample)
    change = change_of(sample, s.baseline)
    right = sample.scores.get(STRICT)
    row: dict[str, Any] = {
        "d": sample.doc_id,
        "q": text.clip(text.visible(sample.question), limit),
        "g": text.clip(text.visible(sample.gold), SHORT * 4),
        "t": text.clip(text.visible(sample.text), limit),
        "s": "right" if right == 1 else "wrong" if right == 0 else "unscored",
        "b": "" if bucket is Bucket.ANSWERED else STATES.get(bucket, bucket.value),
        "c": {Change.LOST: "lost", Change.GAINED: "gained"}.get(change, "") if change else "",
        "x": [[_brief(name), _brief(got)] for name, got in sample.extracted.items()],
        "v": [[_brief(name), value] for name, value in sample.scores.items()],
        "r": _brief(sample.canonical.disagreement) if sample.canonical else "",
        "f": "" if sample.error else finish_words(sample),
        "w": "" if sample.error else canonical_words(sample, SHORT),
        "e": text.clip(text.visible(sample.error), SHORT * 4),
        "k": _brief(sample.category),
        "h": sample.doc_hash[:16] + sample.prompt_hash[:8],
        **_tokens(sample, limit, confidence),
    }  # fmt: skip
    return {name: value for name, value in row.items() if value not in ("", [], None)}


def _brief(words: str) -> str:
    """A short text of the run's own: a name, a category, an extracted answer."""
    return text.clip(text.visible(words), SHORT)


def _tokens(sample: Sample, limit: int, confidence: bool) -> dict[str, Any]:
    """The text cut into tokens, and the steps: [k, accepted, in the output, cut, [rejected ...], [confidence ...]]."""
    if len(sample.text) > limit:
        return {}
    steps = [
        [x.k, x.accepted, x.accepted_trimmed, x.cut, [text.visible(r) for r in x.rejected],
         [round(c, 2) for c in x.confidence] if confidence else []]
        for x in sample.steps
    ]  # fmt: skip
    for step in steps:
        while step[-1] in ("", []):
            step.pop()
    if not sample.pieces:
        return {"n": steps}
    whole = "".join(sample.pieces)
    pieces = sample.pieces if text.visible(whole) == whole else [text.visible(p) for p in sample.pieces]
    joined, shown = "".join(pieces), text.visible(sample.text)
    if joined.startswith(shown):  # nearly always: then the text is not stored twice
        return {"n": steps, "l": [len(p) for p in pieces], "a": joined[len(shown) :]}
    return {"n": steps, "p": list(pieces)}


def write_all(found: Sequence[Subject], path: Path) -> Path:
    """Every sample as stored, one JSON line each with its run's id, gzipped, for a page that holds only some."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        for s in found:
            head = json.dumps({"run": s.run.id})[:-1].encode() + b", "
            for sample in s.run.samples:
                file.write(head + pack_sample(sample)[1:])
    write_atomic(path, out.getvalue())
    return path


def beside(path: Path) -> Path:
    """Where the page's full samples lie."""
    return path.with_name(f"{path.name.removesuffix('.html')}.samples.jsonl.gz")

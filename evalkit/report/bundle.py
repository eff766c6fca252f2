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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalkit.baseline import STRICT
from evalkit.files import write_atomic
from evalkit.records import Bucket, Sample
from evalkit.report import text
from evalkit.report.samples import Change, canonical_words, change_of, finish_words
from evalkit.report.subject import Subject
from evalkit.runfile import pack_sample
from evalkit.scoring import bucket_of

BUDGET = 2_300_000  # bytes of base64 in one page
FIELD = 20_000  # characters of a text; a page is not the place to read a megabyte
CONFIDENT = 4000  # samples up to which the confidences of a page's one or two runs go with them
SHORT = 300  # bytes of a gold answer or an extracted one
SHORTER = 2000  # characters of a text where FIELD leaves no room for all samples
PROBE = 16_000  # samples above which a part is packed first to tell how many fit
LINES = 500  # of the full samples, compressed at a time
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
    questions: str  # base64: what the runs' samples were asked, each once

    @property
    def capped(self) -> bool:
        return any(b.shown < b.total for b in self.blocks)

    @property
    def shown(self) -> int:
        return sum(b.shown for b in self.blocks)

    @property
    def total(self) -> int:
        return sum(b.total for b in self.blocks)

    @property
    def size(self) -> int:
        return sum(len(b.data) for b in self.blocks) + len(self.questions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a page has room for: a share of the samples, characters of a text, the confidences or not."""

    share: float
    limit: int
    confidence: bool


def bundle(found: Sequence[Subject], budget: int = BUDGET) -> Bundle:
    """All samples of the runs, or as many as fit into `budget` bytes of base64."""
    total = sum(len(s.run.samples) for s in found)
    long = max((len(x.text) for s in found for x in s.run.samples), default=0) > SHORTER
    room = Room(share=1.0, limit=FIELD, confidence=len(found) <= 2 and total <= CONFIDENT)
    if total > PROBE:
        expected = _pack(found, replace(room, share=PROBE / total)).size * total / PROBE
        room = _less(room, expected / budget, long) if expected > budget else room
    for _ in range(8):
        made = _pack(found, room)
        if made.size <= budget:
            break
        room = _less(room, made.size / budget, long)
    return made


def _less(room: Room, over: float, long: bool) -> Room:
    """Room for `over` times less: confidences go first, then the ends of long texts, then samples."""
    if room.confidence and over < 2:
        return replace(room, confidence=False)
    if room.limit > SHORTER and long:
        return replace(room, limit=SHORTER)
    return replace(room, confidence=False, share=0.95 * room.share / over)


def _pack(found: Sequence[Subject], room: Room) -> Bundle:
    questions: dict[tuple[str, ...], int] = {}
    blocks = tuple(_block(s, room, questions) for s in found)
    asked = [[_clip(q, room.limit), _clip(gold, SHORT * 4), _brief(category)] for _, _, q, gold, category in questions]
    return Bundle(blocks=blocks, questions=_deflated(asked))


def _block(s: Subject, room: Room, questions: dict[tuple[str, ...], int]) -> Block:
    """`questions` gets those of the run that it does not have yet, each with its place."""
    samples = s.run.samples
    picked = _pick(s, max(1, round(room.share * len(samples)))) if room.share < 1 else range(len(samples))
    rows = []
    for sample in (samples[i] for i in picked):
        asked = (sample.doc_hash, sample.prompt_hash, sample.question, sample.gold, sample.category)
        rows.append(_row(s, sample, questions.setdefault(asked, len(questions)), room))
    data = _deflated({"label": s.label, "run": s.link, "rows": rows})
    return Block(index=s.index, label=s.label, run_id=s.link, shown=len(rows), total=len(samples), data=data)


def _deflated(value: object) -> str:
    packed = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(packed.encode("ascii"), 6)).decode("ascii")


def _clip(words: str, limit: int) -> str:
    return text.clip(text.visible(words), limit)


def _pick(s: Subject, count: int) -> list[int]:
    """Places of the samples that stay: the ones to read first, then an even spread of the others."""
    first, rest = [], []
    for i, sample in enumerate(s.run.samples):
        changed = change_of(sample, s.partner) is not None
        plain = sample.canonical is None or sample.canonical.disagreement == ""
        (first if changed or sample.error or not plain or sample.finish_reason == "length" else rest).append(i)
    if len(first) >= count:
        first = [first[round(j * (len(first) - 1) / max(count - 1, 1))] for j in range(count)]
        return sorted(set(first))
    left = count - len(first)
    spread = {rest[j * len(rest) // left] for j in range(left)} if left < len(rest) else set(rest)
    return sorted({*first, *spread})


def _row(s: Subject, sample: Sample, question: int, room: Room) -> dict[str, Any]:
    """One sample, and the place of its question. Absent keys mean nothing: the script knows each of them."""
    bucket = bucket_of(sample)
    change = change_of(sample, s.partner)
    right = sample.scores.get(STRICT)
    row: dict[str, Any] = {
        "d": sample.doc_id,
        "i": question,
        "t": _clip(sample.text, room.limit),
        "s": "right" if right == 1 else "wrong" if right == 0 else "unscored",
        "b": "" if bucket is Bucket.ANSWERED else STATES.get(bucket, bucket.value),
        "c": {Change.LOST: "lost", Change.GAINED: "gained"}.get(change, "") if change else "",
        "x": [[_brief(name), _brief(got)] for name, got in sample.extracted.items()],
        "v": [[_brief(name), value] for name, value in sample.scores.items()],
        "r": _brief(sample.canonical.disagreement) if sample.canonical else "",
        "f": "" if sample.error else finish_words(sample),
        "w": "" if sample.error else canonical_words(sample, SHORT),
        "e": _clip(sample.error, SHORT * 4),
        **_tokens(sample, room),
    }  # fmt: skip
    return {name: value for name, value in row.items() if value not in ("", [], None)}


def _brief(words: str) -> str:
    """A short text of the run's own: a name, a category, an extracted answer."""
    return _clip(words, SHORT)


def _tokens(sample: Sample, room: Room) -> dict[str, Any]:
    """The text cut into tokens, and the steps: [k, accepted, in the output, cut, [rejected ...], [confidence ...]]."""
    if len(sample.text) > room.limit:
        return {}
    steps = [
        [x.k, x.accepted, x.accepted_trimmed, x.cut, [text.visible(r) for r in x.rejected],
         [round(c, 2) for c in x.confidence] if room.confidence else []]
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
            for i in range(0, len(s.run.samples), LINES):
                file.write(b"".join(head + pack_sample(sample)[1:] for sample in s.run.samples[i : i + LINES]))
    write_atomic(path, out.getvalue())
    return path


def beside(path: Path) -> Path:
    """Where the page's full samples lie."""
    return path.with_name(f"{path.name.removesuffix('.html')}.samples.jsonl.gz")

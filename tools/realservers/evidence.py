"""What a run against a server shows: its figures, and where it differs from another run of the same questions."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.realservers.install import ROOT, Failed
from tools.realservers.start import Server

if TYPE_CHECKING:
    from evalkit.records import Run, Sample

NEAR = 1e-3  # of a top-two logit gap: float32 sums in another order differ by less than that
COUNTERS = {
    "vllm": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"),
    "llamacpp": ("llamacpp:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
    "openai": ("evalkit:verify_steps_total", "evalkit:accepted_drafts_total"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One run: what ran, its score, and acceptance by evalkit beside the server's own page, read here."""

    what: str
    model: str
    k: int
    questions: int
    right: int
    length: str  # accepted length
    steps: int
    accepted: int
    source: str
    page: str  # accepted in steps, by the page
    seconds: int


def evaluate(label: str, folder: Path, *words: str) -> tuple[Run, list[str]]:
    """`evalkit run` with these words: the stored run, and the lines of its verdict. Raises Failed."""
    from evalkit.store import load_run

    runs = folder / "runs" / label
    command = [sys.executable, "-m", "evalkit.cli", "run", "--fresh", "--no-report", "--runs-dir", str(runs), *words]
    before = {p: p.stat().st_mtime for p in runs.glob("*/run.json")}
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    made = [p for p in runs.glob("*/run.json") if p.stat().st_mtime != before.get(p)]
    if done.returncode not in (0, 1, 3) or len(made) != 1:
        raise Failed(f"evalkit run of {label} exited {done.returncode} and stored {len(made)} runs")
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("verdict")), len(lines))
    shown = ("verdict", "  pass", "  fail", "  inconclusive")
    return load_run(made[0].parent), [x.rstrip() for x in lines[start:] if x.startswith(shown)]


def at(server: Server) -> tuple[str, ...]:
    """The words of `evalkit run` for a server that runs."""
    return ("--engine", server.profile, "--base-url", f"{server.url}/v1", "--served-name", server.name)


def counted(server: Server) -> tuple[int, int] | None:
    """(verify steps, accepted drafts) since the server's start by its page; None where it has none."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as reply:
            page = reply.read().decode()
    except OSError:
        return None
    totals = dict.fromkeys(COUNTERS[server.profile], 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    steps, accepted = totals.values()
    return int(steps), int(accepted)


def row(what: str, model: str, run: Run, page: tuple[int, int] | None = None) -> Row:
    """The run's figures. Raises Failed where a request failed or the acceptance is no evidence."""
    from evalkit.acceptance import of_run

    if failed := [s for s in run.samples if s.error]:
        raise Failed(f"{what}: {len(failed)} of {len(run.samples)} requests failed: {failed[0].error}")
    found = of_run(run)
    if found.problems:
        raise Failed(f"{what}: the acceptance has problems: {'; '.join(found.problems)}")
    k = int(run.cell["k"])
    if k and not found.accepted:
        raise Failed(f"{what}: no draft was accepted at K={k}")
    return Row(
        what=what, model=model, k=k, questions=len(run.samples),
        right=int(sum(s.scores.get("strict-match", 0.0) for s in run.samples)),
        length=repr(found.accepted_length) if k else "", steps=found.steps, accepted=found.accepted,
        source=found.source if k else "", page=f"{page[1]} in {page[0]}" if page and k else "",
        seconds=round(run.seconds),
    )  # fmt: skip


def by_document(run: Run) -> dict[int, Sample]:
    return {s.doc_id: s for s in run.samples}


@dataclass(frozen=True, slots=True)
class Difference:
    """One question that is not answered alike. `gap` is our target's top-two logit gap at the token where the texts
    part, None where it is not known; below NEAR it is a tie that another order of sums decides otherwise."""

    doc_id: int
    words: str
    gap: float | None = None

    @property
    def explained(self) -> bool:
        return self.gap is not None and self.gap < NEAR

    def __str__(self) -> str:
        told = "unknown" if self.gap is None else f"{self.gap:.2g}"
        cause = ": a near-tie" if self.explained else ""
        return f"question {self.doc_id}: {self.words}, top-two gap {told}{cause}"


def differences(ours: Run, theirs: Run) -> list[Difference]:
    """Each question that is not answered alike: texts, and what strict-match made of them."""
    mine, out = by_document(ours), []
    for doc, other in by_document(theirs).items():
        one = mine.get(doc)
        if one is None:
            out.append(Difference(doc, "asked only there"))
            continue
        scores = "" if one.scores == other.scores else f"; scores {dict(one.scores)} and {dict(other.scores)}"
        if one.text != other.text or scores:
            at = parting(one.text, other.text)
            out.append(Difference(doc, f"texts part at character {at}{scores}", gap_at(one, at)))
    return out


def parting(one: str, other: str) -> int:
    """The first character in which two texts differ; the shorter one's length where it begins the other."""
    where = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return min(len(one), len(other)) if where is None else where


def gap_at(sample: Sample, character: int) -> float | None:
    """The smallest gap of the tokens that may have decided a character: the one that holds it, and the one before.

    A character of several tokens shows only with the last of them.
    """
    if len(sample.gaps) != len(sample.pieces):
        return None
    end = 0
    for i, piece in enumerate(sample.pieces):
        end += len(piece)
        if end > character:
            return min(sample.gaps[max(0, i - 1) : i + 1])
    return sample.gaps[-1] if sample.gaps else None


def stop_was_a_draft(sample: Sample) -> bool:
    """Whether the stop id was an accepted draft before the last slot: then the last step gave no token of its own."""
    last, kept = sample.steps[-1], sum(s.accepted_trimmed for s in sample.steps)
    bonus = sample.tokens == 1 + kept + len(sample.steps)
    return not bonus and last.accepted_trimmed < last.k


def stop_ids(ours: Run, theirs: Run) -> Sequence[str]:
    """Questions whose accepted drafts are not ours less the stop ids: llama.cpp counts those only in the last slot."""
    mine, out = by_document(ours), []
    for doc, other in by_document(theirs).items():
        one = mine[doc]
        wanted = sum(s.accepted for s in one.steps) - stop_was_a_draft(one), sum(s.k for s in one.steps)
        told = (other.counts.accepted, other.counts.drafts) if other.counts else None
        if told != wanted:
            out.append(f"question {doc}: {told} (accepted, drafts) told, {wanted} by our steps")
    return out

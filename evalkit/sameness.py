"""What a run found, as one hash: two runs with the same hash are one result, however often it was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from evalkit.records import Run, Sample

COPIED = "the same samples, each in the same time to the last digit, which two runs never take"


def samples_sha(samples: Iterable[Sample]) -> str:
    """SHA-256 over each sample's question, prompt, text, end, scores and verify steps, in the order of documents.

    Times, and what a cache served, are left out: they differ between runs that found the same.
    """
    made = hashlib.sha256()
    for s in sorted(samples, key=lambda s: (s.doc_id, s.doc_hash, s.prompt_hash)):
        steps = [(x.k, x.accepted, x.accepted_trimmed, x.forced) for x in s.steps]
        counts = None if s.counts is None else (s.counts.steps, s.counts.accepted, s.counts.drafts)
        told = (s.doc_id, s.doc_hash, s.prompt_hash, s.text, s.reasoning, s.tokens, s.finish_reason, s.error, s.forced,
                sorted(s.scores.items()), sorted(s.extracted.items()), steps, counts)  # fmt: skip
        made.update(json.dumps(told).encode())
    return made.hexdigest()


def copy_among(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """A run and a copy of it under another id; None where there is none.

    A true repeat, even a greedy one that finds the same, takes other times. Runs in which all samples have one time
    (a clock that tells nothing) are left out.
    """
    known: dict[tuple[str, tuple[float, ...]], Run] = {}
    for run in runs:
        seconds = tuple(s.seconds for s in sorted(run.samples, key=lambda s: (s.doc_id, s.doc_hash, s.prompt_hash)))
        if len(set(seconds)) > 1 and (other := known.setdefault((samples_sha(run.samples), seconds), run)) is not run:
            return other, run
    return None

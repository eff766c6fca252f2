"""What a run found, as one hash: two runs with the same hash are one result, however often it was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from evalkit.records import Sample


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

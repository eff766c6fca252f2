"""Counts by document: what every figure of acceptance and its uncertainty are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalkit.records import Sample


def cluster_counts(samples: Sequence[Sample], k: int) -> np.ndarray:
    """Steps with 0..K accepted drafts, by document that has any: [documents, K+1]. Failed samples are left out."""
    rows: dict[int, list[int]] = {}
    for sample in samples:
        if sample.error:
            continue
        for step in sample.steps:
            if step.k >= 1:
                rows.setdefault(sample.doc_id, [0] * (k + 1))[step.accepted] += 1
    return np.array(list(rows.values()), dtype=np.float64).reshape(-1, k + 1)

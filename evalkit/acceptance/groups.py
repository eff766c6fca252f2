"""Accepted length by category of the document and by length of the answer: from steps, else from a server's totals of
each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evalkit import stats
from evalkit.acceptance.columns import cluster_counts
from evalkit.records import Sample

LENGTH_BINS = (0, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # first token count of each bin


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Accepted length (tokens a step) of the samples with one label; clustered by document."""

    label: str
    samples: int
    steps: int
    accepted_length: float | None
    se: float | None
    survival: tuple[float, ...]  # S_1 .. S_K; () where single steps are not told


def by_category(samples: Sequence[Sample], k: int) -> tuple[Group, ...]:
    """By the document's own category (or template); "" where it has none."""
    return _grouped(samples, k, lambda s: s.category, None)


def by_answer_length(samples: Sequence[Sample], k: int) -> tuple[Group, ...]:
    """By tokens of the answer: a draft may be good early in a text and bad late."""
    labels = [f"{low} to {high - 1}" for low, high in pairwise(LENGTH_BINS)]
    labels.append(f"from {LENGTH_BINS[-1]}")

    def label(sample: Sample) -> str:
        return labels[int(np.searchsorted(LENGTH_BINS, sample.tokens, side="right")) - 1]

    return _grouped(samples, k, label, labels)


def _grouped(
    samples: Sequence[Sample], k: int, label: Callable[[Sample], str], order: Sequence[str] | None
) -> tuple[Group, ...]:
    parts: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            parts.setdefault(label(sample), []).append(sample)
    names = [name for name in order if name in parts] if order is not None else sorted(parts)
    return tuple(_group(name, parts[name], k) for name in names)


def _group(label: str, samples: Sequence[Sample], k: int) -> Group:
    counts = cluster_counts(samples, k)
    if not len(counts):
        return _of_totals(label, samples)
    ratio = stats.clustered_ratio(counts @ np.arange(k + 1), counts.sum(axis=1))
    survival = stats.survival_counts(counts)[:, 1:].sum(axis=0) / counts.sum()
    return Group(
        label=label, samples=len(samples), steps=int(counts.sum()), accepted_length=1 + ratio.ratio, se=ratio.se,
        survival=tuple(float(x) for x in survival),
    )  # fmt: skip


def _of_totals(label: str, samples: Sequence[Sample]) -> Group:
    """The same of requests whose steps and accepted drafts are only told as totals."""
    by_document: dict[int, list[int]] = {}
    for s in samples:
        if s.counts is not None and s.counts.steps:
            mine = by_document.setdefault(s.doc_id, [0, 0])
            mine[0] += s.counts.steps
            mine[1] += s.counts.accepted
    steps = sum(n for n, _ in by_document.values())
    length = se = None
    if steps:
        ratio = stats.clustered_ratio([a for _, a in by_document.values()], [n for n, _ in by_document.values()])
        length, se = 1 + ratio.ratio, ratio.se
    return Group(label=label, samples=len(samples), steps=steps, accepted_length=length, se=se, survival=())

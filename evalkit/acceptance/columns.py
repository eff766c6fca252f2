"""Steps as columns, one array a field: what every figure of acceptance is counted from.

A run of 1319 samples has about twelve thousand steps and a page shows ten such runs: records are read once here, and
what follows is arithmetic on arrays. The same figures step by step are in the tests (tests/evalkit/plain.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from evalkit.acceptance.identities import check_samples, columns_hold
from evalkit.records import Sample


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Steps:
    """All steps of the samples that did not fail, in order, those without a draft (k = 0) included."""

    documents: tuple[int, ...]  # [samples that did not fail]: their doc_id
    sample: np.ndarray  # [steps] int64: place among these samples
    k: np.ndarray  # [steps] int64
    accepted: np.ndarray  # [steps] int64, raw
    trimmed: np.ndarray  # [steps] int64: drafts that are in the output
    stop: np.ndarray  # [steps] bool: cut at a stop
    limit: np.ndarray  # [steps] bool: cut at the token limit
    told: np.ndarray  # [steps] int64: how many confidences the step has
    confidence: np.ndarray  # [sum of told] float64, step after step

    @property
    def verify(self) -> np.ndarray:
        """[steps] bool: those with drafts, which alone enter figures."""
        return self.k >= 1

    @property
    def first(self) -> np.ndarray:
        """[steps] int64: place of the step's first confidence."""
        return np.cumsum(self.told) - self.told

    @property
    def judged(self) -> np.ndarray:
        """[steps] int64: drafts that say something about the draft: all, or those up to a stop in their midst."""
        return np.where(self.stop, self.trimmed, self.k)

    @property
    def start(self) -> np.ndarray:
        """[steps] int64: the answer token, from 1, at which the step starts; the first one comes from prefill."""
        before = np.cumsum(self.trimmed + 1) - self.trimmed - 1
        new = np.diff(self.sample, prepend=-1) != 0
        return 1 + before - np.repeat(before[new], np.diff(np.append(np.flatnonzero(new), len(before))))

    def counts(self, k: int) -> np.ndarray:
        """Verify steps with 0..K accepted drafts, by document that has any: [documents, K+1] float64."""
        return _counts(self.documents, self.sample[self.verify], self.accepted[self.verify], k)

    def judged_at(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The one law of conditional rates: (kept, judged), each [documents, K] float64.

        A draft is judged at position j where all drafts before it were kept. A block that a stop cut is judged up to
        its last draft in the output: the answer was over there, so what became of the drafts past it is no rejection.
        A block that the token limit cut is judged whole: its text would have gone on.
        """
        at = np.arange(1, k + 1)
        verify = self.verify
        accepted = self.accepted[verify][:, None]
        judged = (self.judged[verify][:, None] >= at) & (accepted >= at - 1)  # [verify steps, K]
        row, many = _rows(self.documents, self.sample[verify])
        out = np.zeros((2, many, k))
        np.add.at(out[0], row, judged & (accepted >= at))
        np.add.at(out[1], row, judged)
        return out[0], out[1]


def steps_of(samples: Sequence[Sample], k: int | None = None) -> Steps:
    """The samples' steps. Raises EvalkitError for one that contradicts itself or has more drafts than `k`."""
    answered = [s for s in samples if not s.error]
    steps = list(chain.from_iterable(s.steps for s in answered))
    counts = [[s.k for s in steps], [s.accepted for s in steps], [s.accepted_trimmed for s in steps]]
    cuts, told = [s.cut for s in steps], [len(s.confidence) for s in steps]
    confidence = np.array(list(chain.from_iterable(s.confidence for s in steps)) or np.empty(0))
    if not columns_hold(counts, cuts, confidence, k):
        check_samples(answered, k)  # says which step it is
    return Steps(
        documents=tuple(s.doc_id for s in answered),
        sample=_places(answered),
        k=np.array(counts[0], dtype=np.int64),
        accepted=np.array(counts[1], dtype=np.int64),
        trimmed=np.array(counts[2], dtype=np.int64),
        stop=np.array([cut == "stop" for cut in cuts], dtype=bool),
        limit=np.array([cut == "limit" for cut in cuts], dtype=bool),
        told=np.array(told, dtype=np.int64),
        confidence=confidence.astype(np.float64),
    )


def cluster_counts(samples: Sequence[Sample], k: int) -> np.ndarray:
    """`steps_of(samples, k).counts(k)` of steps that hold, without their other columns."""
    answered = [s for s in samples if not s.error]
    steps = list(chain.from_iterable(s.steps for s in answered))
    verify = np.array([s.k for s in steps], dtype=np.int64) >= 1
    accepted = np.array([s.accepted for s in steps], dtype=np.int64)
    return _counts([s.doc_id for s in answered], _places(answered)[verify], accepted[verify], k)


def _places(answered: Sequence[Sample]) -> np.ndarray:
    return np.repeat(np.arange(len(answered)), [len(s.steps) for s in answered])


def _counts(documents: Sequence[int], sample: np.ndarray, accepted: np.ndarray, k: int) -> np.ndarray:
    """A histogram over 0..K a document, in the order in which they come."""
    row, many = _rows(documents, sample)
    flat = np.bincount(row * (k + 1) + accepted, minlength=many * (k + 1))
    return flat.astype(np.float64).reshape(-1, k + 1)


def _rows(documents: Sequence[int], sample: np.ndarray) -> tuple[np.ndarray, int]:
    """([steps] the row of each step's document, in the order in which they come; how many documents)."""
    place: dict[int, int] = {}
    row = np.zeros(len(documents), dtype=np.int64)
    for i in np.flatnonzero(np.bincount(sample)).tolist():
        row[i] = place.setdefault(documents[i], len(place))
    return row[sample], len(place)

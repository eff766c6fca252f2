"""Samples counted: buckets, reasons of disagreement, format drift, the score that failed requests leave open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.records import Bucket, Sample
from evalkit.scoring import bucket_of, score_samples
from evalkit.views import FLEXIBLE, STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """A score where some requests have none: all of them wrong (`worst`), all of them right (`best`)."""

    correct: int
    answered: int  # requests with a score
    expected: int  # requests

    @property
    def worst(self) -> float:
        return self.correct / self.expected

    @property
    def best(self) -> float:
        return (self.correct + self.expected - self.answered) / self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Shares of right answers by the three readings, over the requests that came back."""

    n: int
    strict: float
    flexible: float
    canonical: float
    reasons: Mapping[str, int]  # why the readings disagree -> samples, most first

    @property
    def size(self) -> float:
        """Canonical less strict: what strict-match misses (below 0: what it takes that is no answer)."""
        return self.canonical - self.strict

    @property
    def words(self) -> str:
        """`marker missing 12, currency 3`"""
        return ", ".join(f"{reason} {n}" for reason, n in self.reasons.items()) or "no disagreement"


def bucket_counts(samples: Iterable[Sample]) -> dict[Bucket, int]:
    """Samples in each bucket, in the order of `Bucket`; the counts add up to all samples."""
    found = Counter(bucket_of(s) for s in samples)
    return {bucket: found[bucket] for bucket in Bucket}


def score_range(samples: Sequence[Sample], name: str, expected: int) -> ScoreRange:
    """The score called `name` over all `expected` requests; those that failed or are missing leave a range (C84)."""
    known = [s.scores[name] for s in samples if not s.error and name in s.scores]
    if not expected > 0 or len(known) > expected:
        raise EvalkitError(f"{len(known)} scores of {expected} requests", "score the run again")
    return ScoreRange(correct=sum(v == 1 for v in known), answered=len(known), expected=expected)


def drift(samples: Sequence[Sample]) -> Drift | None:
    """How far strict-match and the canonical score are apart; None without a scored sample."""
    scored = [s for s in samples if not s.error and STRICT in s.scores]
    if not scored:
        return None
    found, n = score_samples(scored), len(scored)
    reasons = Counter(c.disagreement for c in found if c.disagreement)
    return Drift(
        n=n,
        strict=sum(s.scores[STRICT] == 1 for s in scored) / n,
        flexible=sum(s.scores.get(FLEXIBLE) == 1 for s in scored) / n,
        canonical=sum(c.correct is True for c in found) / n,
        reasons=dict(reasons.most_common()),
    )


def group_by_document(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """lm-eval's sample rows by document and filter: it writes one row a filter, so rows are no count of questions.

    Raises EvalkitError for a row that comes twice and for a document without all filters (C30).
    """
    out: dict[int, dict[str, Mapping[str, Any]]] = {}
    names: set[str] = set()
    for row in rows:
        doc, name = int(row["doc_id"]), str(row.get("filter", "none"))
        if name in out.setdefault(doc, {}):
            raise EvalkitError(f"document {doc} has two rows of filter {name}", "take the rows of one run only")
        out[doc][name] = row
        names.add(name)
    for doc, found in out.items():
        if missing := sorted(names - set(found)):
            raise EvalkitError(f"document {doc} has no row of filter {missing[0]}", "take the rows of a whole run")
    return out

"""Scores by category of the document: what a mean over all of them hides (C71: one subset gains 33 points, the others
stay).

A category is told from chance by the exact McNemar test against the baseline's answers to its questions, with Holm's
correction over the categories. Two-sided: a lossless draft gives no gain either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evalkit import stats
from evalkit.baseline import STRICT, Baseline
from evalkit.chances import p_value
from evalkit.records import Run, Sample
from evalkit.report import text
from evalkit.report.samples import partner
from evalkit.report.text import Table

ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """One category: right answers of all scored, and beside them those of the baseline to the same questions."""

    name: str
    correct: int
    scored: int
    pairs: int
    before: int  # right in the baseline, of the pairs
    up: int  # from wrong to right
    down: int
    p: float | None  # after Holm's correction; None without a pair

    @property
    def difference(self) -> float:
        """Of the pairs, as a fraction of 1."""
        return (self.up - self.down) / self.pairs

    @property
    def told(self) -> bool:
        """Whether the difference is no chance."""
        return self.p is not None and self.p <= ALPHA

    @property
    def words(self) -> str:
        change = "gains" if self.up > self.down else "loses"
        said = f"category {self.name} {change} {100 * abs(self.difference):.1f} points"
        p = p_value(self.p or 0.0)
        why = f"{self.down} lost, {self.up} gained of {self.pairs} pairs; exact {p} after Holm's correction"
        return f"{said} ({why})" + ("; a lossless draft gives no gain" if self.up > self.down else "")


def by_category(run: Run, baseline: Baseline | None) -> tuple[Subset, ...]:
    """Of strict-match; empty where the documents have no categories, or all the same."""
    rows = []
    for s in run.samples:
        if not s.error and s.scores.get(STRICT) in (0, 1):
            row = partner(s, baseline)
            rows.append((s.category, int(s.scores[STRICT]), None if row is None else row.strict))
    return subsets(rows)


def of_pairs(pairs: Iterable[tuple[Sample, Sample]]) -> tuple[Subset, ...]:
    """The same of run B beside run A, whose pairs (a, b) both have a score."""
    return subsets((b.category, int(b.scores[STRICT]), int(a.scores[STRICT])) for a, b in pairs)


def subsets(rows: Iterable[tuple[str, int, int | None]]) -> tuple[Subset, ...]:
    """Of (category, here, there) with 0 or 1 each, `there` None for a question without a partner. Those that are told
    from chance come first, then the largest."""
    parts: dict[str, list[tuple[int, int | None]]] = {}
    for name, here, there in rows:
        parts.setdefault(name, []).append((here, there))
    if len(parts) < 2:
        return ()
    made = [_subset(name or "no category", found) for name, found in parts.items()]
    tested = [s for s in made if s.pairs]
    adjusted = stats.holm([stats.mcnemar_exact(s.up, s.down) for s in tested]) if tested else []
    known = dict(zip([s.name for s in tested], adjusted, strict=True))
    out = [replace(s, p=known.get(s.name)) for s in made]
    return tuple(sorted(out, key=lambda s: (not s.told, -s.scored, s.name)))


def _subset(name: str, found: Sequence[tuple[int, int | None]]) -> Subset:
    pairs = [(here, there) for here, there in found if there is not None]
    return Subset(
        name=name, correct=sum(h for h, _ in found), scored=len(found), pairs=len(pairs),
        before=sum(t for _, t in pairs), up=sum(h > t for h, t in pairs), down=sum(h < t for h, t in pairs), p=None,
    )  # fmt: skip


def table(found: Sequence[Subset], this: str = "this run", other: str = "baseline") -> Table:
    """A row a category."""
    rows = tuple(
        (text.clip(text.visible(s.name), 200), text.count(s.scored), _share(s.correct, s.scored),
         *_beside(s), "yes" if s.told else "no" if s.p is not None else "not compared")
        for s in found
    )  # fmt: skip
    return Table(
        name="subsets", caption=f"{STRICT} by category", align="lrrrrrrl", rows=rows,
        columns=("category", "samples", this, f"{other}, same questions", "difference, pt", "lost / gained",
                 "p (exact, Holm)", "told from chance"),
        missing="The documents of this task have no categories.", fine=True,
    )  # fmt: skip


def _beside(s: Subset) -> tuple[str, str, str, str]:
    if not s.pairs or s.p is None:
        return "not compared", "not compared", "not compared", "not compared"
    return (_share(s.before, s.pairs), text.signed(100 * s.difference, 1), f"{s.down} / {s.up}", p_value(s.p)[2:])


def _share(right: int, n: int) -> str:
    return f"{text.share(right / n)} ({right}/{n})"


def clustered_words(found: Sequence[Subset]) -> str:
    """The score's error with categories as clusters: what it is for questions of other categories. "" where that says
    nothing: fewer than two categories with a score, or no spread."""
    known = [s for s in found if s.scored]
    right, asked = sum(s.correct for s in known), sum(s.scored for s in known)
    if len(known) < 2 or right in (0, asked):
        return ""
    counts = [s.correct for s in known]  # of scores that are 0 or 1 the sum of squares is the sum
    ratio = stats.clustered_ratio(counts, [s.scored for s in known], counts)
    if ratio.interval is None or ratio.design_effect is None:
        return ""
    low, high = max(0.0, ratio.interval.low), min(1.0, ratio.interval.high)
    return (
        f"With its {len(known)} categories as clusters {STRICT} is {text.share(ratio.ratio)}{text.spread(ratio.se)}, "
        f"95 % {text.interval(low, high)} (design effect {ratio.design_effect:.2f}): the error for questions of other "
        "categories. Beside the scores is the one for more questions of these."
    )


def warnings(found: Sequence[Subset]) -> tuple[str, ...]:
    """Of the categories whose difference is no chance."""
    return tuple(text.visible(s.words) for s in found if s.told)

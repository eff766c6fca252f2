"""Which run of a page is best, where the data can tell.

The run with the highest value is compared with each other one on the documents both have, paired. It is called best
only when every one of these differences is shown (the largest of the p-values is at most alpha): naming a wrong run
needs an error in every comparison with a run that is as good, so looking at many runs does not make one. Which runs
can't be told from it is Holm's step-down over the same p-values. Two-sided, since the top run was picked by its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.chances import p_value
from evalkit.fingerprint import EXTRA, VERIFY, accuracy_fingerprint, verify_facts
from evalkit.records import Outcome, Run
from evalkit.report import text
from evalkit.report.subject import Subject

Totals = Mapping[str, tuple[float, float]]  # document and prompt -> accepted drafts, verify steps
ALPHA = 0.05
MIN_PAIRS = 20  # documents in common; fewer compare nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """`top` has the highest value (None where every run fails); `best` says whether it is shown to be above all others;
    `shared` are those with the same value, `tied` those that it can't be told from (all by place among the runs),
    `apart` those that share too few documents to be compared, `other` those of another setting with what differs."""

    what: str
    top: int | None
    best: bool
    tied: tuple[int, ...]
    apart: tuple[int, ...]
    p: float | None  # the largest: of the comparison that decides
    shared: tuple[int, ...] = ()
    other: tuple[tuple[int, str], ...] = ()
    failed: tuple[int, ...] = ()  # runs whose verdict is a fail: in no ranking

    def words(self, labels: Sequence[str]) -> str:
        out = (
            f"; left out, since the verdict is a fail: {_and([labels[i] for i in self.failed])}" if self.failed else ""
        )
        if self.top is None:
            return f"{_upper(self.what)}: no best run{out}."
        name, p = labels[self.top], "" if self.p is None else p_value(self.p)
        if self.best:
            return f"{_upper(self.what)}: {name} is best, told from every other run (largest {p}, paired){out}."
        parts = []
        tied = [i for i in self.tied if i not in self.shared]
        if tied:
            count = len(labels) - 1 - len(self.failed)
            other = "any other run" if len(tied) == count > 1 else ", ".join(labels[i] for i in tied)
            parts.append(f"can't be told from {other} (paired, Holm, largest {p})")
        if self.apart:
            other = ", ".join(labels[i] for i in self.apart)
            parts.append(f"shares too few documents with {other} to be compared")
        parts += [f"is not comparable with {labels[i]}, which differs in {why}" for i, why in self.other]
        more = "; it ".join(parts)
        if self.shared:
            first = f"{_and([name, *(labels[i] for i in self.shared)])} share the highest"
            more = f"; {name} {more}" if more else ""
            return f"{_upper(self.what)}: no best run. {first}{more}{out}."
        return f"{_upper(self.what)}: no best run. {name} is highest{f' and {more}' if more else ''}{out}."


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def differing(a: Run, b: Run) -> list[str]:
    """The facts of the setting, the draft and what serves a block apart, in which two runs differ: then a difference
    of their scores or lengths is not only of what is compared. A fact that one of them doesn't record is none."""
    one, two = accuracy_fingerprint(a).fields, accuracy_fingerprint(b).fields
    out = [n for n in one if None not in (one[n], two.get(n)) and one[n] != two[n]]
    out += [n for n in ("target",) if a.cell.get(n) != b.cell.get(n) and "target_sha" not in out]
    here, there = verify_facts(a.cell), verify_facts(b.cell)
    out += [EXTRA] if EXTRA not in out and one.get(EXTRA) != two.get(EXTRA) else []
    drafted = a.cell.get("k") and b.cell.get("k")
    return out + ([n for n in VERIFY if here.get(n) != there.get(n)] if drafted else [])


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def best_of(found: Sequence[Subject]) -> tuple[Best, ...]:
    """By strict-match and by accepted length; nothing for a single run. A forced or failing run is in no ranking."""
    runs = [s.run for s in found]
    failed = [s.verdict is not None and s.verdict.outcome is Outcome.FAIL for s in found]
    scores = [s.scored[0] / s.scored[1] if s.scored[1] and not s.run.forced else None for s in found]
    lengths = [None if s.run.forced else s.acceptance.accepted_length for s in found]
    made = (_best(STRICT, runs, scores, failed, score_p), _best("accepted length", runs, lengths, failed, length_p))
    return tuple(b for b in made if b is not None)


def _best(
    what: str, runs: Sequence[Run], values: Sequence[float | None], failed: Sequence[bool],
    compare: Callable[[Run, Run], float | None],
) -> Best | None:  # fmt: skip
    valued = [i for i, v in enumerate(values) if v is not None]
    if len(valued) < 2:
        return None
    out = tuple(i for i in valued if failed[i])
    known = [i for i in valued if not failed[i]]
    if not known:
        return Best(what=what, top=None, best=False, tied=(), apart=(), p=None, failed=out)
    top = max(known, key=lambda i: values[i] or 0.0)
    others = [i for i in known if i != top]
    other = tuple((i, text.names(why, most=3)) for i in others if (why := differing(runs[top], runs[i])))
    p = {i: compare(runs[top], runs[i]) for i in others if i not in dict(other)}
    tested = [i for i in p if p[i] is not None]
    adjusted = dict(zip(tested, stats.holm([p[i] or 0.0 for i in tested]), strict=True)) if tested else {}
    apart = tuple(i for i in p if p[i] is None)
    largest = max((x for x in p.values() if x is not None), default=None)
    best = not apart and not other and largest is not None and largest <= ALPHA
    tied = () if best else tuple(i for i in tested if adjusted[i] > ALPHA)
    shared = () if best else tuple(i for i in others if values[i] == values[top])
    return Best(what=what, top=top, best=best, tied=tied, apart=apart, p=largest, shared=shared, other=other,
                failed=out)  # fmt: skip


def bits(run: Run) -> dict[tuple[str, str], int]:
    """Strict-match by document and prompt."""
    return {
        (s.doc_hash, s.prompt_hash): int(s.scores[STRICT])
        for s in run.samples
        if not s.error and s.scores.get(STRICT) in (0, 1)
    }


def score_p(a: Run, b: Run) -> float | None:
    """Exact McNemar over the questions both have; None where these are too few."""
    one, two = bits(a), bits(b)
    both = one.keys() & two.keys()
    if len(both) < MIN_PAIRS:
        return None
    up = sum(one[d] > two[d] for d in both)
    return stats.mcnemar_exact(up, sum(one[d] < two[d] for d in both))


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDifference:
    """Accepted length of a run less that of another on the documents both have, in tokens a step."""

    documents: int
    difference: float
    interval: stats.Interval  # 95 %
    p: float  # two-sided


def length_p(a: Run, b: Run) -> float | None:
    found = length_difference(a, b)
    return None if found is None else found.p


def length_difference(a: Run, b: Run) -> LengthDifference | None:
    """Of run a less run b; None where they share too few documents."""
    one, two = _totals(a), _totals(b)
    return difference_of(one, two) if len(one.keys() & two.keys()) >= MIN_PAIRS else None


def difference_of(one: Totals, two: Totals) -> LengthDifference:
    """Difference of two ratios of sums; a document with its steps in both runs is one cluster (linearised)."""
    both = sorted(one.keys() & two.keys())
    x, y = (np.array([t[d] for d in both]) for t in (one, two))  # [documents, (accepted, steps)]
    rates = [t[:, 0].sum() / t[:, 1].sum() for t in (x, y)]
    parts = [(t[:, 0] - r * t[:, 1]) / t[:, 1].sum() for t, r in zip((x, y), rates, strict=True)]
    m = len(both)
    se = math.sqrt(m / (m - 1) * float(((parts[0] - parts[1]) ** 2).sum()))
    difference = float(rates[0] - rates[1])
    half = float(special.stdtrit(m - 1, 0.975)) * se
    if se > 1e-12:
        p = min(1.0, 2 * float(special.stdtr(m - 1, -abs(difference) / se)))
    else:
        p = 1.0 if abs(difference) < 1e-12 else 0.0
    return LengthDifference(
        documents=m, difference=difference, p=p, interval=stats.Interval(difference - half, difference + half)
    )


def _totals(run: Run) -> Totals:
    """(accepted drafts, verify steps) by document and prompt."""
    out: dict[str, tuple[float, float]] = {}
    for s in run.samples:
        steps = [x.accepted for x in s.steps if x.k >= 1] if not s.error else []
        if steps:
            out[s.doc_hash + s.prompt_hash] = (float(sum(steps)), float(len(steps)))
    return out


def mentions(found: Sequence[Best], index: int) -> str:
    """`best strict-match`: for the row of a run that is shown to be best at something."""
    return ", ".join(f"best {b.what}" for b in found if b.best and b.top == index)

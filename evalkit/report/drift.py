"""Whether the runs of one setting drift: the newest against those before it, a level that changed, other weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.chances import p_value

if TYPE_CHECKING:
    from evalkit.report.history import Brief

CHANGE_ALPHA = 0.01  # of calling a level's change one; many settings are looked at every day
MIN_EARLIER = 3  # results before the newest; fewer show no run-to-run variation worth a band


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The newest run against the earlier ones of its cell, for one figure."""

    what: str
    words: str
    odd: bool  # outside of what one more run would give
    band: tuple[float, float] | None  # where one more run falls (95 %), nothing having changed


def drift(
    what: str, values: Sequence[float], errors: Sequence[float | None], limits: tuple[float, float] = (0.0, math.inf),
    results: Sequence[str] = (),
) -> Drift:  # fmt: skip
    """Whether the newest run lies where one more run of the setting would, nothing having changed.

    `results` names what each run found; runs that found the same, bit for bit, are one result and are counted once:
    a greedy run repeated says nothing that it didn't say before. Without `results` every run is a result of its own.
    The band holds the larger of the variation between results and the newest run's own sampling error, since results
    on the same questions vary by less than independent draws would. The figure can't leave `limits`, so the band
    doesn't either.
    """
    named = list(results) or [str(i) for i in range(len(values))]
    earlier = list(dict(zip(reversed(named[:-1]), reversed(values[:-1]), strict=True)).values())[::-1]
    different = len(set(named))
    repeats = "" if different == len(named) else f" ({len(named)} runs gave {_different(different)}, each counted once)"
    if len(named) > 1 and named[-1] in named[:-1]:
        words = f"{what}: the newest run repeats an earlier one bit for bit, which is no new evidence{repeats}."
        return Drift(what=what, words=words, odd=False, band=None)
    if len(earlier) < MIN_EARLIER:
        return Drift(what=what, words=f"{what}: {_runs(len(named))}, too few to tell a drift{repeats}.", odd=False,
                     band=None)  # fmt: skip
    variation = stats.run_variation(earlier)
    found = stats.next_run_interval(variation)
    own = errors[-1] or 0.0
    low, high = min(found.low, variation.mean - 1.96 * own), max(found.high, variation.mean + 1.96 * own)
    low, high = max(low, limits[0]), min(high, limits[1])
    odd = not low <= values[-1] <= high
    said = "outside" if odd else "within"
    words = (
        f"{what}: the newest run has {values[-1]:.4f}, {said} {low:.4f} .. {high:.4f}, where 95 % of further runs fall"
        f"{repeats}."
    )
    return Drift(what=what, words=words, odd=odd, band=(low, high))


def _runs(n: int) -> str:
    return f"{n} run{'' if n == 1 else 's'}"


def _different(n: int) -> str:
    return "one result" if n == 1 else f"{n} different results"


def change(
    what: str, values: Sequence[float], errors: Sequence[float | None], names: Sequence[str],
    results: Sequence[str] = (), numbers: Sequence[int] = (),
) -> Drift | None:  # fmt: skip
    """Where a figure went to another level and stayed there (C53), which the band of the newest run can't see once the
    earlier ones have it too. None where it did not.

    Of all cuts into runs before and after the one with the largest difference over its error (of both means, from the
    results' own sampling errors), two-sided, Bonferroni over the cuts. Bit-identical runs are one result (see `drift`),
    and between two of them there is no cut. Results on the same questions have errors in common, which makes the test
    cautious. `numbers` are the runs' places in the history.
    """
    if len(values) < 2 or any(not e for e in errors):
        return None
    named = list(results) or [str(i) for i in range(len(values))]
    by_name = {name: (value, (error or 0.0) ** 2) for name, value, error in zip(named, values, errors, strict=True)}
    sides = []  # (z, cut, mean before, mean after, results before, results after)
    for cut in range(1, len(named)):
        before, after = set(named[:cut]), set(named[cut:])
        if before & after:
            continue
        means = [float(np.mean([by_name[n][0] for n in sorted(side)])) for side in (before, after)]
        error = math.sqrt(sum(sum(by_name[n][1] for n in sorted(side)) / len(side) ** 2 for side in (before, after)))
        sides.append((abs(means[1] - means[0]) / error, cut, *means, len(before), len(after)))
    if not sides:
        return None
    z, at, before_mean, after_mean, n_before, n_after = max(sides)
    p = min(1.0, 2 * float(special.ndtr(-z)) * len(sides))
    if p > CHANGE_ALPHA or (n_after == 1 and n_before >= MIN_EARLIER and at == len(named) - 1):  # that has its band
        return None
    number = (list(numbers) or list(range(1, len(named) + 1)))[at]
    words = f"{what}: {after_mean:.4f} since run {number} ({names[at]}), {before_mean:.4f} before ({p_value(p, 1)})."
    return Drift(what=what, words=words, odd=True, band=None)


def breaks(runs: Sequence[Brief]) -> list[int]:
    """Places (from 0) of the runs at which the weights are others than before; a hash that is not recorded is no
    change."""
    out: list[int] = []
    known: list[str | None] = []
    for i, run in enumerate(runs):
        here = list(run.weights)
        known += [None] * (len(here) - len(known))
        if any(a and b and a != b for a, b in zip(known, here, strict=False)):
            out.append(i)
        known = [b or a for a, b in zip(known, here, strict=False)] if here else known
    return out


def drifts(runs: Sequence[Brief]) -> list[Drift]:
    """Of score and accepted length, over the whole runs in the order of time, since the weights last changed: runs of
    other weights are never put to one test."""
    cuts = breaks(runs)
    out: list[Drift | None] = [
        Drift(what="weights", words=f"The weights changed at run {i + 1} ({_when([runs[i]])[0]}): runs before it are "
              "of another model, and no test goes across it.", odd=False, band=None) for i in cuts
    ]  # fmt: skip
    last = cuts[-1] if cuts else 0
    whole = [(i, r) for i, r in enumerate(runs, start=1) if i > last and r.complete and r.samples == r.task_size]
    with_score = [(i, r) for i, r in whole if r.score is not None]
    if with_score:
        errors = [stats.proportion_se(r.correct, r.scored) for _, r in with_score]
        out += _told(STRICT, with_score, [r.score or 0.0 for _, r in with_score], errors, (0.0, 1.0))
    with_length = [(i, r) for i, r in whole if r.length is not None]
    if with_length:
        lengths, errors = [r.length or 0.0 for _, r in with_length], [r.length_se for _, r in with_length]
        out += _told("accepted length", with_length, lengths, errors, (1.0, math.inf))
    return [d for d in out if d is not None]


def _told(
    what: str, runs: Sequence[tuple[int, Brief]], values: Sequence[float], errors: Sequence[float | None],
    limits: tuple[float, float],
) -> list[Drift | None]:  # fmt: skip
    results = [r.result or r.id for _, r in runs]
    return [
        drift(what, values, errors, limits, results),
        change(what, values, errors, _when([r for _, r in runs]), results, [i for i, _ in runs]),
    ]


def _when(runs: Sequence[Brief]) -> list[str]:
    return [r.started[:10] or r.id for r in runs]

"""What a fixed threshold has done over past runs, and what it would take to trust it.

Nothing here lowers a threshold: it reports the realised false-alarm rate and proposes. All runs given are taken to be
good ones of the same protocol; that they look alike is checked, not repaired.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalkit.stats.common import Interval, Numbers, array_of, number, open_share, whole
from evalkit.stats.proportion import exact_interval

MIN_RUNS = 20  # fewer say nothing of a rate of a few per cent
FAR = 5.0  # robust standard deviations from the median, beyond which a run is not like the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdAudit:
    """`margin` is the distance of the threshold below the mean that gives the target rate (t, for a run to come);
    `needed_n` the units a run at which the present threshold would give it; None when it lies above the mean.
    `sigmas` is how many standard deviations of a run the threshold lies below the mean."""

    runs: int
    alarms: int
    rate: float
    interval: Interval  # of the rate, exact 95 %
    mean: float
    sd: float
    sigmas: float | None
    target: float
    margin: float
    proposed: float  # mean - margin
    needed_n: int | None
    doubts: tuple[str, ...]  # why a floor from this history is not defensible; empty: none found


def audit_threshold(
    scores: Numbers, threshold: float, n: int, target: float = 0.01, *, inclusive: bool = True
) -> ThresholdAudit:
    """Past scores of good runs with n units each, against the threshold they were judged by.

    inclusive: a score equal to the threshold meets it. A score is compared as the count of n it stands for when it is
    one, so that 0.92 of 500 is not lost to rounding.
    """
    x, n = array_of(scores, "scores"), whole(n, "n", 1)
    threshold, target = number(threshold, "threshold", 0, 1), open_share(target, "target")
    if x.size < 2:
        raise ValueError("one run is no history")
    gap = x - threshold
    gap[np.abs(gap) < 1e-9] = 0.0
    alarms = int((gap < 0).sum() if inclusive else (gap <= 0).sum())
    mean, sd = float(x.mean()), float(x.std(ddof=1))
    t = float(special.stdtrit(x.size - 1, 1 - target))
    margin = t * sd * math.sqrt(1 + 1 / x.size)
    distance = mean - threshold
    return ThresholdAudit(
        runs=x.size, alarms=alarms, rate=alarms / x.size, interval=exact_interval(alarms, x.size),
        mean=mean, sd=sd, sigmas=distance / sd if sd > 0 else None, target=target, margin=margin,
        proposed=mean - margin, needed_n=max(1, math.ceil(n * (margin / distance) ** 2)) if distance > 0 else None,
        doubts=_doubts(x, alarms, target),
    )  # fmt: skip


def _doubts(x: np.ndarray, alarms: int, target: float) -> tuple[str, ...]:
    doubts = []
    if x.size < MIN_RUNS:
        doubts.append(f"{x.size} runs, fewer than {MIN_RUNS}")
    middle = float(np.median(x))
    spread = 1.4826 * float(np.median(np.abs(x - middle)))
    odd = int((np.abs(x - middle) > FAR * max(spread, 1e-12)).sum()) if spread > 0 else int((x != middle).sum())
    if odd:
        doubts.append(f"{odd} of {x.size} runs lie more than {FAR:g} robust standard deviations off: not alike")
    low = exact_interval(alarms, x.size).low
    if low > target:
        doubts.append(f"{alarms} of {x.size} good runs raise the alarm, at least {100 * low:.1f} %")
    return tuple(doubts)

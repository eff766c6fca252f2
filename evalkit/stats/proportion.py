"""One proportion: standard error, intervals, and the count behind a published score.

Sources: Wilson, J. Am. Stat. Assoc. 22 (1927) 209: score interval of a proportion.
"""

from __future__ import annotations

import math

from evalkit.stats.common import Interval, number, two_sided, whole


def proportion_se(count: int, n: int) -> float | None:
    """Standard error as lm-eval prints it: sqrt(p (1 - p) / (n - 1)). None for n = 1, where it has no value."""
    n = whole(n, "n", 1)
    count = whole(count, "count", 0, n)
    p = count / n
    return math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else None


def wilson(count: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval; within [0, 1] and never empty, also for count 0, count n and n = 1."""
    n = whole(n, "n", 1)
    count = whole(count, "count", 0, n)
    z2 = two_sided(level) ** 2
    p = count / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return Interval(0.0 if count == 0 else centre - half, 1.0 if count == n else centre + half)


def recover_count(score: float, n: int, decimals: int = 4) -> int:
    """The one count of n that rounds to a published score. ValueError when none or several do."""
    score = number(score, "score", 0, 1)
    n = whole(n, "n", 1)
    half = 0.5 * 10.0**-decimals * (1 + 1e-9)
    first, last = math.ceil((score - half) * n), math.floor((score + half) * n)
    first, last = max(first, 0), min(last, n)
    if first > last:
        raise ValueError(f"no count of {n} rounds to {score:.{decimals}f}")
    if first < last:
        raise ValueError(f"counts {first} to {last} of {n} all round to {score:.{decimals}f}")
    return first

"""One proportion: standard error, intervals, the count behind a published score, and the count a threshold asks for.

Sources: Wilson, J. Am. Stat. Assoc. 22 (1927) 209: score interval; Clopper and Pearson, Biometrika 26 (1934) 404:
exact interval.
"""

from __future__ import annotations

import math
from fractions import Fraction

from scipy import special

from evalkit.stats.common import Interval, number, open_share, two_sided, whole


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


def exact_interval(count: int, n: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson's interval. At count 0 or n the whole error goes to the one side that can err, so 0 of n
    gives 1 - alpha^(1/n), the "rule of three"; that bound read as one-sided has exactly this level."""
    n = whole(n, "n", 1)
    count = whole(count, "count", 0, n)
    alpha = 1 - open_share(level, "level")
    if count == 0:
        return Interval(0.0, -math.expm1(math.log(alpha) / n))
    if count == n:
        return Interval(alpha ** (1 / n), 1.0)
    low = special.betaincinv(count, n - count + 1, alpha / 2)
    return Interval(float(low), float(special.betaincinv(count + 1, n - count, 1 - alpha / 2)))


def needed_count(threshold: float | str | Fraction, n: int) -> int:
    """The smallest count of n that meets a threshold, inclusive: 0.92 of 500 is 460, not 461.

    Exact: a float stands for the decimal number it prints as, so 460 of 500 meets 0.92 whatever 460 / 500 rounds to.
    """
    n = whole(n, "n", 1)
    exact = threshold if isinstance(threshold, Fraction) else Fraction(str(threshold))
    if not 0 <= exact <= 1:
        raise ValueError(f"threshold is {threshold}, not in [0, 1]")
    return math.ceil(exact * n - Fraction(1, 10**9))  # a float of k / n may print a hair above it


def meets(count: int, n: int, threshold: float | str | Fraction) -> bool:
    """count / n >= threshold, compared as whole numbers, inclusive."""
    return whole(count, "count", 0, whole(n, "n", 1)) >= needed_count(threshold, n)

"""Two proportions on different units.

Source: Miettinen and Nurminen, Stat. Med. 4 (1985) 213: score test and interval for a difference of two proportions.
statsmodels has it (test_proportions_2indep, confint_proportions_2indep) with a slip in the restricted estimate (its
issue 10269, open in 0.15.0). exact=False repeats the slip and is compared with statsmodels in the tests; the default is
the method as published. statsmodels is not called here: it also divides by zero when both counts are 0 or n, and costs
1.4 s to import.
"""

from __future__ import annotations

import math

from evalkit.stats.common import BoundTest, Interval, crossing, number, score_test, two_sided, whole


def _restricted_variance(count1: int, n1: int, count2: int, n2: int, difference: float, exact: bool) -> float:
    """Variance of p1 - p2 at the most likely p1, p2 with p1 - p2 = difference, times N / (N - 1).

    p2 is a root of Miettinen and Nurminen's cubic. statsmodels' linear coefficient has count2 where n2
    belongs; exact=False repeats that wherever it gives proportions.
    """
    d, total, count = difference, n1 + n2, count1 + count2
    square = ((n1 + 2 * n2) * d - total - count) / (3 * total)
    linear = (((n2 if exact else count2) * d - total - 2 * count2) * d + count) / (3 * total)
    v = square**3 - 1.5 * linear * square + count2 * d * (1 - d) / (2 * total)
    u = math.copysign(math.sqrt(max(square * square - linear, 0.0)), v)
    cosine = v / u**3 if u else 1.0
    p2 = 2 * u * math.cos((math.pi + math.acos(min(1.0, max(-1.0, cosine)))) / 3) - square
    if not exact and not (abs(cosine) <= 1 and max(0.0, -d) <= p2 <= min(1.0, 1 - d)):
        return _restricted_variance(count1, n1, count2, n2, d, exact=True)
    p2 = min(1.0, 1 - d, max(0.0, -d, p2))
    p1 = min(1.0, max(0.0, p2 + d))
    return (p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2) * total / (total - 1)


def two_proportion_test(count1: int, n1: int, count2: int, n2: int, bound: float, *, exact: bool = True) -> BoundTest:
    """Miettinen-Nurminen score test of p1 - p2 against `bound`, as published.

    With exact=False p_above is, slip and all, statsmodels' test_proportions_2indep(value=bound, method="score",
    compare="diff", alternative="larger"), for a comparison with numbers printed from there. At 1319 questions and
    p near 0.96 the two p-values differ by under 2e-4, the interval's ends by under 1e-4.
    """
    n1, n2 = whole(n1, "n1", 1), whole(n2, "n2", 1)
    count1, count2 = whole(count1, "count1", 0, n1), whole(count2, "count2", 0, n2)
    bound = number(bound, "bound", -1, 1)
    variance = _restricted_variance(count1, n1, count2, n2, bound, exact)
    return score_test(count1 / n1 - count2 / n2 - bound, variance)


def two_proportion_interval(
    count1: int, n1: int, count2: int, n2: int, level: float = 0.95, *, exact: bool = True
) -> Interval:
    """Miettinen-Nurminen score interval of p1 - p2; exact=False gives statsmodels' confint_proportions_2indep("score"),
    see `two_proportion_test`."""
    n1, n2 = whole(n1, "n1", 1), whole(n2, "n2", 1)
    count1, count2 = whole(count1, "count1", 0, n1), whole(count2, "count2", 0, n2)
    z = two_sided(level)
    found = count1 / n1 - count2 / n2

    def spread(d: float) -> float:
        return z * math.sqrt(_restricted_variance(count1, n1, count2, n2, d, exact))

    low = -1.0 if found == -1 else crossing(lambda d: found - d - spread(d), -1.0, found)
    high = 1.0 if found == 1 else crossing(lambda d: d - found - spread(d), 1.0, found)
    return Interval(low, high)

"""Two proportions on the same units: `up` pairs went from 0 to 1, `down` from 1 to 0, the others are equal.

Sources
- McNemar, Psychometrika 12 (1947) 153; mid-p: Fagerland, Lydersen, Laake, BMC Med. Res. Methodol. 13 (2013) 91.
- Tango, Stat. Med. 17 (1998) 891: score test and interval for a difference of paired proportions.
"""

from __future__ import annotations

import math

from scipy import special

from evalkit.stats.common import BoundTest, Interval, crossing, number, score_test, two_sided, whole


def _pairs(up: int, down: int, n: int) -> tuple[int, int, int]:
    n = whole(n, "pairs", 1)
    up, down = whole(up, "up", 0, n), whole(down, "down", 0, n)
    if up + down > n:
        raise ValueError(f"{up} + {down} discordant pairs are more than {n} pairs")
    return up, down, n


def mcnemar_exact(up: int, down: int) -> float:
    """Two-sided exact p-value of "as many up as down": binomial with 1/2 on the discordant pairs."""
    up, down = whole(up, "up"), whole(down, "down")
    total = up + down
    return 1.0 if total == 0 else min(1.0, 2 * float(special.bdtr(min(up, down), total, 0.5)))


def mcnemar_midp(up: int, down: int) -> float:
    """Mid-p form of `mcnemar_exact`: less conservative, size close to alpha."""
    up, down = whole(up, "up"), whole(down, "down")
    total = up + down
    if total == 0:
        return 1.0
    least = min(up, down)
    tail = float(special.bdtr(least, total, 0.5))
    below = float(special.bdtr(least - 1, total, 0.5)) if least else 0.0
    return min(1.0, tail + below)  # twice the tail, less the chance of the table itself


def restricted_variance(up: float, down: float, n: int, difference: float) -> float:
    """n times Tango's restricted variance: n (2 q + d (1 - d)), q the restricted share of `down`."""
    a = 2 * n
    b = -up - down + (2 * n - up + down) * difference
    c = -down * difference * (1 - difference)
    q = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    return max(n * (2 * q + difference * (1 - difference)), 0.0)


def discordant_at(up: int, down: int, n: int, bound: float) -> float:
    """Share of discordant pairs that is most likely when the difference is `bound`: what a test against the
    bound rests on. Above 0 for a bound other than 0, also when no discordant pair was seen."""
    up, down, n = _pairs(up, down, n)
    return restricted_variance(up, down, n, number(bound, "bound", -1, 1)) / n


def tango_test(up: int, down: int, n: int, bound: float) -> BoundTest:
    """Tango's score test of the paired difference (up - down) / n against `bound`; non-inferiority by a
    margin is bound = -margin and p_above."""
    up, down, n = _pairs(up, down, n)
    bound = number(bound, "bound", -1, 1)
    return score_test(up - down - n * bound, restricted_variance(up, down, n, bound))


def tango_interval(up: int, down: int, n: int, level: float = 0.95) -> Interval:
    """Tango's score interval of the paired difference (up - down) / n."""
    up, down, n = _pairs(up, down, n)
    z = two_sided(level)

    def distance(d: float) -> float:
        return up - down - n * d

    def spread(d: float) -> float:
        return z * math.sqrt(restricted_variance(up, down, n, d))

    found = (up - down) / n
    low = -1.0 if down == n else crossing(lambda d: distance(d) - spread(d), -1.0, found)
    high = 1.0 if up == n else crossing(lambda d: -distance(d) - spread(d), 1.0, found)
    return Interval(low, high)

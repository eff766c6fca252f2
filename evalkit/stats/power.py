"""What a sample can show, before and after it is drawn: one-sided, normal approximation."""

from __future__ import annotations

import math

from scipy import special

from evalkit.stats.common import number, open_share, whole
from evalkit.stats.paired import restricted_variance


def _quantiles(alpha: float, power: float) -> float:
    return float(-special.ndtri(open_share(alpha, "alpha")) + special.ndtri(open_share(power, "power")))


def mde_paired(n: int, discordant: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest paired difference shown with `power`: (z_alpha + z_power) sqrt(discordant / n), where
    `discordant` is the share of pairs that differ."""
    n, discordant = whole(n, "n", 1), number(discordant, "discordant share", 0, 1)
    return _quantiles(alpha, power) * math.sqrt(discordant / n)


def mde_unpaired(p: float, n1: int, n2: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest difference of two proportions near p shown with `power` from n1 and n2 units."""
    p, n1, n2 = number(p, "p", 0, 1), whole(n1, "n1", 1), whole(n2, "n2", 1)
    return _quantiles(alpha, power) * math.sqrt(p * (1 - p) * (1 / n1 + 1 / n2))


def needed_pairs(discordant: float, distance: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Pairs to tell a difference `distance` away from the bound; None when it lies on the bound."""
    discordant, distance = number(discordant, "discordant share", 0, 1), abs(number(distance, "distance"))
    if distance == 0:
        return None
    return max(1, math.ceil(discordant * (_quantiles(alpha, power) / distance) ** 2))


def needed_n(p1: float, p2: float, n2: int, distance: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Units of the first sample to tell a difference `distance` away from the bound, the second sample
    fixed at n2; None when no number of them can."""
    p1, p2, n2 = number(p1, "p1", 0, 1), number(p2, "p2", 0, 1), whole(n2, "n2", 1)
    room = (abs(number(distance, "distance")) / _quantiles(alpha, power)) ** 2 - p2 * (1 - p2) / n2
    return max(1, math.ceil(p1 * (1 - p1) / room)) if room > 0 else None


def power_paired(n: int, discordant: float, distance: float, alpha: float = 0.05) -> float:
    """Chance to show that a paired difference lies above a bound it lies `distance` above."""
    n, discordant = whole(n, "n", 1), number(discordant, "discordant share", 0, 1)
    return _power(number(distance, "distance"), math.sqrt(discordant / n), alpha)


def power_noninferior(n: int, discordant: float, margin: float, alpha: float = 0.05) -> float:
    """Chance that `tango_test` against -margin passes (p_above at most alpha) where both sides are equally good and
    `discordant` of the pairs differ. The test rests on the share of them that is likely at -margin, which is larger."""
    n, discordant = whole(n, "n", 1), number(discordant, "discordant share", 0, 1)
    margin = number(margin, "margin", 0, 1)
    half = discordant * n / 2
    asked = -float(special.ndtri(open_share(alpha, "alpha"))) * math.sqrt(restricted_variance(half, half, n, -margin))
    room = margin * n - asked  # the sum of differences must not fall by more
    spread = math.sqrt(discordant * n)
    return float(special.ndtr(room / spread)) if spread else float(room >= 0)


def needed_noninferior(discordant: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Pairs from which `power_noninferior` is at least `power`."""
    margin, power = number(margin, "margin", 0, 1), open_share(power, "power")
    if margin == 0:
        raise ValueError("margin is 0: no number of pairs shows that nothing at all is lost")
    low, high = 0, 1
    while power_noninferior(high, discordant, margin, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_noninferior(middle, discordant, margin, alpha) >= power else (middle, high)
    return high


def power_unpaired(p1: float, n1: int, p2: float, n2: int, distance: float, alpha: float = 0.05) -> float:
    """Chance to show that p1 - p2 lies above a bound it lies `distance` above, from n1 and n2 different units."""
    p1, p2, n1, n2 = number(p1, "p1", 0, 1), number(p2, "p2", 0, 1), whole(n1, "n1", 1), whole(n2, "n2", 1)
    return _power(number(distance, "distance"), math.sqrt(p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2), alpha)


def power_threshold(p: float, n: int, needed: int) -> float:
    """Chance that a true share p gives fewer than `needed` of n: how often a fixed threshold notices it. Exact."""
    p, n = number(p, "p", 0, 1), whole(n, "n", 1)
    needed = whole(needed, "needed", 0, n)
    return float(special.bdtr(needed - 1, n, p)) if needed else 0.0


def mde_estimate(se: float, reference_se: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest difference of two independent estimates shown with `power`, in their unit."""
    return _quantiles(alpha, power) * math.hypot(number(se, "se", 0), number(reference_se, "reference se", 0))


def needed_clusters(
    se: float, clusters: int, distance: float, reference_se: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Clusters at which an estimate that has standard error `se` from `clusters` of them is told from a bound
    `distance` away; None when no number of them can, the reference being too uncertain or the distance 0."""
    se, clusters = number(se, "se", 0), whole(clusters, "clusters", 1)
    room = (number(distance, "distance") / _quantiles(alpha, power)) ** 2 - number(reference_se, "reference se", 0) ** 2
    return max(1, math.ceil(clusters * se**2 / room)) if room > 0 else None


def _power(distance: float, se: float, alpha: float) -> float:
    if se == 0:
        return 1.0 if distance > 0 else 0.0
    return float(special.ndtr(distance / se + special.ndtri(open_share(alpha, "alpha"))))

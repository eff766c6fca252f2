"""What a sample can show, before and after it is drawn: one-sided, normal approximation."""

from __future__ import annotations

import math

from scipy import special

from evalkit.stats.common import number, open_share, whole


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

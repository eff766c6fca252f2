"""Several tests at once: Holm's step-down correction, and a fixed sequence that stops at the first miss.

Sources: Holm, Scand. J. Stat. 6 (1979) 65; fixed sequence: Maurer, Hothorn, Lehmacher, in Biometrie in der
chemisch-pharmazeutischen Industrie 6 (1995) 3.
"""

from __future__ import annotations

import numpy as np

from evalkit.stats.common import Numbers, array_of, open_share


def holm(p_values: Numbers) -> tuple[float, ...]:
    """Adjusted p-values in the order given: those at most alpha may all be believed, the chance that any of them is
    a false alarm being at most alpha, whatever the dependence."""
    p = array_of(p_values, "p-values")
    if (p > 1).any():
        raise ValueError(f"a p-value is {p.max():g}, above 1")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate((p.size - np.arange(p.size)) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return tuple(float(x) for x in adjusted)


def fixed_sequence(p_values: Numbers, alpha: float = 0.05) -> tuple[bool, ...]:
    """Which hypotheses are refused when they are tested in the order given, each at the full alpha, up to the first
    that is not: an early success says nothing about a later one, and a later one alone counts for nothing."""
    p, alpha = array_of(p_values, "p-values"), open_share(alpha, "alpha")
    return tuple(bool(x) for x in np.logical_and.accumulate(p <= alpha))

"""A share as a percentage of few digits. Standard library only."""

from __future__ import annotations

from decimal import Decimal


def percent(share: float, digits: int = 2, sign: bool = False) -> str:
    """`0.0123` as `1.2 %`, 1 as `100 %`: `digits` that count, and never an exponent. sign: a plus is written too."""
    rounded = Decimal(f"{100 * share:.{digits}g}")
    return f"{rounded:{'+' if sign else ''}f} %"

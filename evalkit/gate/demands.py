"""Nothing compared is a fail, where the specification demands the comparison.

A check that compared something says how much in `numbers["compared"]` (samples, steps or days). A missing or refused
standard compares nothing: that leaves a run inconclusive, unless the check was demanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalkit.gate.common import FAIL, checked
from evalkit.gate.limits import DEMANDS, OF_ACCEPTANCE
from evalkit.records import Check


def answered(kind: str, checks: Sequence[Check]) -> list[Check]:
    """The checks that answer a demand."""
    name = DEMANDS[kind]
    return [c for c in checks if (c.name.startswith(name) if name.endswith(" ") else c.name == name)]


def demand(checks: Sequence[Check], demands: Sequence[str], k: int) -> list[Check]:
    """The checks, with a fail for every demand that nothing was compared for. K=0 has no acceptance to ask for."""
    out = list(checks)
    for kind in demands:
        if k == 0 and kind in OF_ACCEPTANCE:
            continue
        found = answered(kind, out)
        empty = [c for c in found if not c.numbers.get("compared")]
        if not found:
            words = "nothing was compared"
            out.append(checked(DEMANDS[kind].strip(), FAIL, f"a comparison by {kind}, as the gate demands", words))
        for check in empty:
            message = f"{check.message}; nothing was compared, and the gate demands it"
            out[out.index(check)] = replace(check, outcome=FAIL, message=message)
    return out

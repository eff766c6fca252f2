"""How long torch's CPU threads spin while they wait for each other, before they sleep.

GNU OpenMP's own count is about a third of a second where there are as many cores as threads. On a machine that others
use too, a thread that has no core is waited for by spinning all that time, and the neighbours get nothing either. The
count here is some microseconds: longer than most waits of a step, and no loss worth a word beside a neighbour.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "1000"
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # what a user says of it himself


def wait_briefly(env: MutableMapping[str, str]) -> None:
    """Sets the count in `env` where nothing is said of it. It is read once, when torch is loaded."""
    if not any(env.get(name) for name in OWN):
        env["GOMP_SPINCOUNT"] = SPINS

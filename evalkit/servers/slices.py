"""The spread of a server's counters, from pieces of time (batch means): counters have no documents to cluster by.

Steps of one request are alike, and a request that lies in two pieces makes them alike too. With pieces of length L and
requests of length D <= L, each adding evenly over its time, the covariance of the work at two moments falls from s^2 to
0 over D, and the variance of a piece is L D s^2 (1 - D / (3 L)): the variance between pieces is too small by that
factor (`overlap`), which it is divided by. D is what 9 of 10 requests stay under. Fewer than 8 pieces tell no spread.
Source: Law, Simulation Modeling and Analysis, 9.5.3 (batch means); the factor is derived above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FEWEST, MOST = 8, 30


class Piece(NamedTuple):
    """Work between two reads."""

    seconds: float
    steps: int
    accepted: int


def grouped(pieces: Sequence[Piece], request_seconds: float) -> tuple[tuple[tuple[int, int], ...], float]:
    """((steps, accepted) of pieces as long as a request or longer, overlap); ((), 1) where they are too few."""
    busy = [p for p in pieces if p.steps]
    total = sum(p.seconds for p in busy)
    length = max(total / MOST, request_seconds)
    if not total or total / length < FEWEST:
        return (), 1.0
    out: list[tuple[int, int]] = []
    seconds = steps = accepted = 0.0
    for p in busy:
        seconds, steps, accepted = seconds + p.seconds, steps + p.steps, accepted + p.accepted
        if seconds >= length:
            out.append((int(steps), int(accepted)))
            seconds = steps = accepted = 0.0
    if steps and out:  # what is left is short: it goes to the last piece
        out[-1] = (out[-1][0] + int(steps), out[-1][1] + int(accepted))
    if len(out) < FEWEST:
        return (), 1.0
    return tuple(out), 1 - min(request_seconds, length) / (3 * length)

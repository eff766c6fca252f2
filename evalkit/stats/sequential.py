"""Stopping a paired comparison early without spending the error guarantee: pure, one pair at a time.

Each pair's difference y - r is -1, 0 or 1. A bet that "the mean is at most mu" is false multiplies its capital by
1 + f ((D + 1) / (1 + mu) - 1) a pair, f the share of the capital at stake; while the hypothesis holds the capital
does not grow on average, so by Ville's inequality it ever reaches 1 / alpha with a chance of at most alpha, whenever
one looks and stops. The capital is spread over a fixed grid of f, hence depends on the counts alone.

Sources: Ville, Etude critique de la notion de collectif (1939); Waudby-Smith and Ramdas, J. R. Stat. Soc. B 86 (2024)
1: means of bounded variables by betting; mixtures over f: Cover's universal portfolio, as in Ryu and Bhatt, IEEE Trans.
Inf. Theory 70 (2024). Pairs must come in an order that has nothing to do with their outcome (a seeded shuffle).
`docs/audit.md` has the realised error rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from evalkit.stats.common import Interval, crossing, number, open_share, whole
from evalkit.stats.paired import tango_test

STAKES = np.concatenate([np.geomspace(0.01, 0.8, 16), [0.9, 0.97]])


def log_capital(gains: np.ndarray | int, losses: np.ndarray | int, n: np.ndarray | int, mean: float) -> np.ndarray:
    """log of the capital of bets against "the mean is at most `mean`" after n pairs with these gains and losses;
    any shapes that broadcast. For the opposite hypothesis swap gains and losses and change the sign of the mean."""
    mean = number(mean, "mean", -1, 1)
    if mean == -1:
        raise ValueError("nothing lies below -1")
    gain = np.log(1 - STAKES + 2 * STAKES / (1 + mean))
    tie = np.log(1 - STAKES + STAKES / (1 + mean))
    loss = np.log(1 - STAKES)
    up, down = np.asarray(gains)[..., None], np.asarray(losses)[..., None]
    each = up * gain + down * loss + (np.asarray(n)[..., None] - up - down) * tie
    top = each.max(axis=-1)
    return top + np.log(np.exp(each - top[..., None]).mean(axis=-1))


class Stop(Enum):
    GO_ON = "go on"
    SUCCESS = "success"  # shown to lie above -margin
    FAILURE = "failure"  # shown to lie below -margin
    FUTILE = "futile"  # shown to lie below `hope`, so unlikely ever to succeed, and no failure in sight
    UNDECIDED = "undecided"  # all planned pairs seen


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialState:
    stop: Stop
    pairs: int
    up: int
    down: int
    evidence_above: float  # capital against "at or below -margin"; success at 1 / alpha
    evidence_below: float  # capital against "at or above -margin"; failure at 1 / alpha
    evidence_futile: float  # capital against "at or above hope"; futile at 1 / beta
    saved: int | None  # planned pairs that need not be run

    @property
    def difference(self) -> float:
        return (self.up - self.down) / self.pairs if self.pairs else 0.0


class SequentialPaired:
    """Is the mean paired difference above -margin? Feed pairs with `update`, stop when `state.stop` says so.

    Guarantees, whenever one stops: SUCCESS with a chance of at most alpha if the difference is -margin or worse;
    FAILURE with at most alpha if it is -margin or better; FUTILE with at most beta if it is `hope` (0: no loss) or
    better. Futility never turns into a success, so it costs no error; it waits while the difference seen is below twice
    -margin, where going on is likely to show a FAILURE, which says more.

    With `pairs` planned, `final_share` of alpha is kept for Tango's test of all of them (the union of both errors is
    still alpha): that test is far more powerful at its one look, and an early stop then needs more evidence.
    """

    def __init__(
        self, margin: float, alpha: float = 0.05, *, pairs: int | None = None, final_share: float | None = None,
        beta: float = 0.05, hope: float = 0.0, min_pairs: int = 10,
    ) -> None:  # fmt: skip
        self.margin = open_share(margin, "margin")
        self.alpha, self.beta = open_share(alpha, "alpha"), open_share(beta, "beta")
        self.hope = number(hope, "hope", -self.margin, 1 - 1e-9)
        self.pairs = None if pairs is None else whole(pairs, "pairs", 1)
        share = (0.0 if pairs is None else 0.8) if final_share is None else final_share
        self.final_share = number(share, "final_share", 0, 1 - 1e-9)
        if self.final_share and pairs is None:
            raise ValueError("a final test needs the number of planned pairs")
        self.min_pairs = whole(min_pairs, "min_pairs", 1)
        self._up = self._down = self._n = 0
        self._stop = Stop.GO_ON

    def update(self, y: int, r: int) -> SequentialState:
        """One more pair of 0 or 1: y the candidate's, r the reference's. Refused once it has stopped."""
        if y not in (0, 1) or r not in (0, 1):
            raise ValueError(f"a pair is ({y}, {r}), not of 0 and 1")
        if self._stop is not Stop.GO_ON:
            raise ValueError(f"already stopped: {self._stop.value}")
        self._n += 1
        self._up += y > r
        self._down += y < r
        state = self.state
        self._stop = state.stop
        return state

    @property
    def state(self) -> SequentialState:
        up, down, n = self._up, self._down, self._n
        above = float(log_capital(up, down, n, -self.margin))
        below = float(log_capital(down, up, n, self.margin))
        futile = float(log_capital(down, up, n, -self.hope))
        stop = self._stop if self._stop is not Stop.GO_ON else self._decide(above, below, futile)
        e_above, e_below, e_futile = (math.exp(min(x, 700.0)) for x in (above, below, futile))
        return SequentialState(
            stop=stop, pairs=n, up=up, down=down, evidence_above=e_above, evidence_below=e_below,
            evidence_futile=e_futile, saved=None if self.pairs is None else max(0, self.pairs - n),
        )  # fmt: skip

    @property
    def threshold(self) -> float:
        """log of the capital that stops early."""
        return -math.log(self.alpha * (1 - self.final_share))

    def _decide(self, above: float, below: float, futile: float) -> Stop:
        last = self.pairs is not None and self._n >= self.pairs
        if self._n >= self.min_pairs or last:
            if below >= self.threshold:
                return Stop.FAILURE
            if above >= self.threshold:
                return Stop.SUCCESS
        if last and self.final_share:
            return self.final(self._up, self._down)
        waits = self._up - self._down < -2 * self.margin * self._n
        if self._n >= self.min_pairs and futile >= -math.log(self.beta) and not waits:
            return Stop.FUTILE
        return Stop.UNDECIDED if last else Stop.GO_ON

    def final(self, up: int, down: int) -> Stop:
        """What Tango's test says of all planned pairs, at its part of alpha."""
        assert self.pairs is not None
        test, alpha = tango_test(up, down, self.pairs, -self.margin), self.alpha * self.final_share
        if test.p_above <= alpha:
            return Stop.SUCCESS
        return Stop.FAILURE if test.p_below <= alpha else Stop.UNDECIDED

    def replay(self, differences: np.ndarray) -> tuple[list[Stop], np.ndarray]:
        """How each row of differences [runs, pairs] ends, and after how many pairs: fast twin of `update`."""
        d = np.asarray(differences)
        up, down = np.cumsum(d > 0, axis=1), np.cumsum(d < 0, axis=1)
        n = np.arange(1, d.shape[1] + 1)
        open_to_stop = (n >= self.min_pairs) | (n == self.pairs)
        below = (log_capital(down, up, n, self.margin) >= self.threshold) & open_to_stop
        above = (log_capital(up, down, n, -self.margin) >= self.threshold) & open_to_stop & ~below
        futile = (log_capital(down, up, n, -self.hope) >= -math.log(self.beta)) & (n >= self.min_pairs)
        futile &= up - down >= -2 * self.margin * n
        if self.final_share:
            futile &= n != self.pairs
        any_stop = below | above | futile
        first = np.where(any_stop.any(axis=1), any_stop.argmax(axis=1), d.shape[1] - 1)
        stops = []
        for i, j in enumerate(first):
            if any_stop[i, j]:
                stops.append(Stop.FAILURE if below[i, j] else Stop.SUCCESS if above[i, j] else Stop.FUTILE)
            elif self.pairs is not None and j + 1 >= self.pairs:
                stops.append(self.final(int(up[i, j]), int(down[i, j])) if self.final_share else Stop.UNDECIDED)
            else:
                stops.append(Stop.GO_ON)
        return stops, first + 1

    def interval(self, level: float = 0.95) -> Interval:
        """Always-valid interval of the difference: with chance `level` it holds at all looks at once."""
        up, down, n = self._up, self._down, self._n
        limit = -math.log((1 - open_share(level, "level")) / 2)
        if n == 0:
            return Interval(-1.0, 1.0)
        found = (up - down) / n

        def refused(gains: int, losses: int, mean: float) -> float:
            return float(log_capital(gains, losses, n, mean)) - limit

        edge = 1 - 1e-9
        low = crossing(lambda m: refused(up, down, m), -edge, found) if refused(up, down, -edge) > 0 else -1.0
        high = -crossing(lambda m: refused(down, up, m), -edge, -found) if refused(down, up, -edge) > 0 else 1.0
        return Interval(low, high)

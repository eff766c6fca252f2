"""A waiver: wider losses of one cell that somebody answers for until a day. After it the cell's own count again.

It passes nothing that was not shown: the same tests are asked at the wider margin, and what is missing stays missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.gate.limits import GateSpec

MOST_DAYS = 90  # a loss that is accepted for longer belongs into the margins


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """`limits` are the cell's with the waived ones wider; `words` says which and by how much."""

    owner: str
    reason: str
    until: date  # its last day, UTC
    limits: GateSpec
    words: str

    @property
    def ends(self) -> datetime:
        return datetime.combine(self.until + timedelta(days=1), time(), tzinfo=UTC)

    def __str__(self) -> str:
        return f"waiver of {self.owner} until {self.until}: {self.words} ({self.reason})"


def make_waiver(values: Mapping[str, Any], own: GateSpec, wide: GateSpec, fields: Mapping[str, str],
                where: str) -> Waiver:  # fmt: skip
    """The waiver of a cell whose limits are `own`, and `wide` with the waiver's in their place. `fields` are the limits
    by the file's keys. Raises EvalkitError where one is not wider, or none is named."""
    said = []
    for part in ("margins", "caps"):
        for key in values.get(part, {}):
            before, after = _limit(own, fields[key]), _limit(wide, fields[key])
            if not after > before:
                what = f"{where}.waiver.{part}.{key} is {100 * after:g}, the cell's own is {100 * before:g}"
                raise EvalkitError(what, "a waiver widens; leave it away where it does not")
            said.append(f"{key} {100 * before:g} -> {100 * after:g}")
    if not said:
        raise EvalkitError(f"{where}.waiver waives nothing", "give margins or caps that are wider than the cell's own")
    try:
        until = date.fromisoformat(values["until"])
    except ValueError:
        what = f"{where}.waiver.until is {values['until']!r}, expected a day"
        raise EvalkitError(what, "write it as 2026-12-31") from None
    return Waiver(owner=values["owner"], reason=values["reason"], until=until, limits=wide, words=", ".join(said))


def in_force(waiver: Waiver, now: str, cell: str) -> bool:
    """Whether it holds at `now`, an ISO time with zone. Raises EvalkitError for one that ends too far ahead."""
    left = waiver.ends - datetime.fromisoformat(now)
    if left > timedelta(days=MOST_DAYS + 1):
        raise EvalkitError(f"the waiver of {cell} ends on {waiver.until}, more than {MOST_DAYS} days ahead",
                           "give a nearer day, or widen the margin for good")  # fmt: skip
    return left > timedelta()


def _limit(limits: GateSpec, field: str) -> float:
    return float(getattr(limits if hasattr(limits, field) else limits.answers, field))

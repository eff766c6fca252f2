"""A verdict's checks as rows of text: what was expected and found, the interval, the margin, the pairs."""

from __future__ import annotations

from dataclasses import dataclass

from evalkit.records import Check, Verdict
from evalkit.report import text

NONE = "\u2013"  # a check that has no such figure
COLUMNS = ("check", "outcome", "expected", "found", "interval", "margin", "paired")
ALIGN = "llllrrr"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    check: Check
    interval: str  # of the difference or ratio that is judged, in its unit; at which level
    margin: str
    paired: str

    @property
    def message(self) -> str:
        """What the check's sentence says beyond the row; "" where nothing."""
        plain = f"{self.check.found}; expected {self.check.expected}"
        return "" if self.check.message in (plain, self.check.found) else self.check.message

    @property
    def shown(self) -> tuple[tuple[str, str, str], ...]:
        """(column, cell, class in the page) of what stands behind the outcome."""
        return tuple(zip(COLUMNS[2:], self.cells[2:], ("", "", "r wide", "r wide", "r"), strict=True))

    @property
    def cells(self) -> tuple[str, ...]:
        c = self.check
        return (c.name, c.outcome.value, c.expected, c.found, self.interval, self.margin, self.paired)


def rows(verdict: Verdict | None) -> tuple[CheckRow, ...]:
    checks = () if verdict is None else verdict.checks
    return tuple(CheckRow(check=c, interval=interval(c), margin=margin(c), paired=paired(c)) for c in checks)


def interval(check: Check) -> str:
    """`-0.4 .. +0.2 pt (90 %)`, `98.9 .. 100.5 % (90 %)`, `at most 0.069 tokens`."""
    x = check.numbers
    if not x.get("interval"):
        return f"at most {float(x['upper']):.3f} tokens" if x.get("upper") is not None else NONE
    low, high = (float(v) for v in x["interval"])
    level = f" ({100 * float(x['level']):g} %)" if x.get("level") else ""
    if "ratio" in x:
        return f"{text.percent_interval(low, high)}{level}"
    if "difference" in x or "worst" in x:
        return f"{text.points_interval(low, high)}{level}"
    return f"{text.interval(low, high)}{level}"


def margin(check: Check) -> str:
    """In the unit of the interval."""
    x = check.numbers
    if x.get("margin") is None:
        return NONE
    value = float(x["margin"])
    if "upper" in x:
        return f"{value:.3f} tokens"
    return f"{100 * value:g} {'pt' if 'difference' in x or 'worst' in x or 'score' in x else '%'}"


def paired(check: Check) -> str:
    if not check.numbers.get("paired"):
        return "unpaired" if "paired" in check.numbers else NONE
    return text.count(int(check.numbers["paired"]))

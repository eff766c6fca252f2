"""The audit's page: rows -> docs/audit.md, between its markers, without a date."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from evalkit.audit.row import ALPHA, Row
from evalkit.audit.simulate import Audit
from evalkit.marked import between

MARKS = ("<!-- audit -->", "<!-- /audit -->")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
INTRO = """# Realised error rates

Made by `make audit`; nothing between the markers is typed by hand. What the rules promise: `evalkit/stats/`, each
module with its sources. What they are put to: `evalkit/audit/simulate.py`, `survival.py`,
`runs.py` and `population.py`.

"""


def rendered(audit: Audit, rows: Sequence[Row], examples: Iterable[tuple[str, dict[str, float], float]] = ()) -> str:
    """The text between the markers."""
    bad = sum(not row.ok for row in rows)
    sizes = ", ".join(f"{name} {value}" for name, value in asdict(audit.sizes).items())
    lines = [
        f"{len(rows) - bad} of {len(rows)} within their promise. Seed {audit.seed}; simulations: {sizes}.", "",
        f"A size is the share of runs at the margin that pass, at most alpha = {ALPHA:g}; a coverage is the share of "
        "95 % intervals that hold the truth. Three simulation standard errors (the column ±) are granted.", "",
    ]  # fmt: skip
    for what, title in (("size", "Size at the margin"), ("coverage", "Coverage of 95 % intervals")):
        lines += [
            f"## {title}",
            "",
            "| rule | setting | found | promised | ± | runs | |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in (r for r in rows if r.what == what):
            promised = (
                f"at most {_percent(row.high)}" if what == "size" else f"{100 * row.low:g} to {100 * row.high:g} %"
            )
            cells = [row.rule, row.setting, _percent(row.rate), promised, f"{100 * row.slack:.1f}", str(row.runs)]
            lines.append(f"| {' | '.join(cells)} | {'ok' if row.ok else 'OFF'} |")
        lines.append("")
    told = list(examples)
    if told:
        words = list(told[0][1])
        lines += [
            "## How a sequential run ends", "",
            "Margin 0.01, alpha 0.05, 1319 pairs planned, four fifths of alpha kept for the final test.", "",
            f"| truth | {' | '.join(words)} | pairs, mean |", "|---|" + "---|" * (len(words) + 1),
        ]  # fmt: skip
        lines += [f"| {name} | {' | '.join(_percent(r[w]) for w in words)} | {pairs:.0f} |" for name, r, pairs in told]
        lines.append("")
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put the text between the page's markers; the page is begun where there is none."""
    old = path.read_text() if path.exists() else f"{INTRO}{MARKS[0]}\n{MARKS[1]}\n"
    try:
        new = between(old, MARKS, text)
    except ValueError as e:
        raise ValueError(f"{path} {e}") from None
    path.parent.mkdir(exist_ok=True)
    path.write_text(new)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"

"""The figures in README.md, counted from the splits that `--write` has just made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import mean

from tasks.gradeschool.problem import Problem

BEGIN = "<!-- figures: begin, written by python -m tasks.gradeschool.generator --write -->"
END = "<!-- figures: end -->"


def share(flags: Iterable[bool]) -> float:
    """The share of true flags."""
    return mean(map(int, flags))


def render(splits: dict[str, list[Problem]]) -> str:
    """A Markdown table with one column per split, then the templates in use."""
    columns = list(splits.values())

    def row(label: str, cells: Iterable[str]) -> str:
        return f"| {label} | {' | '.join(cells)} |"

    def lengths(texts: list[str]) -> str:
        sizes = [len(text) for text in texts]
        return f"{mean(sizes):.0f} ({min(sizes)}..{max(sizes)})"

    def steps(problems: list[Problem]) -> Counter[int]:
        return Counter(p.steps for p in problems)

    every_step = sorted({p.steps for problems in columns for p in problems})
    templates = Counter(p.template for problems in columns for p in problems)
    lines = [
        row("", splits),
        row("---", ["---:"] * len(columns)),
        row("problems", (f"{len(c):,}" for c in columns)),
        row("templates", (str(len({p.template for p in c})) for c in columns)),
        row("negative answers", (f"{share(p.value < 0 for p in c):.1%}" for c in columns)),
        row("four-digit answers", (f"{share(p.value > 999 for p in c):.1%}" for c in columns)),
        row("smallest answer", (f"{min(p.value for p in c):,}" for c in columns)),
        row("largest answer", (f"{max(p.value for p in c):,}" for c in columns)),
        row("characters in a question", (lengths([p.question for p in c]) for c in columns)),
        row("characters in an answer", (lengths([p.answer for p in c]) for c in columns)),
        *(row(f"solutions of {s} steps", (f"{steps(c)[s]:,}" for c in columns)) for s in every_step),
    ]
    names = ", ".join(f"`{name}`" for name in sorted(templates))
    return "\n".join([*lines, "", f"Templates: {names}."])


def insert(readme: str, block: str) -> str:
    """The README text with what stands between the two markers replaced."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"README.md needs this pair of lines once each: {BEGIN} and {END}")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{block}\n{END}{after}"

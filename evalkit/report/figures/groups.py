"""Which runs share a plot."""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.report.subject import Subject

MAX_LINES = 6  # in one plot; more runs are spread over one plot a quant mode


def groups(found: Sequence[Subject]) -> list[tuple[str, list[Subject]]]:
    """Runs whose lines share a plot: all of them while they are few, else those of one engine, draft and quant mode."""
    drafted = [s for s in found if s.acceptance.steps and s.acceptance.survival]
    if len(drafted) <= MAX_LINES:
        return [("", drafted)] if drafted else []
    parts: dict[str, list[Subject]] = {}
    many = {key: len({str(s.run.cell.get(key)) for s in drafted}) > 1 for key in ("engine", "draft", "quant")}
    for s in drafted:
        name = " ".join(str(s.run.cell.get(key)) for key, several in many.items() if several and s.run.cell.get(key))
        parts.setdefault(name, []).append(s)
    out = []
    for name, members in parts.items():
        for i in range(0, len(members), MAX_LINES):
            out.append(
                (name if len(members) <= MAX_LINES else f"{name} {i // MAX_LINES + 1}", members[i : i + MAX_LINES])
            )
    return out

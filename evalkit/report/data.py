"""The data behind every plot and table as files: NAME.csv and NAME.parquet, one pair a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalkit.baseline import STRICT
from evalkit.errors import EvalkitError
from evalkit.report import best, figures, grid
from evalkit.report.subject import Subject

WITH_INTERVAL = (STRICT, "difference to baseline, pt", "accepted length", "of the golden, %")


def write_data(found: Sequence[Subject], folder: Path) -> list[Path]:
    """Writes both formats of each frame and returns the CSV files. Every row names its run by id."""
    import pandas as pd

    ids = {s.label: s.run.id for s in found}
    frames = {p.name: pd.DataFrame(list(p.data)) for p in figures.plots(found)}
    for name, frame in frames.items():
        if "run" in frame:
            frames[name] = frame.rename(columns={"run": "label"})
            frames[name].insert(0, "run", [ids.get(label, "") for label in frame["run"]])
    frames["runs"] = pd.DataFrame([_row(r, found) for r in grid.rows(found, best.best_of(found))])
    out = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            path = folder / f"{name}.csv"
            frame.to_csv(path, index=False)
            frame.to_parquet(folder / f"{name}.parquet", index=False)
            out.append(path)
    except OSError as e:
        why = e.strerror or e
        raise EvalkitError(f"cannot write in {folder} ({why})", "give a writable folder with --data") from None
    return sorted(out)


def _row(row: grid.Row, found: Sequence[Subject]) -> dict[str, object]:
    names = [name for name, _ in grid.columns(found)]
    cells = dict(zip(names, row.entries, strict=True))
    out: dict[str, object] = {"run": row.subject.run.id, "label": row.subject.label, "best": row.best}
    for name, entry in cells.items():
        if name != "run":
            column = name.removesuffix(", pt").removesuffix(", %")  # shares and differences are fractions of 1
            out[column] = entry.sort if entry.sort != "" else None
            if name in WITH_INTERVAL:
                out[f"{column} low"], out[f"{column} high"] = entry.span or (None, None)
    return out

"""Where a page's runs come from, for its first screen: date, length, commit, device, image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalkit.baseline import mark
from evalkit.records import Run
from evalkit.report import text
from evalkit.report.subject import Subject

COMMIT = 12  # characters of a hash
MOST = 3  # different values that are named; more are counted


def words(found: Sequence[Subject]) -> tuple[str, ...]:
    """Of all runs together: what they share once, what differs as a range or a list."""
    runs = [s.run for s in found]
    return (
        _dates([_minute(r) for r in runs]),
        _samples([len(r.samples) for r in runs]),
        _named("commit", [_commit(r) for r in runs]),
        _named("device", [_device(r) for r in runs]),
        _named("image", [text.plain(r.provenance.get("image")) for r in runs]),
    )


def _minute(run: Run) -> str:
    started = str(run.provenance.get("started") or "")
    return f"{started[:10]} {started[11:16]} UTC" if started.endswith(("+00:00", "Z")) else started


def _dates(started: Sequence[str]) -> str:
    known = sorted(set(started) - {""})
    unknown = "" if "" not in started else ", some not recorded" if known else "date not recorded"
    return f"{' to '.join(dict.fromkeys((known[0], known[-1])))}{unknown}" if known else unknown


def _samples(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    said = text.counting(high, "sample") if low == high else f"{text.count(low)} to {text.count(high)} samples"
    return said if len(counts) == 1 else f"{said} a run"


def _commit(run: Run) -> str:
    git = run.provenance.get("git")
    commit = git.get("commit") if isinstance(git, Mapping) else None
    if not commit:
        return "not recorded"
    return f"{str(commit)[:COMMIT]}{' with changes' if isinstance(git, Mapping) and git.get('dirty') else ''}"


def _device(run: Run) -> str:
    """The recorded device; of a plain `cpu` its name as well."""
    device, cpu = run.provenance.get("device") or mark(run, "device"), run.provenance.get("cpu")
    return f"cpu ({cpu})" if device == "cpu" and isinstance(cpu, str) and cpu else text.plain(device)


def _named(word: str, values: Sequence[str]) -> str:
    known = list(dict.fromkeys(values))
    if len(known) == 1:
        return f"{word} {known[0]}"
    return f"{word}s {', '.join(known)}" if len(known) <= MOST else f"{len(known)} {word}s"

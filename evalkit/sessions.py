"""The processes that worked on one run, and whose counters are known. Standard library only.

A process that ends in order stores its engine's counters with the run; of one that was killed they are lost. Counters
then say nothing of its answers, whatever they say of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalkit.records import Run
from evalkit.servers.counters import join

# Of our engine: what two sessions have made together. What is not here is a property, the same in each.
SUMMED = (
    "requests", "prefill_tokens", "prefill_ticks", "decode_ticks", "decode_steps", "decode_rows", "verify_steps",
    "drafts_left_out", "preemptions", "cached_tokens", "fused_verify_topk_steps", "kernels_steps", "mono_steps",
    "mono_rows", "ordinary_steps", "graph_hits", "graph_misses", "graph_padding_rows",
)  # fmt: skip
COUNTED = "counted"  # of a session in run.json: its counters are among the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One session: the answers it gave, and whether its counters are known."""

    answers: int
    counted: bool


def parts(run: Run) -> tuple[Part, ...]:
    """The sessions of a run that gave answers, in order. Of runs stored before it was recorded, only the session that
    ended one has its counters there."""
    told = _told(run)
    kept = [_count(s.get("kept")) for s in told]
    out = []
    for i, session in enumerate(told):
        last = i == len(told) - 1
        answers = (len(run.samples) if last else kept[i + 1]) - kept[i]
        counted = session.get(COUNTED) is True or (last and run.complete)
        if answers > 0 or (last and not out):
            out.append(Part(answers=max(0, answers), counted=counted))
    return tuple(out)


def uncounted(run: Run) -> int:
    """Answers of sessions whose counters are not known, since they were killed."""
    return sum(p.answers for p in parts(run) if not p.counted)


def gave_up(run: Run) -> bool:
    """Whether a session was interrupted in order: what it then ran was given up, and is in the counters."""
    return any(session.get(COUNTED) is True for session in _told(run)[:-1])


def words(run: Run) -> str:
    """How many sessions made a run, and which answers its counters leave out; "" for one."""
    found, lost = parts(run), uncounted(run)
    if len(found) < 2 and not (lost and run.complete):
        return ""
    what = f"counters of {lost} of {len(run.samples)} answers are lost: a session was killed"
    return f"{len(found)}  ({what if lost else 'counters are summed'})"


def add_counters(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The counters of two sessions of one run: counts are added, shares taken anew from the sums."""
    out = join(old, new)
    if not old or not new:
        return out
    for name in SUMMED:
        if name in old and name in new:
            out[name] = old[name] + new[name]
    if "peak_pages" in old and "peak_pages" in new:
        out["peak_pages"] = max(old["peak_pages"], new["peak_pages"])
    if "mono_refused" in old and "mono_refused" in new:
        out["mono_refused"] = _sum(old["mono_refused"], new["mono_refused"])
    if "mono_share" in out and (steps := out.get("mono_steps", 0) + out.get("ordinary_steps", 0)):
        out["mono_share"] = out["mono_steps"] / steps
    if "kernels" in old and "kernels" in new:
        a, b = old["kernels"], new["kernels"]
        out["kernels"] = {who: sorted({*a.get(who, ()), *b.get(who, ())}) for who in dict.fromkeys([*a, *b])}
    if "prefill_delayer" in old and "prefill_delayer" in new:
        a, b = old["prefill_delayer"], new["prefill_delayer"]
        made = _sum(a, b) | {"interval": b["interval"]}
        out["prefill_delayer"] = made | {
            "held_share": made["hold_decode_interval"] / made["ticks"] if made["ticks"] else 0.0
        }
    return out


def _told(run: Run) -> list[Mapping[str, Any]]:
    value = run.provenance.get("sessions")
    return [s for s in value if isinstance(s, Mapping)] if isinstance(value, list | tuple) else []


def _sum(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in dict.fromkeys([*a, *b])}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0

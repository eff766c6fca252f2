"""What a run will be able to show, and what it will cost: said before its first request.

A run's questions and the margin decide together how small a loss is seen and how often a sound setting passes. Both are
known beforehand, but for the share of answers that flip without a loss, which is assumed. Time and GPU-minutes are
those of the stored runs of the same setting. What is said here changes no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalkit import stats
from evalkit.baseline import HASH_CHARS, STRICT, Baseline, ReferenceScore
from evalkit.fingerprint import in_words
from evalkit.gate.accuracy import baseline_differences
from evalkit.gate.limits import GateSpec

if TYPE_CHECKING:
    from evalkit.harness import Prompt
    from evalkit.store import RunHead

DISCORDANT = 0.02  # share of questions that flip without a loss, assumed
OFTEN, SELDOM = 0.8, 0.7  # how often a sound setting should pass, and where it's worth a remark that it doesn't
NOT_TIMED = ("limit", "seed", "stop_early", "data", "draft_path", "model", "server", "gaps")  # no matter for the time
ENOUGH = 0.25  # a stored run of less than this share of the samples says little of the time


def outlook(
    head: RunHead, prompts: Sequence[Prompt], *, baseline: Baseline | None, references: Sequence[ReferenceScore],
    spec: GateSpec, stored: Sequence[Mapping[str, Any]] = (),
) -> list[str]:  # fmt: skip
    """Sentences for the reader at the terminal. `stored` are the heads (run.json) of the runs that there are."""
    cell, n = head.cell, len(prompts)
    shown = []
    if cell.get("verify") != "forced":  # of which no text is scored
        if head.expected < head.task_size:
            shown.append(f"{n} of the task's {head.task_size} questions: such a run can fail, it can never pass")
        shown += _paired(head, prompts, baseline, spec)
        told = {"target": str(cell.get("target")), "task": str(cell.get("task")), "shots": cell.get("shots")}
        shown += [_unpaired(n, ref, spec) for ref in references if ref.gates and not ref.refusal(**told)]
    cost = cost_words(head, stored)
    return [f"before the run: {words}" for words in [*shown, *([cost] if cost else [])]]


def flips(score: float) -> float:
    """The share of questions assumed to flip between two sound runs near this score."""
    return min(DISCORDANT, 2 * (1 - score))


def _paired(head: RunHead, prompts: Sequence[Prompt], baseline: Baseline | None, spec: GateSpec) -> list[str]:
    n, margin, alpha = len(prompts), spec.accuracy_margin, spec.alpha
    if baseline is None:
        return ["there is no baseline to compare with, so the verdict can fail and not pass"] if head.cell["k"] else []
    apart = baseline_differences(baseline, {"cell": head.cell, "fingerprint": head.fingerprint, "provenance": {}})
    same = sum(
        (row := baseline.rows.get(p.doc_hash[:HASH_CHARS])) is not None
        and row.prompt_hash == p.prompt_hash[:HASH_CHARS]
        for p in prompts
    )
    if apart or same < n:
        why = in_words(apart) or f"{same} of {n} prompts are the same"
        return [f"baseline {baseline.source} is of another setting ({why}), so the verdict can fail and not pass"]
    share = flips(baseline.score)
    seen = (
        f"{n} questions paired with baseline {baseline.source} ({baseline.score:.4f}) show a loss of "
        f"{100 * stats.mde_paired(n, share, alpha):.2g} pt with 80 % power if {100 * share:.2g} % of the answers flip "
        "without one (assumed)"
    )
    if head.expected < head.task_size:
        return [seen]
    passes = stats.power_noninferior(n, share, margin, alpha)
    rate = f"a sound setting passes the margin of {100 * margin:g} pt in {100 * passes:.0f} of 100 runs"
    return [f"{seen}; {rate}{_too_few(share, margin, alpha, passes)}"]


def _too_few(share: float, margin: float, alpha: float, passes: float) -> str:
    if passes >= SELDOM:
        return ""
    needed = stats.needed_noninferior(share, margin, alpha, OFTEN)
    return f": about {needed} questions, or a wider --margin, would make that {100 * OFTEN:g}"


def _unpaired(n: int, ref: ReferenceScore, spec: GateSpec) -> str:
    p, margin, alpha = ref.score, spec.score_margin, spec.alpha
    passes = stats.power_unpaired(p, n, p, ref.n, margin, alpha)
    return (
        f"against published {ref}, unpaired, {STRICT} shows a loss of "
        f"{100 * stats.mde_unpaired(p, n, ref.n, alpha):.2g} pt with 80 % power; a setting as good as it passes the "
        f"margin of {100 * margin:g} pt in {100 * passes:.0f} of 100 runs"
    )


def cost_words(head: RunHead, stored: Sequence[Mapping[str, Any]]) -> str:
    """How long the run takes by the newest stored one of its setting on such a machine; "" where there is none."""
    alike = [old for old in stored if _alike(head, old)]
    if not alike:
        return ""
    old = max(alike, key=lambda one: str(one["provenance"].get("started", "")))
    seconds = old["seconds"] / old["samples"] * head.expected
    gpus = gpu_count(head.cell, head.fingerprint)
    spent = f", {minutes(seconds * gpus)} GPU-minutes on {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    return f"about {_duration(seconds)}{spent}, by run {old['id']}"


def _alike(head: RunHead, old: Mapping[str, Any]) -> bool:
    if not old.get("complete") or not old.get("seconds") or old.get("stopped"):
        return False
    if old.get("samples", 0) < ENOUGH * head.expected or old["provenance"].get("device") != head.provenance["device"]:
        return False
    servers = [dict(c.get("server") or {}) for c in (head.cell, old["cell"])]
    same_server = all(servers[0].get(name) == servers[1].get(name) for name in ("engine", "concurrency", "tp"))
    return same_server and _timed(head.cell) == _timed(old["cell"])


def _timed(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cell.items() if name not in NOT_TIMED}


def gpu_count(cell: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> int:
    """GPUs that a run keeps busy: its ranks on GPUs, or those of a server that was started for it. 0 where there are
    none, or where a server that was there already doesn't say."""
    server = cell.get("server")
    if isinstance(server, Mapping):
        return 0 if server.get("base_url") else int(server.get("tp") or 0)
    return int(cell.get("tp") or 1) if str(fingerprint.get("device", "")).startswith("cuda") else 0


def minutes(seconds: float) -> str:
    """GPU-seconds as minutes: `0.4`, `12`."""
    return f"{seconds / 60:.1f}" if seconds < 600 else f"{seconds / 60:.0f}"


def _duration(seconds: float) -> str:
    from evalkit.report.text import duration

    return duration(seconds)

"""Acceptance that a reply tells of its own request: steps where every one is told, else counts.

| server | where | steps | accepted |
|---|---|---|---|
| vLLM | a choice's speculative_decoding_stats, or metrics.speculative_decoding | num_spec_steps | without bonus |
| SGLang, new | meta_info.speculative_decoding_stats | num_verification_steps | lengths count the target's token |
| SGLang | meta_info.spec_verify_ct, in some versions a histogram | spec_verify_ct | else tokens - 1 - steps |
| llama.cpp | timings.draft_n, draft_n_accepted | not told | without bonus |

`spec_accept_length` of SGLang counts the prefill's token in its numerator and is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from engine.api import Cut, Step
from evalkit.records import RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one reply tells: the steps one by one, or counts, or neither. `problem` where it contradicts itself.

    A request without a verify step (no draft was found for its text) has counts of 0.
    """

    steps: tuple[Step, ...] = ()
    counts: RequestCounts | None = None
    problem: str = ""


def read_reply(reply: Mapping[str, Any], choice: Mapping[str, Any], *, k: int, tokens: int, stopped: bool) -> Told:
    """Acceptance of a reply. `tokens` is what it kept, `stopped` says that a stop ended it and not the limit."""
    if not k:
        return Told()
    meta = _dict(choice.get("meta_info")) or _dict(reply.get("meta_info"))
    vllm = _dict(choice.get("speculative_decoding_stats")) or _dict(
        _dict(reply.get("metrics")).get("speculative_decoding")
    )
    sglang = _dict(meta.get("speculative_decoding_stats"))
    timings = _dict(reply.get("timings"))
    if sglang:
        told = _sglang_new(sglang, k)
    elif vllm:
        told = _vllm(vllm, k)
    elif "spec_verify_ct" in meta:
        told = _sglang(meta, k, tokens)
    elif "draft_n" in timings:
        told = Told(counts=_counts(None, timings.get("draft_n_accepted"), timings.get("draft_n")))
    else:
        return Told()
    return _checked(told, k, tokens, stopped)


def drafts_told(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> int | None:
    """Verify steps or drafts that a reply tells of, whatever K; None where it tells nothing of its acceptance."""
    metas = [_dict(x.get("meta_info")) for x in (choice, reply)]
    vllm = (
        _dict(choice.get("speculative_decoding_stats")),
        _dict(_dict(reply.get("metrics")).get("speculative_decoding")),
    )
    new = [_dict(m.get("speculative_decoding_stats")) for m in metas]
    found = [*(m.get("spec_verify_ct") for m in metas), *(s.get("num_spec_steps") for s in vllm)]
    found += [*(s.get("num_verification_steps") for s in new), _dict(reply.get("timings")).get("draft_n")]
    numbers = [x for x in found if type(x) is int]
    return max(numbers) if numbers else None


def _vllm(stats: Mapping[str, Any], k: int) -> Told:
    accepted, drafted = stats.get("per_step_accepted"), stats.get("per_step_drafted")
    if _ints(accepted) and _ints(drafted) and len(accepted) == len(drafted):
        return Told(steps=_steps(accepted, drafted))
    exact = _histogram(stats.get("acceptance_histogram"))
    steps, drafts = stats.get("num_spec_steps"), stats.get("num_draft_tokens")
    if exact is not None and sum(exact) == steps and drafts == k * sum(exact) and steps:
        return Told(steps=_from_histogram(exact, k))
    return Told(counts=_counts(steps, stats.get("num_accepted_draft_tokens"), drafts))


def _sglang_new(stats: Mapping[str, Any], k: int) -> Told:
    lengths, widths = stats.get("accept_lengths"), stats.get("verify_lengths")
    if _ints(lengths) and _ints(widths) and len(lengths) == len(widths):
        return Told(steps=_steps([x - 1 for x in lengths], [x - 1 for x in widths]))
    return Told(counts=_counts(stats.get("num_verification_steps"), stats.get("num_accepted_draft_tokens"),
                               stats.get("num_verified_draft_tokens")))  # fmt: skip


def _sglang(meta: Mapping[str, Any], k: int, tokens: int) -> Told:
    steps = meta["spec_verify_ct"]
    if steps == 0:  # no draft was found for this text
        return Told(counts=_counts(0, 0, 0))
    exact = _histogram(meta.get("spec_accept_histogram"))
    if exact is not None and sum(exact) == steps:
        return Told(steps=_from_histogram(exact, k))
    names = (("spec_num_correct_drafts", "spec_num_proposed_drafts"), ("spec_accepted_drafts", "spec_proposed_drafts"))
    for accepted, drafts in names:
        if accepted in meta:
            return Told(counts=_counts(steps, meta[accepted], meta.get(drafts)))
    if type(steps) is not int:
        return Told(problem=f"spec_verify_ct is {steps!r}")
    return Told(counts=_counts(steps, max(0, tokens - 1 - steps), k * steps, trimmed=True))


def _checked(told: Told, k: int, tokens: int, stopped: bool) -> Told:
    """Steps with the end of the text marked as trimmed; what can't be is a problem, never a number."""
    counts = told.counts
    if counts is not None:
        drafts, accepted = counts.drafts, counts.accepted
        steps = counts.steps
        wrong = accepted > drafts or (steps is not None and drafts > k * steps)
        if wrong:
            return Told(problem=f"{accepted} accepted of {drafts} drafts in {steps} steps at K={k}")
        return told
    if not told.steps:
        return told if told.problem else Told(problem="its acceptance can't be read")
    if any(s.k > k for s in told.steps):
        return Told(problem=f"a step with {max(s.k for s in told.steps)} drafts at K={k}")
    return Told(steps=_trimmed(told.steps, tokens, stopped))


def _trimmed(steps: tuple[Step, ...], tokens: int, stopped: bool) -> tuple[Step, ...]:
    """The steps, the last one without what is past the end of the text. One token of a text is before all steps."""
    excess, last = sum(s.accepted + 1 for s in steps) - (tokens - 1), steps[-1]
    if not 0 < excess <= last.accepted + 1:
        return steps
    kept = last.accepted - (excess - 1)  # the target's own token goes first
    return (*steps[:-1], replace(last, accepted_trimmed=kept, cut=Cut.STOP if stopped else Cut.LIMIT))


def _steps(accepted: Sequence[int], drafted: Sequence[int]) -> tuple[Step, ...]:
    if any(not 0 <= a <= d for a, d in zip(accepted, drafted, strict=True)):
        return ()
    return tuple(Step(k=d, accepted=a, accepted_trimmed=a) for a, d in zip(accepted, drafted, strict=True))


def _from_histogram(exact: Sequence[int], k: int) -> tuple[Step, ...]:
    """Steps in the histogram's order: which came when is not told, and no figure asks. Fullest last: a cut one is."""
    if len(exact) > k + 1 and any(exact[k + 1 :]):
        return (Step(k=len(exact) - 1, accepted=len(exact) - 1, accepted_trimmed=len(exact) - 1),)
    return tuple(Step(k=k, accepted=j, accepted_trimmed=j) for j, n in enumerate(exact) for _ in range(n))


def _histogram(value: Any) -> list[int] | None:
    """Steps by accepted drafts: a list, or a sparse map with keys as text."""
    if _ints(value):
        return list(value)
    if isinstance(value, Mapping) and value and _ints(list(value.values())) and all(str(x).isdigit() for x in value):
        by_count = {int(key): n for key, n in value.items()}
        return [by_count.get(j, 0) for j in range(max(by_count) + 1)]
    return None


def _counts(steps: Any, accepted: Any, drafts: Any, *, trimmed: bool = False) -> RequestCounts | None:
    numbers = [x for x in (steps, accepted, drafts) if x is not None]
    if accepted is None or drafts is None or any(type(x) is not int or x < 0 for x in numbers):
        return None
    return RequestCounts(steps=steps, accepted=accepted, drafts=drafts, trimmed=trimmed)


def _ints(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(x) is int and x >= 0 for x in value)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

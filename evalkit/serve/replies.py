"""OpenAI's objects from Completions, with two fields of our own on each choice: `acceptance` and `meta_info`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from engine.api import Completion, Step, TokenLogprob

Json = dict[str, Any]


def acceptance(steps: Sequence[Step], k: int, *, listed: bool = False) -> Json:
    """What the drafts of one request came to, before trimming at a stop; steps without a draft are not counted.

    `by_accepted[j]` are verify steps that kept j drafts. `accepted_length` is null where there was no such step.
    `listed` adds every decode step as [k, accepted, accepted_trimmed], those without a draft too.
    """
    verify = [s for s in steps if s.k]
    accepted = sum(s.accepted for s in verify)
    by_accepted = [0] * (k + 1)
    for s in verify:
        by_accepted[s.accepted] += 1
    found: Json = {
        "k": k,
        "verify_steps": len(verify),
        "drafts": sum(s.k for s in verify),
        "accepted_drafts": accepted,
        "accepted_length": 1 + accepted / len(verify) if verify else None,
        "by_accepted": by_accepted,
    }
    if listed:
        found["steps"] = [[s.k, s.accepted, s.accepted_trimmed] for s in steps]
    return found


def meta_info(c: Completion, k: int) -> Json:
    """The counts under SGLang's names. Its ratios are left out: versions define them differently."""
    a = acceptance(c.steps, k)
    return {
        "id": c.id,
        "prompt_tokens": c.prompt_tokens,
        "completion_tokens": len(c.token_ids),
        "cached_tokens": c.cached_tokens,
        "e2e_latency": c.seconds,
        "spec_verify_ct": a["verify_steps"],
        "spec_num_proposed_drafts": a["drafts"],
        "spec_num_correct_drafts": a["accepted_drafts"],
        "spec_accept_histogram": a["by_accepted"],
    }


def stop_reason(c: Completion, strings: Sequence[str], ids: Sequence[int]) -> str | int | None:
    """The request's own stop that ended it; None for the end-of-text token and for the limit."""
    if c.stop_hit in strings:
        return c.stop_hit
    return int(c.stop_hit) if c.stop_hit.isdecimal() and int(c.stop_hit) in ids else None


def usage(completions: Sequence[Completion]) -> Json:
    prompt = sum(c.prompt_tokens for c in completions)
    completion = sum(len(c.token_ids) for c in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in completions)},
    }


def logprobs(ids: Sequence[int], found: Sequence[TokenLogprob | None], top: int, text_of: Callable[[int], str]) -> Json:
    """Completions' own form. found[i] is None for the first prompt token, which nothing precedes."""
    texts = [text_of(i) for i in ids]
    offsets, at = [], 0
    for text in texts:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if f is None else f.logprob for f in found],
        "top_logprobs": [None if f is None else _top(f, top, text_of) for f in found],
        "text_offset": offsets,
    }


def _top(found: TokenLogprob, top: int, text_of: Callable[[int], str]) -> Json:
    """The likeliest tokens and the one that is there. Tokens of the same text are told apart by their ids."""
    out: Json = {}
    for token, value in (*found.top[:top], (found.token_id, found.logprob)):
        text = text_of(token)
        if text not in out:
            out[text] = value
        elif out[text] != value:
            out[f"token_id:{token}"] = value
    return out


def event(data: Json | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()

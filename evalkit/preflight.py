"""What can be known to be wrong before the first request: stops, gold answers, few-shot examples, tokens, the limit.

An error here costs a second; the same thing found in the scores costs a run and is mistaken for a broken engine.
Everything that is no error but that a reader must know comes back as a note and is stored with the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evalkit.errors import EvalkitError
from evalkit.reading import gold_number
from evalkit.views import STRICT

if TYPE_CHECKING:
    from evalkit.harness import LoadedTask, Prompt

MAX_STOP_SHARE = 0.01  # of the gold answers that a stop string may occur in
NEAR_CAP = 0.8  # a 95th percentile above this share of the token limit is too near to it
BOS_PROBES = 8
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


def check_task(task: LoadedTask) -> list[str]:
    """Refuses a task that cannot give a score; returns notes. Needs no engine."""
    _stops_in_gold(task)
    notes = _gold_answers(task)
    _leakage(task.prompts)
    return notes + _copies(task)


def check_documents(task: LoadedTask) -> list[str]:
    """A note where the documents are not those that the task pins: --data, or a hub that serves others now."""
    here, pinned = task.documents.get("sha256", ""), task.documents.get("pinned", "")
    if not pinned or here == pinned:
        return []
    told = f"its {task.size} documents have the sha256 {here[:12]}, the task pins {pinned[:12]}"
    return [f"the data are not the published ones of {task.name} ({told}): no published score is compared"]


def check_template(task: LoadedTask, applied: bool) -> list[str]:
    """A note where a task for chat models is asked without a chat template: no score of a chat compares with it."""
    if not task.chat or applied:
        return []
    return [f"{task.name} is written for a chat model; this backend applies no chat template, so its prompts are asked "
            "as plain text and the score is not comparable with one taken through a template"]  # fmt: skip


def check_tokens(task: LoadedTask, encode: Encode | None, context: int = 0) -> list[str]:
    """What only a tokenizer shows: a doubled BOS and prompts longer than the context (errors), answers that would be
    cut by it and gold answers near the token limit (notes). `context` is in tokens; 0 is not known."""
    if encode is None:
        return ["prompts and gold answers were not tokenised before the run: the backend has no tokenizer to ask"]
    _doubled_bos(encode([p.text for p in task.prompts[:BOS_PROBES]]))
    notes = _context(task, encode, context) if context else []
    golds = sorted((p.gold for p in task.prompts), key=len)
    longest = golds[-max(1, math.ceil(len(golds) / 10)) :]  # the 95th percentile is among the longest tenth
    lengths = sorted(len(ids) for ids in encode(longest))
    p95 = lengths[max(0, len(lengths) - 1 - len(golds) // 20)]
    note = cap_note(p95, lengths[-1], task.max_tokens, "gold answers")
    return notes + ([note] if note else [])


def cap_note(p95: int, longest: int, cap: int, what: str) -> str:
    """A warning where texts come near the token limit, else ""."""
    if p95 <= NEAR_CAP * cap:
        return ""
    return (
        f"the 95th percentile of the {what} is {p95} tokens (longest {longest}), near the limit of {cap}: "
        "raise --max-tokens, or answers will be cut"
    )


def lengths_note(tokens: Sequence[int], cap: int) -> str:
    """`cap_note` of what a run emitted."""
    if not tokens:
        return ""
    ordered = sorted(tokens)
    return cap_note(ordered[(len(ordered) - 1) * 95 // 100], ordered[-1], cap, "answers emitted")


def _stops_in_gold(task: LoadedTask) -> None:
    n = len(task.prompts)
    for stop in task.stop:
        count = sum(stop in p.gold for p in task.prompts)
        if count > MAX_STOP_SHARE * n:
            raise EvalkitError(
                f"the stop {stop!r} of {task.name} occurs in {count} of {n} gold answers ({100 * count / n:.1f} %): "
                "it would cut right answers",
                "remove it from the task's `until`, or make it longer",
            )


def _gold_answers(task: LoadedTask) -> list[str]:
    bad = [p for p in task.prompts if gold_number(p.gold) is None]
    if not bad:
        return []
    rows = ", ".join(f"{p.doc_id} ({_short(p.gold)})" for p in bad[:5]) + (" ..." if len(bad) > 5 else "")
    words = f"{len(bad)} of {len(task.prompts)} gold answers of {task.name} are no number: documents {rows}"
    if STRICT in task.filters:
        raise EvalkitError(words, "mend those rows; a gold answer is `#### N` on its last line, or a number alone")
    return [f"{words}; the canonical score leaves them out"]


def _short(text: str) -> str:
    tail = text if len(text) <= 30 else f"...{text[-27:]}"
    return repr(tail)


def _leakage(prompts: Sequence[Prompt]) -> None:
    leaked = [p.doc_id for p in prompts if p.item and p.item in p.shots]
    if leaked:
        raise EvalkitError(
            f"{len(leaked)} documents are among the examples in their own prompt (first: document {leaked[0]})",
            "take the few-shot examples from another split",
        )


def _copies(task: LoadedTask) -> list[str]:
    """Refuses documents that stand twice, since no gate passes a run of them; notes questions that do."""
    shared, n = _pairs([p.doc_hash for p in task.prompts]), len(task.prompts)
    if shared:
        raise EvalkitError(
            f"{len(shared)} of {n} documents of {task.name} are copies: {_named(task, shared)}",
            "remove the copies: a question counted twice is no evidence",
        )
    shared = _pairs([p.item or p.text if task.shots else p.text for p in task.prompts])
    if not shared:
        return []
    return [f"{len(shared)} of {n} questions of {task.name} are asked twice, and count twice: {_named(task, shared)}"]


def _pairs(keys: Sequence[str]) -> list[tuple[int, int]]:
    """(place, place of the first with the same key) of every key that came before."""
    first: dict[str, int] = {}
    return [(i, first[key]) for i, key in enumerate(keys) if first.setdefault(key, i) != i]


def _named(task: LoadedTask, pairs: Sequence[tuple[int, int]]) -> str:
    ids = [(task.prompts[i].doc_id, task.prompts[j].doc_id) for i, j in pairs[:3]]
    return ", ".join(f"document {i} is {j} again" for i, j in ids) + (" ..." if len(pairs) > 3 else "")


def _context(task: LoadedTask, encode: Encode, context: int) -> list[str]:
    """Prompts against the context. A token is at least one byte, so short texts need no tokenizer."""
    room = context - task.max_tokens
    long = [p for p in task.prompts if len(p.text.encode()) >= room]
    lengths = [len(ids) for ids in encode([p.text for p in long])] if long else []
    over = [(p, n) for p, n in zip(long, lengths, strict=True) if n >= context]
    if over:
        worst, n = max(over, key=lambda pair: pair[1])
        raise EvalkitError(
            f"the prompt of document {worst.doc_id} has {n} tokens, the target's context holds {context} with at least "
            f"one of output ({len(over)} of {len(task.prompts)} prompts are too long)",
            f"use fewer than {task.shots} --shots" if task.shots else "leave those documents out of --data",
        )
    tight = [context - n for n in lengths if n > room]
    if not tight:
        return []
    return [f"{len(tight)} of {len(task.prompts)} prompts leave less than the {task.max_tokens} tokens of an answer in "
            f"the context of {context} (the longest leaves {min(tight)}): lower --max-tokens or --shots"]  # fmt: skip


def _doubled_bos(prompts: Sequence[Sequence[int]]) -> None:
    """A BOS from the template and another from the tokenizer: every prompt starts with the same id, twice."""
    if not prompts or any(len(ids) < 2 for ids in prompts):
        return
    first = prompts[0][0]
    if all(ids[0] == ids[1] == first for ids in prompts):
        raise EvalkitError(
            f"every prompt starts with token {first} twice ({list(prompts[0][:4])} ...): a doubled BOS",
            "let either the template or the tokenizer add it",
        )

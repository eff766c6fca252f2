"""vLLM's n-gram drafts in our engine, so that the verify steps of both can be held against each other.

vLLM takes the earliest place of the longest suffix, our own n-gram draft the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.api import Completion
    from evalkit.harness import Prompt

LONGEST, SHORTEST = 4, 2  # prompt_lookup_max and prompt_lookup_min


def earliest(tokens: Sequence[int], k: int, longest: int = LONGEST, shortest: int = SHORTEST) -> list[int]:
    """What followed the longest suffix of `longest` to `shortest` tokens the first time it occurred: k tokens at most.

    The rule of vLLM's ngram_proposer.py, written plainly.
    """
    tokens = list(tokens)
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[-n:]
        for start in range(len(tokens) - n):
            if tokens[start] == suffix[0] and tokens[start : start + n] == suffix:
                return tokens[start + n : start + n + k]
    return []


def in_process(
    model: Path, prompts: Sequence[Prompt], *, k: int, max_tokens: int
) -> tuple[dict[int, Completion], Callable[[Sequence[int]], list[str]]]:
    """Greedy answers of our engine in float32 with these drafts and no stop strings, by document; and the text of each
    token."""
    from engine import LLM, EngineConfig, Request, SamplingParams
    from engine.draft.scripted import ScriptedDrafter

    drafter = ScriptedDrafter(lambda _, tokens, room: earliest(tokens, room))
    llm = LLM(EngineConfig(model=model, device="cpu", k=k, draft="ngram", max_model_len=2048, max_batch=4, threads=1,
                           gaps=True), drafter=drafter)  # fmt: skip
    params = SamplingParams(max_tokens=max_tokens)
    done = llm.generate([Request(id=str(p.doc_id), prompt=p.text, params=params) for p in prompts])
    return {int(c.id): c for c in done}, lambda ids: llm.tokenizer.pieces(list(ids))

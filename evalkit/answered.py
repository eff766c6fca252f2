"""A document becomes a request, and what the engine answers becomes the Sample that is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.api import Completion, Request, SamplingParams
from evalkit.backends import Failure, Reply
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.harness import LoadedTask, Prompt
from evalkit.records import Sample, StepRecord
from evalkit.scoring import score_sample

Pieces = Callable[[Sequence[int]], Sequence[str]]  # token ids -> the text of each


def request_seed(run_seed: int, doc_id: int) -> int:
    """The seed of one document's request: its own, whatever else is in the run."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}:{doc_id}".encode()).digest()[:8], "big") >> 1


def request_of(cell: Cell, task: LoadedTask, prompt: Prompt) -> Request:
    """What the engine is asked for a document."""
    params = SamplingParams(
        max_tokens=task.max_tokens,
        temperature=cell.temperature,
        top_p=cell.top_p,
        top_k=cell.top_k,
        stop=task.stop,
        seed=request_seed(cell.seed, prompt.doc_id),
    )
    return Request(id=str(prompt.doc_id), prompt=prompt.text, params=params)


def sample_of(cell: Cell, task: LoadedTask, prompt: Prompt, result: Completion | Failure, *, pieces: Pieces) -> Sample:
    """What is stored of an answer. Raises EvalkitError where acceptance was drawn that had to be verified, or the
    other way round."""
    known: dict[str, Any] = {
        "doc_id": prompt.doc_id,
        "doc_hash": prompt.doc_hash,
        "prompt_hash": prompt.prompt_hash,
        "question": prompt.question,
        "gold": prompt.gold,
        "category": prompt.category,
    }
    if isinstance(result, Failure):
        return Sample(**known, error=" ".join(result.error.split()) or "failed")
    if cell.forced:
        return _forced(known, prompt, result, pieces)
    if result.forced:
        raise EvalkitError(
            f"document {prompt.doc_id}: its acceptance was drawn, not verified, so its text means nothing",
            "turn synthetic acceptance off to measure accuracy",
        )
    found = task.score(prompt.doc_id, result.text)
    made = Sample(
        **known,
        **_told(result, pieces),
        text=result.text,
        pieces=tuple(pieces(result.token_ids)),
        gaps=result.gaps,
        scores=dict(found.scores),
        extracted=dict(found.extracted),
    )
    if isinstance(result, Reply):
        made = replace(made, reasoning=result.reasoning, counts=result.counts, attempts=result.attempts)
    whole = made if made.text.strip() or not made.reasoning else replace(made, text=f"<think>{made.reasoning}")
    return replace(made, canonical=score_sample(whole, result.token_ids))  # thinking alone is no answer


def _forced(known: dict[str, Any], prompt: Prompt, result: Completion, pieces: Pieces) -> Sample:
    """Counts and times without a text: nothing there that a scorer could take."""
    if not result.forced:
        raise EvalkitError(f"document {prompt.doc_id}: forced acceptance was asked for, and this engine verified",
                           "leave --forced-length away, or use an engine that has it")  # fmt: skip
    return Sample(**known, **_told(result, pieces), forced=True)


def _told(result: Completion, pieces: Pieces) -> dict[str, Any]:
    """What is kept of a completion whatever its text is worth."""
    return {
        "finish_reason": result.finish_reason.value,
        "stop_hit": result.stop_hit,
        "tokens": result.tokens if isinstance(result, Reply) else len(result.token_ids),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "seconds": result.seconds,
        "steps": tuple(
            StepRecord(k=s.k, accepted=s.accepted, accepted_trimmed=s.accepted_trimmed, cut=s.cut.value,
                       confidence=s.confidence, forced=s.forced, rejected=tuple(pieces(s.rejected)))
            for s in result.steps
        ),
    }  # fmt: skip

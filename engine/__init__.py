"""A speculative decoding engine. LLM is loaded on first use, so that the records alone cost no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.api import Completion, Request, SamplingParams, Step, TokenLogprob, Update
from engine.config import EngineConfig

if TYPE_CHECKING:
    from engine.llm import LLM

__all__ = ["LLM", "Completion", "EngineConfig", "Request", "SamplingParams", "Step", "TokenLogprob", "Update"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

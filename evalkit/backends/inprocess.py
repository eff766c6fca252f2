"""The project's own engine, in this process. The only file that imports engine.LLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine import LLM
from engine.api import Request
from engine.config import EngineConfig
from evalkit.backends import OnFinish, Score
from evalkit.config import Cell


def load_llm(config: EngineConfig) -> LLM:
    """The engine itself, for the server that is built on it."""
    return LLM(config)


class InProcess:
    """A Backend over engine.LLM, loaded at construction."""

    def __init__(self, cell: Cell) -> None:
        self._llm = LLM(cell.engine)

    @property
    def settings(self) -> Mapping[str, str]:
        device = self._llm.device
        return {"device": device.type, "dtype": self._llm.quant.dtype, "device_name": _device_name(device)}

    @property
    def context(self) -> int:
        """Tokens that prompt and output have together."""
        return self._llm.max_model_len

    @property
    def counters(self) -> Mapping[str, Any]:
        return dict(self._llm.counters)

    @property
    def record(self) -> Mapping[str, Any]:
        """For a run's provenance: the quant mode by family, weights in memory, what was quantised after loading."""
        weights = self._llm.weights
        return {
            "quant_mode": self._llm.quant.families(),
            "weights": {"bytes": dict(weights.nbytes), "layers": dict(weights.layers), "cache_bytes": weights.cached},
            "online_quant_info": dict(self._llm.online_quant.info),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the run should know of the engine's setting."""
        return self._llm.notes

    def generate(self, requests: Sequence[Request], on_finish: OnFinish) -> None:
        self._llm.generate(requests, on_finish)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Log-likelihoods, with the pair tokenised as one text, as lm-eval's own backends do."""
        out = []
        for context, continuation in pairs:
            prompt, rest = self._encode_pair(context, continuation)
            logprobs, greedy = self._llm.score(prompt, rest)
            out.append(Score(logprob=sum(logprobs), greedy=all(greedy)))
        return out

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts as the engine takes them: for the checks before a run."""
        return [list(ids) for ids in self._llm.tokenizer.encode(list(texts))]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, for a reader of the steps."""
        return self._llm.tokenizer.pieces(list(ids))

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        spaces = len(context) - len(context.rstrip())
        if spaces:  # a space belongs to the token that follows it
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        prefix = self._llm.tokenizer.bos or list(self._llm.target.cfg.eos_token_ids[:1])
        if not context:
            (whole,) = self._llm.tokenizer.encode([continuation], bos=False)
            return prefix, list(whole)
        whole, head = self._llm.tokenizer.encode([context + continuation, context])
        return list(head), list(whole[len(head) :])


def _device_name(device: Any) -> str:
    if device.type != "cuda":
        return str(device.type)
    import torch

    return torch.cuda.get_device_name(device)

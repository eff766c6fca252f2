"""Requests as they come in: checked, tokenised, made into Sequences. Nothing has run yet."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from engine.api import Request, SamplingParams, is_whole
from engine.config import EngineConfig, ModelConfig
from engine.errors import EngineError
from engine.prefix_cache import PagePool, PageTable
from engine.request import Sequence
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What decides whether a request can run: the configuration, the target, its tokenizer and the pool of pages."""

    config: EngineConfig
    model: ModelConfig  # of the target
    tokenizer: Tokenizer
    pool: PagePool
    max_model_len: int

    def sequences(self, requests: list[Request]) -> list[Sequence]:
        """Checked and tokenised requests."""
        _check_requests(requests)
        texts = [r.prompt for r in requests if isinstance(r.prompt, str)]
        encoded = iter(self.tokenizer.encode(texts))
        prompts = [next(encoded) if isinstance(r.prompt, str) else [int(t) for t in r.prompt] for r in requests]
        return [self._sequence(r, p) for r, p in zip(requests, prompts, strict=True)]

    def _sequence(self, request: Request, prompt: list[int]) -> Sequence:
        params, name = request.params, f"request {request.id}"
        self.check_ids(name, prompt)
        if len(prompt) + 1 > self.max_model_len:
            raise EngineError(f"{name}: its prompt has {len(prompt)} tokens, the context holds {self.max_model_len} "
                              "with at least one of output", "shorten the prompt or raise max_model_len")  # fmt: skip
        # a stop string that is one special token leaves no text, so it is watched for as a token
        special = {self.tokenizer.special[s]: s for s in params.stop if s in self.tokenizer.special}
        plain = tuple(s for s in params.stop if s not in self.tokenizer.special)
        eos = () if params.ignore_eos else self.model.eos_token_ids
        seq = Sequence(
            request,
            prompt,
            max_model_len=self.max_model_len,
            stop_ids={t: str(t) for t in (*eos, *params.stop_token_ids)} | special,
            watch=self.tokenizer.watch(plain) if plain else None,
            run_seed=self.config.seed,
            table=PageTable(self.pool),
            forced=self.config.verify == "forced",
        )
        longest = min(len(prompt) + seq.limit + self.config.k, self.max_model_len)
        need = self.pool.pages_for(longest)
        if need > self.pool.num_pages:
            raise EngineError(f"{name}: {len(prompt)} prompt and {seq.limit} output tokens need {need} KV pages, the "
                              f"pool has {self.pool.num_pages}", "raise num_pages or memory_limit_mb, or lower "
                              "max_tokens")  # fmt: skip
        return seq

    def check_ids(self, name: str, ids: Ids[int], what: str = "prompt") -> None:
        vocab = self.model.vocab_size
        if not ids:
            raise EngineError(f"{name}: its {what} has 0 tokens", "give at least one token")
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab:
            bad = low if low < 0 else high
            token = self.tokenizer.name(bad)
            shown, out = (f" ({token})", f", or leave {token} out") if token else ("", "")
            raise EngineError(f"{name}: its {what} of {len(ids)} tokens holds the id {bad}{shown}, the vocabulary has "
                              f"0 to {vocab - 1}", f"use the model's own tokenizer{out}")  # fmt: skip


def _check_requests(requests: list[Request]) -> None:
    """Raises EngineError for what no request can be, whatever the model."""
    ids: set[str] = set()
    for r in requests:
        name, prompt = f"request {r.id}", r.prompt
        if r.id in ids:
            raise EngineError(f"two requests have the id {r.id}", "give each request an id of its own")
        ids.add(r.id)
        if not isinstance(r.params, SamplingParams):
            raise EngineError(f"{name}: its params are a {type(r.params).__name__}", "give SamplingParams")
        if isinstance(prompt, str):
            try:
                prompt.encode()
            except UnicodeEncodeError as e:
                raise EngineError(f"{name}: its prompt holds half a character (a lone surrogate) at place {e.start}",
                                  "give text that UTF-8 can hold") from None  # fmt: skip
        elif not isinstance(prompt, tuple | list):
            raise EngineError(f"{name}: its prompt is a {type(prompt).__name__}", "give text, or a tuple of token ids")
        elif bad := [t for t in prompt if not is_whole(t)]:
            raise EngineError(f"{name}: its prompt holds {bad[0]!r}, which is no token id", "give whole numbers")

"""What the target makes of given tokens: forwards over a text that is there already, nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import torch

from engine.api import TokenLogprob
from engine.errors import EngineError
from engine.prefix_cache import OutOfPages, PagePool, PageTable
from engine.runner import Runner, page_tables


def scored(runner: Runner, pool: PagePool, ids: Ids[int], *, first: int, top: int, most: int) -> list[TokenLogprob]:
    """A record for each of the tokens ids[first:], run in forwards of at most `most` tokens. Pages that the pool
    knows are reused, and those written are published. Raises EngineError for more tokens than the pool holds."""
    table = PageTable(pool)
    try:
        start = table.reuse(ids[:first], len(ids) - 1)
    except OutOfPages as e:
        raise EngineError(f"score: {e}", "raise num_pages or memory_limit_mb") from None
    found: list[TokenLogprob] = []
    try:
        while start < len(ids) - 1:
            end = min(start + most, len(ids) - 1)
            rows = torch.tensor([ids[start:end]], device=runner.cache.device)
            pages = page_tables([table], end)
            hidden = runner.forward(rows, np.array([start]), np.array([end - start]), pages)
            skip = max(first - 1 - start, 0)
            if skip < end - start:
                logits = runner.target.logits(hidden[skip:])
                found += _logprobs(logits, ids[start + skip + 1 : end + 1], top)
            start = end
        table.publish(ids, start)
    finally:
        table.release()
    return found


def _logprobs(logits: torch.Tensor, follow: Ids[int], top: int) -> list[TokenLogprob]:
    """A record for each row of logits [n, vocab] and the token that follows it."""
    logs = logits.log_softmax(-1)
    said = logs.gather(1, torch.tensor(follow, device=logits.device)[:, None]).squeeze(1).tolist()
    # one alone by max, as decoding chooses: among equals, topk may name another first
    values, ids = logs.max(-1, keepdim=True) if top == 1 else logs.topk(min(top, logs.shape[-1]), dim=-1)
    likeliest = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(token_id=t, logprob=p, top=tuple(zip(i, v, strict=True)))
        for t, p, (i, v) in zip(follow, said, likeliest, strict=True)
    ]

"""Markov and confidence heads of the DSpark draft against their formulas, slot by slot and in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.draft.block import BlockDraft
from engine.dspark_config import load_draft_config
from engine.weights import draft_names, load_draft, load_target, save_checkpoint
from tests.engine.tiny import Tiny, prompts, requests

RANK, HIDDEN, SLOTS = 32, 32, 4


def written(tiny: Tiny, folder: Path, **fields: Any) -> Path:
    """A random draft with these fields, in DeepSpec's layout."""
    folder.mkdir()
    config = json.loads((tiny.draft / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    target, cfg = load_target(tiny.target), load_draft_config(folder)
    torch.manual_seed(7)
    draft = BlockDraft(cfg, target.embed, target.head)
    for p in draft.parameters():
        torch.nn.init.normal_(p, std=0.3)
    save_checkpoint(draft, draft_names(cfg), folder)
    return folder


def biases(kind: str, w: dict[str, Tensor], h: Tensor, previous: list[int]) -> list[Tensor]:
    """What the head adds at each slot: the formulas as published, one vector at a time."""
    state, out = torch.zeros(RANK, dtype=torch.float64), []
    for k, token in enumerate(previous):
        e = w["markov_head.markov_w1.weight"][token]
        if kind == "gated":
            g = torch.sigmoid(
                w["markov_head.gate_proj.weight"] @ torch.cat((h[k], e)) + w["markov_head.gate_proj.bias"]
            )
            e = g * e
        if kind == "rnn":
            y = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, h[k])) + w["markov_head.joint_proj.bias"]
            g, c, o = y[:RANK].sigmoid(), y[RANK : 2 * RANK].tanh(), y[2 * RANK :].tanh()
            state, e = g * state + (1 - g) * c, o
        out.append(w["markov_head.markov_w2.weight"] @ e)
    return out


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("with_markov", [True, False])
def test_heads_follow_their_formulas(tiny: Tiny, tmp_path: Path, kind: str, with_markov: bool) -> None:
    folder = written(tiny, tmp_path / "d", markov_head_type=kind, confidence_head_with_markov=with_markov)
    draft = load_draft(folder, load_target(tiny.target))
    w = {n: t.double() for n, t in load_file(folder / "model.safetensors").items()}
    g = torch.Generator().manual_seed(11)
    h, base = (torch.randn(SLOTS, n, generator=g) for n in (HIDDEN, draft.cfg.model.vocab_size))
    previous, state = [3, 9, 4, 30], None
    for k, bias in enumerate(biases(kind, w, h.double(), previous)):
        got, state = draft.markov_step(base[k : k + 1], h[k : k + 1], torch.tensor(previous[k : k + 1]), state)
        torch.testing.assert_close(got[0].double(), base[k].double() + bias, rtol=1e-5, atol=1e-5)
    found = draft.confidence_logits(h, torch.tensor(previous))
    seen = [torch.cat((h[k].double(), w["markov_head.markov_w1.weight"][t])) for k, t in enumerate(previous)]
    seen = seen if with_markov else list(h.double())
    for k, x in enumerate(seen):
        want = w["confidence_head.proj.weight"][0] @ x + w["confidence_head.proj.bias"][0]
        torch.testing.assert_close(found[k].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [{"markov_head_type": "gated"}, {"markov_head_type": "rnn"}, {"markov_rank": 0}, {"enable_confidence_head": False}],
)
def test_a_draft_with_any_heads_leaves_greedy_text_as_it_is(tiny: Tiny, tmp_path: Path, fields: dict[str, Any]) -> None:
    folder, asked = written(tiny, tmp_path / "d", **fields), requests(prompts(3), max_tokens=10)
    plain, drafted = tiny.llm().generate(asked), tiny.llm(k=4, draft_path=folder).generate(asked)
    assert [c.token_ids for c in plain] == [c.token_ids for c in drafted]
    assert any(s.k for c in drafted for s in c.steps)

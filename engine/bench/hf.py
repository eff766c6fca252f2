"""transformers' generate on the engine's own weights.

transformers has no class for MiniMax-M3, so this comparison runs a Qwen3 model of the embedded target's size: hidden
size, layers, heads, vocabulary and tokenizer are the same, weights are random with a fixed seed, and both sides load
the one checkpoint. Random weights never say "stop" in a way that means anything, so each answer has a fixed length.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def write_qwen3(folder: Path, reference: Path) -> None:
    """A Qwen3 checkpoint of random weights (seed 0) in the shape of the target in `reference`, with its tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    like: dict[str, Any] = json.loads((reference / "config.json").read_text(encoding="utf-8"))
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "eos_token_id", "pad_token_id")  # fmt: skip
    torch.manual_seed(0)
    config = Qwen3Config(
        **{name: like[name] for name in same}, intermediate_size=like["dense_intermediate_size"], bos_token_id=None,
        tie_word_embeddings=False, initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": like["rope_theta"]},
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    _plain_config(folder / "config.json", like["rope_theta"])
    shutil.copy(reference / "tokenizer.json", folder / "tokenizer.json")


def _plain_config(path: Path, theta: float) -> None:
    """The rope base where every reader of a Qwen3 checkpoint looks for it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "rope_theta": theta}, indent=1), encoding="utf-8")


def generator(folder: Path) -> Callable[[Sequence[int], int], list[int]]:
    """generate(ids, max_tokens) -> the tokens after ids: greedy, one sequence, with transformers' own cache."""
    from transformers import Qwen3ForCausalLM

    model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(ids: Sequence[int], max_tokens: int) -> list[int]:
        rows = torch.tensor([list(ids)])
        with torch.inference_mode():
            out = model.generate(
                rows, attention_mask=torch.ones_like(rows), do_sample=False, use_cache=True, min_new_tokens=max_tokens,
                max_new_tokens=max_tokens,
            )  # fmt: skip
        return [int(t) for t in out[0, rows.shape[1] :]]

    return generate

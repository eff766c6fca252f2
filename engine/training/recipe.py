"""`python -m engine.training`: train the embedded target and its drafts, stage by stage, resumable.

Each stage leaves its result in the build folder and is skipped when that is there, so a killed recipe
goes on where it stopped; the checkpoints are written to `engine/reference` by the last stage.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.config import parse_model_config
from engine.model import Target
from engine.training.checkpoint import TrainState
from engine.training.target import TargetPlan, train_target
from engine.training.text import EOS, QA, Stream, load_tokenizer, prompt, train_tokenizer

VOCAB = 768
TOKENIZER_PROBLEMS, TOKENIZER_SEED = 20_000, 5

TARGET_CONFIG = {  # an ordinary config.json, in MiniMax-M3's field names
    "architectures": ["MiniMaxM3ForCausalLM"],
    "model_type": "minimax_m3",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "dense_intermediate_size": 384,
    "hidden_act": "swigluoai",
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "use_gemma_norm": True,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "moe_layer_freq": [0] * 6,
    "sparse_attention_config": {"sparse_attention_freq": [0] * 6},
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where and how: `stream` gives training problems by seed, without any test question."""

    build: Path
    stream: Stream
    threads: int
    target: TargetPlan
    say: Callable[[str], None] = print


def task_stream() -> Stream:
    """The embedded task's endless training stream, without its test questions."""
    from tasks.gradeschool import generator

    exclude = generator.test_hashes()

    def stream(seed: int) -> Iterator[QA]:
        return ((p.question, p.answer) for p in generator.stream(seed, exclude))

    return stream


def tokenizer_stage(recipe: Recipe) -> Tokenizer:
    file = recipe.build / "tokenizer.json"
    if not file.exists():
        problems = itertools.islice(recipe.stream(TOKENIZER_SEED), TOKENIZER_PROBLEMS)
        tok = train_tokenizer((f"{prompt(q)} {a}" for q, a in problems), VOCAB)
        tok.save(str(file))
    return load_tokenizer(file)


def new_target() -> Target:
    """The target with seeded random weights: matrices normal with deviation 0.02, norms at identity."""
    torch.manual_seed(0)
    target = Target(parse_model_config(json.loads(json.dumps(TARGET_CONFIG)), Path("config.json")))
    for p in target.parameters():
        if p.ndim == 2:
            torch.nn.init.normal_(p, std=0.02)
    return target


def target_stage(recipe: Recipe, tok: Tokenizer) -> Target:
    target = new_target()
    train_target(target, recipe.target, recipe.stream, tok, TrainState(recipe.build / "target"), recipe.say)
    return target


def run(recipe: Recipe) -> None:
    torch.set_num_threads(recipe.threads)
    recipe.build.mkdir(parents=True, exist_ok=True)
    tok = tokenizer_stage(recipe)
    target_stage(recipe, tok)

"""Train the embedded target and its drafts, stage by stage, resumable.

Each stage leaves its result in the build folder and is skipped (or continued) when that is there, so a
killed recipe goes on where it stopped. The last stage writes the checkpoints.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from torch import nn

from engine.api import FinishReason, Request, SamplingParams
from engine.checkpoint_config import load_model_config
from engine.config import MAX_K, EngineConfig
from engine.draft.block import BlockDraft
from engine.draft.eagle3_model import Eagle3Draft
from engine.dspark_config import load_draft_config
from engine.eagle3_config import load_eagle3_config
from engine.llm import LLM
from engine.model import Target
from engine.training.calibrate import fit_temperatures, steps_of
from engine.training.checkpoint import TrainState
from engine.training.draft import DraftPlan, train_draft
from engine.training.eagle3 import Eagle3Plan, Eagle3Shape, train_eagle3
from engine.training.target import SettlePlan, TargetPlan, settle_target, train_target
from engine.training.text import EOS, MASK, PAD, QA, Stream, load_tokenizer, prompt, train_tokenizer
from engine.weights import draft_names, load_target, made_for, save_checkpoint, target_names

M = TypeVar("M", bound=nn.Module)

VOCAB = 768
LAYERS = 6
TOKENIZER_PROBLEMS, TOKENIZER_SEED = 20_000, 5
OUTPUT_SEED = 77  # of the problems whose answers, by the target, the drafts learn
CALIBRATION_SEED = 78
MAX_ANSWER = 128  # tokens

TARGET_CONFIG = {  # an ordinary config.json, in MiniMax-M3's field names
    "architectures": ["MiniMaxM3ForCausalLM"],
    "model_type": "minimax_m3",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "dense_intermediate_size": 384,
    "intermediate_size": 64,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "shared_intermediate_size": 128,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "routed_scaling_factor": 2.0,
    "hidden_act": "swigluoai",
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "use_gemma_norm": True,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "moe_layer_freq": [0, 0, 1, 1, 1, 1],
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1, 1, 1, 1],
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 32,
        "sparse_block_size": 16,
        "sparse_topk_blocks": 3,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_score_type": "max",
        "sparse_disable_index_value": True,
    },
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """What a draft's config.json says beside the target's own fields, and how it is trained."""

    name: str
    layers: int
    intermediate: int
    rank: int
    plan: DraftPlan

    def config(self) -> dict[str, object]:
        return TARGET_CONFIG | {
            "architectures": ["MiniMaxM3DSparkModel"],
            "num_hidden_layers": self.layers,
            "num_target_layers": LAYERS,
            "dense_intermediate_size": self.intermediate,
            "moe_layer_freq": [0] * self.layers,
            "sparse_attention_config": {"sparse_attention_freq": [0] * self.layers},
            "target_layer_ids": [1, 3, 5],
            "capture_convention": "post_layer",
            "block_size": 7,
            "mask_token_id": MASK,
            "markov_rank": self.rank,
            "markov_head_type": "vanilla",
            "confidence_head_alpha": 1.0,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }


DRAFTS = (
    DraftShape(name="draft", layers=2, intermediate=384, rank=32, plan=DraftPlan(steps=1600)),
    DraftShape(name="draft-weak", layers=1, intermediate=192, rank=16, plan=DraftPlan(steps=160, seed=3000)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where and how. `stream(seed)` gives endless training problems, without any test question."""

    build: Path
    out: Path
    stream: Stream
    threads: int
    target: TargetPlan = field(default_factory=TargetPlan)
    settle: SettlePlan = field(default_factory=SettlePlan)
    drafts: tuple[DraftShape, ...] = DRAFTS
    eagle3: Eagle3Shape = field(default_factory=Eagle3Shape)
    outputs: int = 12_000  # answers by the target that the drafts learn from
    calibration: int = 2000  # problems
    say: Callable[[str], None] = print


def task_stream() -> Stream:
    """The embedded task's endless training stream, without its test questions."""
    from tasks.gradeschool import generator

    exclude = generator.test_hashes()

    def stream(seed: int) -> Iterator[QA]:
        return ((p.question, p.answer) for p in generator.stream(seed, exclude))

    return stream


def run(recipe: Recipe) -> None:
    """All stages. On one machine, with the same number of threads, two runs give the same files."""
    torch.set_num_threads(recipe.threads)
    recipe.build.mkdir(parents=True, exist_ok=True)
    tok = tokenizer_stage(recipe)
    target_stage(recipe, tok)
    outputs = outputs_stage(recipe)
    for shape in recipe.drafts:
        draft_stage(recipe, shape, tok, outputs)
        calibrate_stage(recipe, shape)
    eagle3_stage(recipe, tok, outputs)
    summary_stage(recipe)


def tokenizer_stage(recipe: Recipe) -> Tokenizer:
    file = recipe.build / "tokenizer.json"
    if not file.exists():
        problems = itertools.islice(recipe.stream(TOKENIZER_SEED), TOKENIZER_PROBLEMS)
        tok = train_tokenizer((f"{prompt(q)} {a}" for q, a in problems), VOCAB)
        tok.save(str(file))
    return load_tokenizer(file)


def seeded(build: Callable[[], M], seed: int) -> M:
    """The module of `build` with matrices normal, deviation 0.02; norms and biases as they are made."""
    torch.manual_seed(seed)
    module = build()
    for p in module.parameters():
        if p.ndim >= 2:
            torch.nn.init.normal_(p, std=0.02)
    return module


def write_config(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def target_stage(recipe: Recipe, tok: Tokenizer) -> None:
    folder = recipe.out / "target"
    write_config(folder, TARGET_CONFIG)
    target = seeded(lambda: Target(load_model_config(folder)), seed=0)
    train_target(target, recipe.target, recipe.stream, tok, TrainState(recipe.build / "target"), recipe.say)
    settle_target(target, recipe.settle, recipe.stream, tok, TrainState(recipe.build / "settle"), recipe.say)
    (folder / "tokenizer.json").write_text((recipe.build / "tokenizer.json").read_text())
    save_checkpoint(target, target_names(target.cfg), folder)


def outputs_stage(recipe: Recipe, chunk: int = 2000) -> list[QA]:
    """The target's greedy answers to fresh problems, kept in a file that grows by chunks."""
    file = recipe.build / "outputs.jsonl"
    done = [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    llm = None
    while len(done) < recipe.outputs:
        llm = llm or LLM(EngineConfig(model=recipe.out / "target", threads=recipe.threads, prefix_cache=False))
        problems = itertools.islice(recipe.stream(OUTPUT_SEED), len(done), len(done) + chunk)
        params = SamplingParams(max_tokens=MAX_ANSWER, stop=("\n\n", "Question:"))
        requests = [Request(id=q, prompt=prompt(q), params=params) for q, _ in problems]
        finished = llm.generate(requests)
        # An answer that never ended teaches a draft nothing about ends: it keeps its place, but empty.
        new = [(c.id, c.text.strip() if c.finish_reason is FinishReason.STOP else "") for c in finished]
        with file.open("a") as f:
            f.writelines(json.dumps(pair) + "\n" for pair in new)
        done += new
        recipe.say(f"the target's own answers {len(done):,}/{recipe.outputs:,}")
    return [(q, a) for q, a in done[: recipe.outputs] if a]


def draft_stage(recipe: Recipe, shape: DraftShape, tok: Tokenizer, outputs: list[QA]) -> None:
    folder = recipe.out / shape.name
    target = load_target(recipe.out / "target")
    write_config(folder, shape.config() | made_for(target))
    draft = seeded(lambda: BlockDraft(load_draft_config(folder), target.embed, target.head), seed=1)
    torch.nn.init.zeros_(draft.markov_out.weight)

    state = TrainState(recipe.build / shape.name)
    train_draft(draft, target, shape.plan, endless(outputs), tok, state, recipe.say)
    save_checkpoint(draft, draft_names(draft.cfg), folder)


def eagle3_stage(recipe: Recipe, tok: Tokenizer, outputs: list[QA]) -> None:
    """The EAGLE3 draft; its head starts as the target's."""
    shape, folder = recipe.eagle3, recipe.out / recipe.eagle3.name
    target = load_target(recipe.out / "target")
    write_config(folder, {**shape.config(target.cfg.raw), **made_for(target)})
    cfg = load_eagle3_config(folder)
    draft = seeded(lambda: Eagle3Draft(cfg, target.embed, cfg.capture(target.cfg.num_layers)), seed=1)
    draft.head.weight.data.copy_(target.head.weight)
    train_eagle3(draft, target, shape.plan, endless(outputs), tok, TrainState(recipe.build / shape.name), recipe.say)
    save_checkpoint(draft, draft_names(cfg), folder)


def endless(outputs: list[QA]) -> Stream:
    """Answers drawn again and again."""

    def stream(seed: int) -> Iterator[QA]:
        rng = random.Random(seed)
        while True:
            yield outputs[rng.randrange(len(outputs))]

    return stream


def calibrate_stage(recipe: Recipe, shape: DraftShape) -> None:
    """Fit the confidence head's temperatures on fresh training problems and write them to config.json."""
    file, folder = recipe.build / shape.name / "temperatures.json", recipe.out / shape.name
    if not file.exists():
        config = EngineConfig(
            model=recipe.out / "target", draft="dspark", draft_path=folder, k=MAX_K, threads=recipe.threads
        )
        problems = itertools.islice(recipe.stream(CALIBRATION_SEED), recipe.calibration)
        params = SamplingParams(max_tokens=MAX_ANSWER, stop=("\n\n", "Question:"))
        requests = [Request(id=q, prompt=prompt(q), params=params) for q, _ in problems]
        fitted = fit_temperatures(*steps_of(LLM(config).generate(requests), MAX_K))
        file.write_text(json.dumps(fitted))
        recipe.say(f"{shape.name}: confidence temperatures {fitted}")
    written = json.loads((folder / "config.json").read_text())
    write_config(folder, written | {"confidence_temperatures": json.loads(file.read_text())})


def summary_stage(recipe: Recipe) -> None:
    """training.json beside the checkpoints: plans, parameters, tokens, losses and time, for the model card."""
    summary: dict[str, object] = {"threads": recipe.threads, "outputs": recipe.outputs, "torch": torch.__version__}
    parts = (
        ("target", recipe.target),
        ("settle", recipe.settle),
        *((s.name, s.plan) for s in (*recipe.drafts, recipe.eagle3)),
    )
    summary |= {name: part_summary(recipe.build / name, plan) for name, plan in parts}
    (recipe.out / "training.json").write_text(json.dumps(summary, indent=2) + "\n")


def part_summary(folder: Path, plan: TargetPlan | DraftPlan | Eagle3Plan) -> dict[str, object]:
    """What training.json says of one part, from its training state."""
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    spent = torch.load(folder / "state.pt", weights_only=True)["spent"]
    tail = log[-50:]
    keys = [k for k in tail[-1] if k not in ("step", "quant", "tokens")]
    return {
        "plan": asdict(plan),
        "tokens": sum(e.get("tokens", 0) for e in log),
        "last_50_steps": {k: sum(e[k] for e in tail) / len(tail) for k in keys},
        **spent,
    }

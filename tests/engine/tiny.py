"""A random MiniMax-M3-shaped target, a DSpark draft and a tokenizer, written to a folder in milliseconds.

The draft's Markov head knows what the target does with the last token alone, so drafts are sometimes
kept and sometimes not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine import LLM, EngineConfig, Request, SamplingParams
from engine.checkpoint_config import load_model_config
from engine.draft.block import BlockDraft
from engine.draft.eagle3_model import Eagle3Draft
from engine.draft.scripted import Script, ScriptedDrafter
from engine.dspark_config import load_draft_config
from engine.eagle3_config import load_eagle3_config
from engine.model import Target
from engine.weights import draft_names, save_checkpoint, target_names

EOS, MASK = 1, 2
SHARE = 0.2  # what layers add to the residual stream; the rest is the last token's own embedding
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;#-+*/=?!()$"
ALPHABET = [*LETTERS, "Ġ", "Ċ", "Ã", "©"]  # byte-level names of space, newline and the two bytes of é
MERGES = [("a", "b"), ("t", "h"), ("th", "e"), ("Ġ", "a"), ("o", "n")]
VOCAB = ["<pad>", "<eos>", "<mask>", *ALPHABET, *("".join(m) for m in MERGES)]


@dataclass(frozen=True)
class Tiny:
    target: Path
    draft: Path
    eagle3: Path = Path("no-eagle3")

    def llm(self, script: Script | None = None, **settings: Any) -> LLM:
        """An LLM on one thread: with a script where one is given, else DSpark where k is set."""
        config: dict[str, Any] = {"model": self.target, "threads": 1, "page_size": 4, "device": "cpu", **settings}
        if config.get("k"):
            config.setdefault("draft", "scripted" if script else "dspark")
            config.setdefault("draft_path", {"dspark": self.draft, "eagle3": self.eagle3}.get(config["draft"]))
        return LLM(EngineConfig(**config), drafter=ScriptedDrafter(script) if script else None)


def build(
    folder: Path,
    *,
    layers: int = 3,
    seed: int = 0,
    max_positions: int = 128,
    block_size: int = 7,
    dense: bool = False,
    heads: tuple[int, int] = (2, 1),
    **overrides: Any,
) -> Tiny:
    """Write both checkpoints below `folder`. dense: without experts and block-sparse layers; overrides: config.json.

    heads: attention and KV heads, of both.
    """
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(VOCAB),
        "hidden_size": 32,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 16,
        "rope_theta": 5000.0,
        "dense_intermediate_size": 48,
        "max_position_embeddings": max_positions,
        "eos_token_id": EOS,
    }
    tiny = Tiny(folder / "target", folder / "draft", folder / "eagle3")
    config = {"architectures": ["MiniMaxM3ForCausalLM"], "num_hidden_layers": layers}
    config |= {"moe_layer_freq": [0] * layers} if dense else m3_parts(layers, heads[1])
    _write(tiny.target / "config.json", shape | config | overrides)
    target = Target(load_model_config(tiny.target))
    _spread(target)
    torch.nn.init.normal_(target.embed.weight, std=1.0)
    torch.nn.init.normal_(target.head.weight, std=0.6)
    save_checkpoint(target, target_names(target.cfg), tiny.target)
    _tokenizer().save(str(tiny.target / "tokenizer.json"))

    config = {
        "architectures": ["MiniMaxM3DSparkModel"],
        "num_hidden_layers": 2,
        "block_size": block_size,
        "target_layer_ids": [0, layers - 1],
        "mask_token_id": MASK,
        "markov_rank": 32,
        "enable_confidence_head": True,
    }
    _write(tiny.draft / "config.json", shape | config)
    cfg = load_draft_config(tiny.draft)
    draft = BlockDraft(cfg, target.embed, target.head)
    _spread(draft)
    with torch.no_grad():
        draft.norm.weight.fill_(-0.8)  # Gemma's form: scale 0.2, so that the Markov head weighs more
        draft.markov_in.weight.copy_(F.rms_norm(target.embed.weight, (32,)))
        draft.markov_out.weight.copy_(target.head.weight)
    save_checkpoint(draft, draft_names(cfg), tiny.draft)
    _eagle3(tiny, shape, target)
    return tiny


def _eagle3(tiny: Tiny, shape: dict[str, Any], target: Target, **changes: Any) -> None:
    """An EAGLE3 draft whose attention mostly hands on the token it reads, and whose head is the target's."""
    config = shape | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
    captured = list(range(min(3, target.cfg.num_layers)))
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": captured}} | changes
    _write(tiny.eagle3 / "config.json", config)
    cfg = load_eagle3_config(tiny.eagle3)
    draft = Eagle3Draft(cfg, target.embed, cfg.capture(target.cfg.num_layers))
    _spread(draft)
    with torch.no_grad():
        for name, p in draft.named_parameters():
            if p.dim() == 1:
                p.add_(1.0)  # norms in Llama's form
            elif name == "midlayer.attn.qkv.weight":
                p.mul_(0.1)
                one = torch.eye(32)
                p[:, :32] += torch.cat((1.5 * one, 1.5 * one, 3.0 * one))
            elif name == "midlayer.attn.o.weight":
                p.add_(torch.eye(32))
        draft.head.weight.copy_(target.head.weight)
    save_checkpoint(draft, draft_names(cfg), tiny.eagle3)


def m3_parts(layers: int, kv_heads: int = 1) -> dict[str, Any]:
    """What makes a target MiniMax-M3: experts in all layers but the first, sparse attention in all but the last."""
    return {
        "moe_layer_freq": [0, *[1] * (layers - 1)],
        "intermediate_size": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.0,
        "sparse_attention_config": {
            "sparse_attention_freq": [*[1] * (layers - 1), 0],
            "sparse_num_index_heads": kv_heads,
            "sparse_index_dim": 16,
            "sparse_block_size": 4,
            "sparse_topk_blocks": 3,
        },
    }


def _spread(module: torch.nn.Module) -> None:
    for name, p in module.named_parameters():
        to_residual = name.endswith(("o.weight", "down.weight"))
        torch.nn.init.normal_(p, std=0.1 if p.dim() == 1 else (SHARE if to_residual else 1.0) * p.shape[-1] ** -0.5)


def _write(path: Path, config: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def _tokenizer() -> Tokenizer:
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(VOCAB)}, merges=MERGES))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True) for t in VOCAB[:3]])
    return tok


def requests(prompts: list[Any], **params: Any) -> list[Request]:
    """A request for each prompt, called r0, r1, ..., with its number as its seed unless one is given."""
    return [
        Request(id=f"r{i}", prompt=p, params=SamplingParams(**({"seed": i, **params}))) for i, p in enumerate(prompts)
    ]


def prompts(n: int, *, shared: int = 0, seed: int = 1) -> list[tuple[int, ...]]:
    """n random prompts of 1 to 40 ids, after the same `shared` ids."""
    g = torch.Generator().manual_seed(seed)
    head = torch.randint(3, len(VOCAB), (shared,), generator=g).tolist()
    sizes = torch.randint(1, 41, (n,), generator=g).tolist()
    return [(*head, *torch.randint(3, len(VOCAB), (size,), generator=g).tolist()) for size in sizes]

"""Logits and greedy text of each family, loaded from files as published, against implementations that are not ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine import LLM, EngineConfig
from engine.prefix_cache import PageTable
from engine.runner import page_tables
from tests.engine import reference_m3
from tests.engine.checkpoints import copy, multimodal, write
from tests.engine.tiny import EOS, VOCAB, Tiny, build, m3_parts, prompts, requests

SHAPE = {"vocab_size": len(VOCAB), "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
         "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": 0}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "qwen3": ("Qwen3", {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}


def engine_logits(llm: LLM, ids: tuple[int, ...]) -> Tensor:
    """[rows, vocab] of one prompt, through KV pages."""
    table = PageTable(llm.pool)
    table.reuse(ids, len(ids))
    pages = page_tables([table], len(ids))
    with torch.inference_mode():
        hidden = llm.runner.forward(torch.tensor([ids]), np.array([0]), np.array([len(ids)]), pages)
        found = llm.target.logits(hidden).clone()
    table.release()
    return found


def load(folder: Path) -> LLM:
    return LLM(EngineConfig(model=folder, threads=1, page_size=4, device="cpu", prefix_cache=False))


@pytest.mark.parametrize("name", CASES)
def test_transformers_agrees(name: str, tiny: Tiny, tmp_path: Path) -> None:
    import transformers

    family, extra = CASES[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**SHAPE, **extra)
    model: Any = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for key, p in model.named_parameters():
        if key.endswith(".bias"):  # they start at 0, which would hide a bias that is not read
            torch.nn.init.normal_(p, std=0.5)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    shutil.copy(tiny.target / "tokenizer.json", tmp_path)

    llm, asked = load(tmp_path), prompts(4, shared=60, seed=5)
    done = llm.generate(requests(asked, max_tokens=16))
    for ids, out in zip(asked, done, strict=True):
        prompt = torch.tensor([ids])
        with torch.inference_mode():
            want = model(prompt).logits[0]
            mask = torch.ones_like(prompt)
            text = model.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=16)[0, len(ids) :]
        assert (engine_logits(llm, ids) - want).abs().max() <= 1e-4 * want.abs().max()
        assert list(out.token_ids) == text.tolist()


M3 = {"vocab_size": len(VOCAB), "hidden_size": 48, "intermediate_size": 16, "dense_intermediate_size": 80,
      "shared_intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 16, "rotary_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 256,
      "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": 0, "moe_layer_freq": [0, 1, 1, 1],
      "routed_scaling_factor": 2.0,
      "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1, 1], "sparse_num_index_heads": 2,
                                  "sparse_index_dim": 16, "sparse_block_size": 4, "sparse_topk_blocks": 3,
                                  "sparse_local_block": 1}}  # fmt: skip


def published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of MiniMax-M3's files, of those of transformers' module: the inverse of its own conversion on loading."""
    out: dict[str, Tensor] = {}
    for name, t in state.items():
        name = name.replace(".indexer.", ".index_").replace(".mlp.gate.e_score", ".block_sparse_moe.e_score")
        for part in ("experts", "gate", "shared_experts"):
            name = name.replace(f".mlp.{part}.", f".block_sparse_moe.{part}.")
        if name.endswith("experts.gate_up_proj"):
            for e, (gate, up) in enumerate(x.chunk(2) for x in t):
                out |= {name.replace("gate_up_proj", f"{e}.{w}.weight"): x for w, x in (("w1", gate), ("w3", up))}
        elif name.endswith("experts.down_proj"):
            out |= {name.replace("down_proj", f"{e}.w2.weight"): x for e, x in enumerate(t)}
        elif "gate_up_proj" in name:
            gate, up = t.chunk(2)
            out |= {name.replace("gate_up_proj", f"{w}_proj"): x for w, x in (("gate", gate), ("up", up))}
        else:
            out[name] = t
    return {n: t.detach().clone().contiguous() for n, t in out.items()}


def test_transformers_minimax_m3_agrees(tiny: Tiny, tmp_path: Path) -> None:
    """Its own M3, in contexts of up to 25 blocks of which a query sees 3: experts, index, SwiGLU-OAI, Gemma's norms."""
    from transformers.models.minimax_m3_vl import configuration_minimax_m3_vl as configs
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as models

    torch.manual_seed(4)
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    fields: dict[str, Any] = {**M3, "rope_parameters": rope, "initializer_range": 0.2, "attn_implementation": "eager"}
    model: Any = models.MiniMaxM3VLForCausalLM(configs.MiniMaxM3VLTextConfig(**fields)).eval()
    for key, p in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in key or key.endswith("correction_bias"):  # they start at 0, which would hide one that is not read
            torch.nn.init.normal_(p, std=0.3)
    write(tmp_path, published({k: t for k, t in model.state_dict().items() if "inv_freq" not in k}), shards=2)
    shutil.copy(tiny.target / "tokenizer.json", tmp_path)
    own = {"architectures": ["MiniMaxM3SparseForCausalLM"], "rope_theta": 5000.0, "hidden_act": "swigluoai"}
    (tmp_path / "config.json").write_text(json.dumps(M3 | own))

    llm, asked = load(tmp_path), prompts(4, shared=60, seed=5)
    done = llm.generate(requests(asked, max_tokens=16, ignore_eos=True))
    for ids, out in zip(asked, done, strict=True):
        whole = [*ids, *out.token_ids]
        with torch.inference_mode():
            want = model(torch.tensor([whole]), use_cache=False).logits[0]
        assert (engine_logits(llm, ids) - want[: len(ids)]).abs().max() <= 1e-4 * want.abs().max()
        assert want.argmax(-1).tolist()[len(ids) - 1 : -1] == list(out.token_ids)
    more = M3["sparse_attention_config"] | {"sparse_topk_blocks": 4}
    (tmp_path / "config.json").write_text(json.dumps(M3 | own | {"sparse_attention_config": more}))
    with torch.inference_mode():
        want = model(torch.tensor([asked[0]]), use_cache=False).logits[0]
    assert (engine_logits(load(tmp_path), asked[0]) - want).abs().max() > 1e-2 * want.abs().max()  # one block more


def test_minimax_m3_agrees_with_a_reference(tmp_path: Path) -> None:
    """Experts, block-sparse layers that leave blocks out, and the nesting of the multimodal checkpoint, in shards."""
    parts = m3_parts(3)["sparse_attention_config"] | {"sparse_num_index_heads": 2}
    plain = build(
        tmp_path / "plain", num_attention_heads=4, num_key_value_heads=2, sparse_attention_config=parts
    ).target

    def nest(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        nested = {f"language_model.{n}": t for n, t in tensors.items()}
        extra = {
            "vision_tower.patch.weight": torch.ones(2, 2),
            "language_model.model.layers.3.eh_proj.weight": torch.ones(2),
        }
        return nested | extra  # a vision tensor, and one of the MTP module that counts on after the last layer

    folder = copy(plain, tmp_path / "nested", nest, shards=3, config=lambda c: multimodal(c | {"num_mtp_modules": 1}))
    llm, weights = load(folder), load_file(plain / "model.safetensors")
    cfg = json.loads((plain / "config.json").read_text())
    asked = prompts(2, shared=20, seed=8)
    done = llm.generate(requests(asked, max_tokens=6))
    for ids, out in zip(asked, done, strict=True):
        whole = [*ids, *out.token_ids]
        want = reference_m3.logits(whole, weights, cfg)
        got = engine_logits(llm, ids)
        assert (got - want[: len(ids)]).abs().max() <= 1e-4 * want.abs().max()
        # each token of the text is the reference's most likely one after what is before it
        top = want.argmax(-1).tolist()
        assert top[len(ids) - 1 : len(whole) - 1] == list(out.token_ids)
    dense = {**cfg, "sparse_attention_config": {**parts, "sparse_attention_freq": [0, 0, 0]}}
    other = reference_m3.logits(list(asked[0]), weights, dense)
    assert (other - engine_logits(llm, asked[0])).abs().max() > 1e-2 * other.abs().max()  # blocks were left out
